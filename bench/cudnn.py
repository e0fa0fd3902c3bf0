# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU by cuDNN's own C API, so that each of its algorithms can be asked for by name.

torch.nn picks an algorithm by rules of its own. Here all memory is made before anything is timed,
and `forward` and `backward` only launch, on PyTorch's current stream: a CUDA graph can hold them.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

ALGORITHMS = {"standard": 0, "persist_static": 1, "persist_dynamic": 2, "static_small_h": 3}
DYNAMIC = ALGORITHMS["persist_dynamic"]  # the one that compiles its kernels for a batch size
CELLS = {"LSTM": 2, "GRU": 3}
GATES = {"LSTM": 4, "GRU": 3}  # both in the order of torch's row blocks
# Each kind of arithmetic: torch's dtype, cuDNN's data type, cuDNN's math type. Sums are float32.
MATHS = {
    "float16": (torch.float16, 2, 1),
    "bfloat16": (torch.bfloat16, 9, 0),
    "float32": (torch.float32, 0, 3),  # fused multiply-adds alone
    "tf32": (torch.float32, 0, 0),
}
FLOAT, DOUBLE_BIAS, LINEAR_INPUT, PADDED_IO, UNPACKED = 0, 2, 0, 1, 0
INFERENCE, TRAINING, ADD = 0, 1, 0
# Arguments by letters: pointer, int, size_t, unsigned, float, unsigned long long.
KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int, "s": ctypes.c_size_t, "u": ctypes.c_uint}
KINDS |= {"f": ctypes.c_float, "q": ctypes.c_ulonglong}
SIGNATURES = {
    "cudnnCreate": "p",
    "cudnnSetStream": "pp",
    "cudnnCreateTensorDescriptor": "p",
    "cudnnSetTensorNdDescriptor": "piipp",
    "cudnnDestroyTensorDescriptor": "p",
    "cudnnCreateDropoutDescriptor": "p",
    "cudnnSetDropoutDescriptor": "ppfpsq",
    "cudnnDestroyDropoutDescriptor": "p",
    "cudnnCreateRNNDescriptor": "p",
    "cudnnSetRNNDescriptor_v8": "p" + 12 * "i" + "pu",
    "cudnnDestroyRNNDescriptor": "p",
    "cudnnCreateRNNDataDescriptor": "p",
    "cudnnSetRNNDataDescriptor": "p" + 5 * "i" + "pp",
    "cudnnDestroyRNNDataDescriptor": "p",
    "cudnnBuildRNNDynamic": "ppi",
    "cudnnGetRNNWeightSpaceSize": "ppp",
    "cudnnGetRNNTempSpaceSizes": "ppippp",
    "cudnnGetRNNWeightParams": "ppispipppp",
    "cudnnRNNForward": "ppi" + 11 * "p" + 3 * "sp",
    "cudnnRNNBackwardData_v8": 16 * "p" + 3 * "sp",
    "cudnnRNNBackwardWeights_v8": "ppi" + 7 * "p" + 3 * "sp",
}


