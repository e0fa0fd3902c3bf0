# SPDX-License-Identifier: Apache-2.0
"""The protocols by which arrays of other libraries come and go: DLPack, old and new, and CUDA's."""

import ctypes
import gc
import weakref

import numpy as np
import pytest
from scanrnn import _core
from scanrnn.arrays import dlpack
from test_errors import raises
from test_exchange import DTYPES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("few_objects")


class Producer:
    """Gives a capsule that the test has made; `legacy` knows of no versions."""

    def __init__(self, capsule, legacy=False):
        self.capsule, self.legacy, self.asked = capsule, legacy, []

    def __dlpack__(self, **options):
        if self.legacy and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(options)
        return self.capsule


def test_versioned_first_then_legacy():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    new = Producer(x.__dlpack__(max_version=(1, 0)))
    old = Producer(x.__dlpack__(), legacy=True)
    for producer in (new, old):
        got = dlpack.take("x", producer, None, writable=False)
        assert (got.shape, got.strides, got.dtype, got.device) == ((2, 3), (3, 1), "float32", "cpu")
        assert got.address == x.ctypes.data
    assert new.asked == [{"max_version": (1, 0)}]
    assert old.asked == [{}]


def test_the_stream_is_passed_on():
    producer = Producer(np.zeros(3).__dlpack__(max_version=(1, 0)))
    dlpack.take("x", producer, 7, writable=False)
    assert producer.asked == [{"max_version": (1, 0), "stream": 7}]
    producer = Producer(np.zeros(3).__dlpack__(max_version=(1, 0)))
    dlpack.take("x", producer, 0, writable=False)  # 0 is ambiguous, so it is not allowed
    assert producer.asked[0]["stream"] == 1


def test_offset_and_strides():
    x = np.arange(24, dtype=np.float64).reshape(4, 6)[1:, 2:5]
    got = _core.from_dlpack("x", x.__dlpack__(max_version=(1, 0)), False)
    assert (got.shape, got.strides, got.address) == ((3, 3), (6, 1), x.ctypes.data)
    t = torch.arange(24.0).reshape(4, 6)[1:, 2:5]
    got = _core.from_dlpack("x", t.__dlpack__(), False)
    assert (got.shape, got.strides, got.address) == ((3, 3), (6, 1), t.data_ptr())