class Library:
    """The library that torch has loaded. A call that does not succeed raises what cuDNN says."""

    def __init__(self) -> None:
        self.calls = ctypes.CDLL("libcudnn.so.9")
        self.calls.cudnnGetVersion.restype = ctypes.c_size_t
        self.calls.cudnnGetErrorString.restype = ctypes.c_char_p
        for name, letters in SIGNATURES.items():
            getattr(self.calls, name).argtypes = [KINDS[letter] for letter in letters]

    def __call__(self, name: str, *args: Any) -> None:
        status = getattr(self.calls, name)(*args)
        if status != 0:
            reason = self.calls.cudnnGetErrorString(status).decode()
            raise RuntimeError(f"{name}: {reason}")

    @functools.cached_property
    def handle(self) -> int:
        handle = ctypes.c_void_p()
        self("cudnnCreate", ctypes.byref(handle))
        assert handle.value is not None
        return handle.value

    def version(self) -> str:
        number = self.calls.cudnnGetVersion()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def descriptor(self, owner: object, kind: str) -> int:
        """One of its descriptors, which lives as long as the owner."""
        made = ctypes.c_void_p()
        self(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        assert made.value is not None
        weakref.finalize(owner, self, f"cudnnDestroy{kind}Descriptor", made.value)
        return made.value

    def size(self, name: str, *args: Any) -> int:
        out = ctypes.c_size_t()
        self(name, *args, ctypes.byref(out))
        return out.value


@functools.cache
def library() -> Library:
    return Library()


def ints(values: list[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


class Rnn:
    """A stack for x [T,B,C] by one algorithm, with the parameters of a torch.nn.LSTM or GRU.

    It starts from zeros. `backward` goes with the last `forward(training=True)`, and accumulates
    nothing: it clears the weights' gradients first, because cuDNN only adds to them.
    """

    def __init__(
        self,
        cell: str,
        algorithm: str,
        math: str,
        params: Mapping[str, Tensor],
        x: Tensor,
        layers: int = 1,
        directions: int = 1,
    ) -> None:
        self.call, self.cell = library(), cell
        dtype, data, math_type = MATHS[math]
        (T, B, C), H = x.shape, params["weight_hh_l0"].shape[1]
        self.H, self.layers, self.directions = H, layers, directions
        self.x = x.to(dtype).contiguous()
        self.rnn = self._describe(ALGORITHMS[algorithm], data, math_type, C)
        if ALGORITHMS[algorithm] == DYNAMIC:
            self.call("cudnnBuildRNNDynamic", self.call.handle, self.rnn, B)
        self.xs, self.ys = (self._tokens(data, T, B, width) for width in (C, directions * H))
        self.state = self._state(data, [layers * directions, B, H])
        empty = functools.partial(torch.empty, device=x.device)
        self.lengths = torch.full((B,), T, dtype=torch.int32, device=x.device)
        self.y, self.dx = empty(T, B, directions * H, dtype=dtype), torch.empty_like(self.x)
        self.hn = empty(2, layers * directions, B, H, dtype=dtype)
        size = self.call.size("cudnnGetRNNWeightSpaceSize", self.call.handle, self.rnn)
        self.weights, self.dweights = (
            torch.zeros(size // self.x.element_size(), dtype=dtype, device=x.device)
            for _ in range(2)
        )
        for name, rows, block in self._blocks(self.weights):
            block.copy_(params[name][rows].to(dtype))
        self.work: dict[bool, tuple[Tensor, Tensor]] = {}

    def _describe(self, algorithm: int, data: int, math_type: int, C: int) -> int:
        rnn, drop = (self.call.descriptor(self, kind) for kind in ("RNN", "Dropout"))
        self.call("cudnnSetDropoutDescriptor", drop, self.call.handle, 0.0, None, 0, 0)
        self.call(
            "cudnnSetRNNDescriptor_v8", rnn, algorithm, CELLS[self.cell], DOUBLE_BIAS,
            self.directions - 1, LINEAR_INPUT, data, FLOAT, math_type, C, self.H, self.H,
            self.layers, drop, PADDED_IO,
        )  # fmt: skip
        return rnn

    def _tokens(self, data: int, T: int, B: int, width: int) -> int:
        made = self.call.descriptor(self, "RNNData")
        sizes = (data, UNPACKED, T, B, width, ints(B * [T]), None)
        self.call("cudnnSetRNNDataDescriptor", made, *sizes)
        return made

    def _state(self, data: int, sizes: list[int]) -> int:
        made = self.call.descriptor(self, "Tensor")
        strides = [sizes[1] * sizes[2], sizes[2], 1]
        self.call("cudnnSetTensorNdDescriptor", made, data, 3, ints(sizes), ints(strides))
        return made

    def _blocks(self, space: Tensor) -> Iterator[tuple[str, slice, Tensor]]:
        """Torch's name, the rows of a gate in it, and where cuDNN keeps them in `space`."""
        gates, item, H = GATES[self.cell], space.element_size(), self.H
        matrix, bias = (self.call.descriptor(self, "Tensor") for _ in range(2))
        for pseudo in range(self.layers * self.directions):
            layer, backward = divmod(pseudo, self.directions)
            ending = f"_l{layer}" + backward * "_reverse"
            for linear in range(2 * gates):
                of = "ih" if linear < gates else "hh"
                at = [ctypes.c_void_p(), ctypes.c_void_p()]
                self.call(
                    "cudnnGetRNNWeightParams", self.call.handle, self.rnn, pseudo, space.nbytes,
                    space.data_ptr(), linear, matrix, ctypes.byref(at[0]), bias,
                    ctypes.byref(at[1]),
                )  # fmt: skip
                rows = slice(linear % gates * H, (linear % gates + 1) * H)
                columns = H
                if of == "ih":
                    columns = self.x.shape[2] if layer == 0 else self.directions * H
                for what, address, width in (("weight", at[0], columns), ("bias", at[1], 1)):
                    assert address.value is not None
                    first = (address.value - space.data_ptr()) // item
                    block = space[first : first + H * width]
                    name = f"{what}_{of}{ending}"
                    yield name, rows, block.view(H, width) if what == "weight" else block

    def _memory(self, training: bool) -> tuple[Tensor, Tensor]:
        """Workspace and reserve."""
        if training not in self.work:
            sizes = [ctypes.c_size_t(), ctypes.c_size_t()]
            self.call(
                "cudnnGetRNNTempSpaceSizes", self.call.handle, self.rnn, int(training), self.xs,
                *map(ctypes.byref, sizes),
            )  # fmt: skip
            work, reserve = (
                torch.empty(size.value, dtype=torch.uint8, device=self.x.device) for size in sizes
            )
            self.work[training] = work, reserve
        return self.work[training]

    def nbytes(self, training: bool) -> int:
        """What a call takes beside inputs and parameters."""
        gradients = [self.dx, self.dweights] if training else []
        return sum(made.nbytes for made in (self.y, *self._memory(training), *gradients))

    def _ends(self, training: bool) -> tuple[Any, ...]:
        work, reserve = self._memory(training)
        sizes = (work.nbytes, work.data_ptr(), reserve.nbytes, reserve.data_ptr() or None)
        self.call("cudnnSetStream", self.call.handle, torch.cuda.current_stream().cuda_stream)
        return sizes

    def forward(self, training: bool = False) -> Tensor:
        ends, h, c = self._ends(training), *(state.data_ptr() for state in self.hn)
        self.call(
            "cudnnRNNForward", self.call.handle, self.rnn, TRAINING if training else INFERENCE,
            self.lengths.data_ptr(), self.xs, self.x.data_ptr(), self.ys, self.y.data_ptr(),
            self.state, None, h, self.state, None, c if self.cell == "LSTM" else None,
            self.weights.nbytes, self.weights.data_ptr(), *ends,
        )  # fmt: skip
        return self.y

    def backward(self, dy: Tensor) -> None:
        ends = self._ends(True)
        self.call(
            "cudnnRNNBackwardData_v8", self.call.handle, self.rnn, self.lengths.data_ptr(), self.ys,
            self.y.data_ptr(), dy.data_ptr(), self.xs, self.dx.data_ptr(), self.state, None, None,
            None, self.state, None, None, None, self.weights.nbytes, self.weights.data_ptr(), *ends,
        )  # fmt: skip
        self.dweights.zero_()
        self.call(
            "cudnnRNNBackwardWeights_v8", self.call.handle, self.rnn, ADD, self.lengths.data_ptr(),
            self.xs, self.x.data_ptr(), self.state, None, self.ys, self.y.data_ptr(),
            self.dweights.nbytes, self.dweights.data_ptr(), *ends,
        )  # fmt: skip

    def gradients(self) -> dict[str, Tensor]:
        """x's and, by torch's names, the parameters' of the last `backward`."""
        parts: dict[str, list[Tensor]] = {}
        for name, _, block in self._blocks(self.dweights):
            parts.setdefault(name, []).append(block)
        return {"x": self.dx} | {name: torch.cat(blocks) for name, blocks in parts.items()}