class Header(ctypes.Structure):
    """DLManagedTensorVersioned as far as the tests change it."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("release", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("sizes", ctypes.c_void_p), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


def header(capsule):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Header.from_address(pointer(capsule, b"dltensor_versioned"))


@pytest.mark.parametrize(
    ("changes", "kind", "parts"),
    [
        ({"major": 2}, ValueError, ("x: expected DLPack 1.x, got 2.", "max_version")),
        ({"code": 5, "bits": 32}, TypeError, ("got complex32: pass its real and imaginary parts",)),
        ({"code": 0, "bits": 4}, TypeError, ("got int4, which is less than a byte: unpack",)),
        ({"code": 17, "bits": 4}, TypeError, ("got dtype code 17, 4, which is less than a byte",)),
        ({"code": 0, "bits": 16}, TypeError, ("got int16: convert it first, nothing is cast",)),
        ({"code": 1, "bits": 8}, TypeError, ("got uint8: convert",)),
        ({"lanes": 4}, TypeError, ("got float64x4",)),
        ({"device_type": 7}, TypeError, (r"x: .*got DLPack device \(7, 0\)",)),
        ({"byte_offset": 3}, ValueError, ("x: .*whole elements of 8 bytes: pass a contiguous",)),
    ],
)
def test_capsules_that_cannot_be_taken(changes, kind, parts):
    x = np.zeros((4, 6))
    before = weakref.ref(x)
    capsule = x.__dlpack__(max_version=(1, 0))
    for name, value in changes.items():
        setattr(header(capsule), name, value)
    with raises(kind, *parts):
        _core.from_dlpack("x", capsule, False)
    del x, capsule
    gc.collect()
    assert before() is None, "the producer's memory was not given back"


def test_read_only_and_negative_strides():
    x = np.zeros((4, 6))
    x.flags.writeable = False
    assert _core.from_dlpack("x", x.__dlpack__(max_version=(1, 0)), False).shape == (4, 6)
    with raises(ValueError, "y: expected memory to write, got read-only"):
        _core.from_dlpack("y", x.__dlpack__(max_version=(1, 0)), True)
    with raises(ValueError, "x: expected strides of at least 0, got -1 on axis 1: pass a contig"):
        _core.from_dlpack("x", np.zeros((4, 6))[:, ::-1].__dlpack__(), False)


def test_a_capsule_is_taken_once():
    x = np.zeros(3)
    capsule = x.__dlpack__()
    held = _core.from_dlpack("x", capsule, False)
    with raises(
        TypeError, "x: expected a DLPack capsule that nobody has taken, got .*used_dltensor"
    ):
        _core.from_dlpack("x", capsule, False)
    alive = weakref.ref(x)
    del x, capsule
    gc.collect()
    assert alive() is not None
    del held
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_we_export_is_for_all(dtype):
    owner = torch.arange(6.0).to(getattr(torch, dtype)).reshape(2, 3)
    alive = weakref.ref(owner)
    tensor = _core.from_dlpack("x", owner.__dlpack__(), False)
    exported = _core.Exported(tensor, owner, 0)
    assert exported.__dlpack_device__() == (1, 0)
    new = torch.from_dlpack(exported)  # versioned
    old = torch.utils.dlpack.from_dlpack(exported.__dlpack__())  # legacy
    for view in (new, old):
        assert (view.dtype, view.shape, view.data_ptr()) == (owner.dtype, (2, 3), owner.data_ptr())
    if dtype != "bfloat16":
        np.testing.assert_array_equal(np.from_dlpack(exported), [[0, 1, 2], [3, 4, 5]])
    unused = [exported.__dlpack__(max_version=version) for version in (None, (1, 0))]
    del exported, old, view, owner, tensor, unused
    gc.collect()
    assert alive() is not None
    assert new.sum() == 15  # the memory lives as long as anyone has it
    del new
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("fields", "kind", "part"),
    [
        (None, TypeError, "x: expected a __cuda_array_interface__ of typestr, shape and data, got"),
        ({"shape": (1,)}, TypeError, "x: expected a __cuda_array_interface__ of typestr, shape"),
        ({"data": 8}, TypeError, "x: expected a __cuda_array_interface__ of typestr, shape"),
        ({"typestr": ">f4"}, TypeError, "x: .*in this machine's order of bytes, got '>f4'"),
        ({"typestr": "<V2"}, TypeError, "x: expected floating-point numbers .*, got '<V2'"),
        ({"typestr": "<fx"}, TypeError, "x: expected floating-point numbers .*, got '<fx'"),
        ({"typestr": "<c4"}, TypeError, "x: .*got complex32: pass its real and imaginary parts"),
        ({"typestr": "|u1"}, TypeError, "x: .*got uint8: convert it first"),
        ({"mask": 1}, TypeError, "x: expected an array without a mask"),
        ({"strides": (6,)}, ValueError, "x: expected strides in whole elements of 4 bytes, got 6"),
        ({"data": (0, False)}, ValueError, "x: expected memory of 2 elements, got a null pointer"),
        ({"data": (0, False), "strides": (4, 4)}, ValueError, "x: expected a stride for each of 1"),
    ],
)
def test_cuda_array_interfaces_that_cannot_be_taken(fields, kind, part):
    whole = {"shape": (2,), "typestr": "<f4", "data": (8, False), "version": 3}
    few = fields is None or list(fields) == ["shape"]
    with raises(kind, part):
        _core.from_interface("x", fields if few else whole | fields)


def test_what_we_export_does_not_move():
    x = np.zeros(3)
    exported = _core.Exported(_core.from_dlpack("x", x.__dlpack__(), False), x, 0)
    with pytest.raises(BufferError, match="as it is"):
        exported.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="dl_device"):
        exported.__dlpack__(dl_device=(2, 0))
