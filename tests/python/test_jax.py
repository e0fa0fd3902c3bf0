# SPDX-License-Identifier: Apache-2.0
"""scanrnn.jax, and JAX's arrays in scanrnn's own layers: values, transformations, errors."""

import copy
import inspect
import pickle
import re
import shutil
import subprocess
import types
from pathlib import Path

import numpy as np
import pytest
from scanrnn import _core, profile
from scanrnn.registry import version
from support import (
    ALL_CELLS,
    ALL_VARIANTS,
    DEVICE,
    INFO,
    assert_close,
    construct,
    make,
    normal,
    normal_states,
    tolerance,
)
from test_errors import raises

jax = pytest.importorskip("jax")
if DEVICE == "cpu":
    jax.config.update("jax_platforms", "cpu")
elif jax.default_backend() == "cpu":
    pytest.skip("this JAX has no GPU", allow_module_level=True)
import jax.numpy as jnp  # noqa: E402
import jax.test_util  # noqa: E402
import scanrnn.jax as sj  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def float64():
    """JAX makes float32 of it otherwise, here and in no other module."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


DTYPES = ["float64", "float32", "bfloat16", "float16"]


def layer(cell, *sizes, variant=None, dtype="float64", **options):
    rnn = construct(sj, cell, *sizes, variant=variant, dtype=dtype, **options)
    return rnn, rnn.init(jax.random.key(0))


def array(*shape, dtype="float64", seed=0):
    return jnp.asarray(normal(*shape, dtype=np.float64, seed=seed), jnp.dtype(dtype))


def state(rnn, *batch, dtype="float64"):
    d = rnn.description
    shape = d.num_layers * (2 if d.bidirectional else 1), *batch, d.hidden_size
    states = [jnp.asarray(part, dtype) for part in normal_states(d.cell, *shape, seed=1)]
    return states[0] if len(states) == 1 else tuple(states)


def without_scale(h_0):
    """What gradients of a state are checked by differences, and the m of four, a constant."""
    return (h_0[:3], h_0[3:]) if isinstance(h_0, tuple) and len(h_0) == 4 else (h_0, ())


def squares(h_n):
    """The sum of squares of all states whose gradients are what differences give."""
    leaves = jax.tree.leaves(h_n)
    return sum((h * h).sum() for h in (leaves[:1] if len(leaves) == 4 else leaves))


def numpy(value):
    return np.asarray(value).astype(np.float64)


def same(got, wanted, share=1e-12):
    got, wanted = jax.tree.leaves(got), jax.tree.leaves(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert_close(numpy(g), numpy(w), share)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_values_are_those_of_the_plain_layers(cell, dtype):
    rnn, params = layer(cell, 4, 6, 2, bidirectional=True, dtype=dtype)
    plain = make(cell, 4, 6, num_layers=2, bidirectional=True, dtype=dtype)
    plain.load_state_dict({name: np.asarray(value) for name, value in params.items()})
    x, h_0 = array(9, 3, rnn.input_size, dtype=dtype), state(rnn, 3, dtype=dtype)
    got = rnn(params, x, h_0)
    wanted = plain(np.asarray(x), jax.tree.map(np.asarray, h_0))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert isinstance(g, jax.Array)
        assert (g.dtype, g.devices()) == (x.dtype, x.devices())
        if DEVICE == "cpu":
            np.testing.assert_array_equal(numpy(g), numpy(w))
        # On CUDA the algorithm of a matrix product goes by how its memory is aligned.
        assert_close(numpy(g), numpy(w), tolerance(dtype, 9))
    for g, w in zip(
        jax.tree.leaves(jax.jit(rnn)(params, x, h_0)), jax.tree.leaves(got), strict=True
    ):
        np.testing.assert_array_equal(numpy(g), numpy(w))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_arrays_of_jax_in_plain_layers(cell, dtype):
    plain = make(cell, 4, 6, num_layers=2, dtype=dtype)
    x = array(9, 3, plain.input_size, dtype=dtype)
    h_0 = state(layer(cell, 4, 6, 2, dtype=dtype)[0], 3, dtype=dtype)
    host = np.asarray(x), jax.tree.map(np.asarray, h_0)
    (y, h_n), pullback = plain.vjp(x, h_0)
    (y_np, h_np), pullback_np = plain.vjp(*host)
    results = [
        plain(x, h_0),
        (y, h_n),
        pullback(jnp.ones_like(y), jax.tree.map(jnp.ones_like, h_n)),
    ]
    ones = np.ones_like(y_np), jax.tree.map(np.ones_like, h_np)
    wanted = [plain(*host), (y_np, h_np), pullback_np(*ones)]
    for got, w in zip(jax.tree.leaves(results), jax.tree.leaves(wanted), strict=True):
        assert isinstance(got, jax.Array)
        assert_close(numpy(got), numpy(w), tolerance(dtype, 9))
    same(plain.step(x[0], h_0), plain.step(host[0][0], host[1]), tolerance(dtype, 1))
    same(jax.jit(plain)(x, h_0), plain(x, h_0), 0)
    same(plain(x[:, 0])[0], plain(x[:, :1])[0][:, 0], tolerance(dtype, 9))
    same(pullback(None)[0], np.zeros(x.shape), 0)


@pytest.mark.parametrize("variant", ALL_VARIANTS, ids="-".join)
def test_gradients(variant):
    cell, variant = variant
    rnn, params = layer(cell, 3, 5, 2, variant=variant, batch_first=True)
    x, (h_0, scale) = array(2, 7, rnn.input_size), without_scale(state(rnn, 2))

    def loss(params, x, h_0):
        y, h_n = rnn(params, x, (*h_0, *scale) if scale else h_0)
        return (y**2).sum() + squares(h_n)

    # Steps this small cross no kink of a relu.
    jax.test_util.check_grads(loss, (params, x, h_0), 1, modes=["rev"], rtol=1e-6, eps=1e-6)
    same(jax.jit(jax.grad(loss))(params, x, h_0), jax.grad(loss)(params, x, h_0))


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_vmap(cell):
    rnn, params = layer(cell, 4, 6)
    x = array(5, 9, 3, rnn.input_size)
    same(jax.vmap(rnn, (None, 0))(params, x)[0], jnp.stack([rnn(params, v)[0] for v in x]))

    def loss(params, x):
        return (rnn(params, x)[0] ** 2).sum()

    each = [jax.grad(loss)(params, v) for v in x]
    got = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, x)
    same(got, jax.tree.map(lambda *v: jnp.stack(v), *each))


def test_errors():
    rnn, params = layer("MinGRU", 4, 6, dtype="float32")
    x = array(9, 3, 4, dtype="float32")
    with raises(TypeError, "x: expected dtype float32, got float64; nothing is cast"):
        rnn(params, x.astype("float64"))
    with raises(ValueError, r"x: expected \(T, B, C\).* C = 4", r"got shape \(9, 3, 5\)"):
        rnn(params, array(9, 3, 5, dtype="float32"))
    with raises(ValueError, r"h_0: expected shape \(1, 3, 6\)", r"got shape \(1, 2, 6\)"):
        rnn(params, x, array(1, 2, 6, dtype="float32"))
    with raises(TypeError, "h_0: expected an array, got 2 of them"):
        rnn(params, x, (x, x))
    with raises(ValueError, r"weight_ih_l0: expected shape \(12, 4\)", "got list"):
        rnn(params | {"weight_ih_l0": []}, x)
    with raises(ValueError, r"params: missing \['bias_ih_l0'\], unexpected \['bias'\]"):
        rnn({"weight_ih_l0": params["weight_ih_l0"], "bias": 0}, x)
    with raises(TypeError, "MinGRU: unexpected argument 'activation'"):
        layer("MinGRU", 4, 6, activation="tanh")
    with raises(ValueError, "nonlinearity: expected one of 'tanh', 'relu'", "got 'gelu'"):
        layer("RNN", 4, 6, nonlinearity="gelu")
    for changed, kind, parts in [
        ({"domain": "linear"}, ValueError, ("domain: GRU is no scan",)),
        ({"strategy": "fastest"}, ValueError, ("strategy: expected one of 'direct'", "'fastest'")),
        ({"strategy": 1}, TypeError, ("strategy: expected a string, got 1",)),
        ({"dtype": "int32"}, ValueError, ("dtype: expected one of 'float64'", "got 'int32'")),
        ({"dtype": "nonsense"}, ValueError, ("dtype: expected one of 'float64'", "'nonsense'")),
    ]:
        with raises(kind, *parts):
            sj.GRU(4, 6, **changed)
    with raises(TypeError, "candidate: expected a string, got 1"):
        sj.MinGRU(4, 6, candidate=1)
    with raises(TypeError, "params: expected a dict, got list"):
        rnn([], x)
    for b in (x[1:], None):
        with raises(ValueError, r"b: expected (shape \(9, 3, 4\) .* \(8, |an array.* NoneType)"):
            sj.scan(x, b)
    with raises(TypeError, "x: expected sizes that are known when a function is traced"):
        shape = jax.export.symbolic_shape("t, 3, 4")
        jax.export.export(jax.jit(lambda v: rnn(params, v)[0]))(
            jax.ShapeDtypeStruct(shape, x.dtype)
        )


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_a_layer_says_what_it_is(cell):
    kind, own = INFO[cell].made_by()
    variant = INFO[cell].variants[-1]
    rnn, _ = layer(cell, 6, 6, variant=variant)
    given = {INFO[cell].variant_option: variant} | own
    again = eval(repr(rnn), vars(sj).copy())
    assert (again.description, repr(again)) == (rnn.description, repr(rnn))
    assert rnn.description.cell == cell
    found = inspect.signature(getattr(sj, kind)).parameters
    for name, default in INFO[kind].own_options().items():
        assert found[name].default == default
        assert getattr(rnn, name) == given.get(name, default)
    with raises(TypeError, f"{kind}: unexpected argument 'projections'"):
        getattr(sj, kind)(6, 6, projections=True)


def test_a_layer_is_fixed_once_it_is_made():
    rnn, params = layer("GRU", 4, 6, 2, zoneout=0.5)
    for again in (rnn, copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert (again.hidden_size, again.num_layers, again.bidirectional) == (6, 2, False)
        for name, value in (("zoneout", 0.0), ("hidden_size", 6), ("dtype", "float32")):
            with raises(AttributeError, f"{name}: a layer is fixed once it is made, got {value!r}"):
                setattr(again, name, value)
        with raises(AttributeError, "'GRU' object has no attribute 'units'"):
            again.units  # noqa: B018
        again.mine = 3
    x = array(9, 3, 4)
    got = rnn(types.MappingProxyType(params), x)[0]
    np.testing.assert_array_equal(got, rnn(params, x)[0])


def test_options_that_make_another_cell():
    with raises(TypeError, "peephole: expected True or False, got 1"):
        sj.SRU(4, 6, peephole=1)
    with raises(
        ValueError, "domain: SRU with peephole=True is no scan and has no choice, got 'linear'"
    ):
        sj.SRU(4, 6, peephole=True, domain="linear")
    with raises(ValueError, "hidden_size: RGLRU reads x of its own unit.* input_size, 4, got 6"):
        sj.RGLRU(4, 6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_initial_values(dtype):
    """Others as torch's; RG-LRU's decays are drawn in float32 at least and then rounded."""
    _, params = layer("RGLRU", 512, 512, dtype=dtype)
    bound = 1 / np.sqrt(512)
    for name in ("weight_ih_l0", "bias_ih_l0"):
        assert 0.98 * bound < np.abs(numpy(params[name])).max() <= bound * 1.01
    assert {value.dtype for value in params.values()} == {jnp.dtype(dtype)}
    decay = np.exp(-8 * np.logaddexp(0, numpy(params["weight_a_l0"])))
    rounded = 8 * float(jnp.finfo(dtype).eps)
    assert abs(decay.min() - 0.9) < 0.002 + rounded
    assert abs(decay.max() - 0.999) < 0.002 + rounded


def test_float64_wants_to_be_allowed():
    jax.config.update("jax_enable_x64", False)
    try:
        with raises(ValueError, "dtype: float64 arrays want .*jax_enable_x64"):
            sj.GRU(4, 6, dtype="float64")
    finally:
        jax.config.update("jax_enable_x64", True)


def test_derivatives_that_are_not_there():
    rnn, params = layer("SRU", 4, 6)
    x = array(9, 3, 4)

    with raises(TypeError, "can't apply forward-mode"):
        jax.jvp(lambda x: rnn(params, x)[0], (x,), (x,))
    with raises(NotImplementedError, "scanrnn's own layers have vjp: use scanrnn.jax"):
        jax.grad(lambda x: make("SRU", 4, 6, dtype="float64")(x)[0].sum())(x)


def test_errors_of_plain_layers():
    """Before anything is traced or run, and as of every other array."""
    x = array(9, 3, 4, dtype="float32")
    plain = make("MinGRU", 4, 6)
    with raises(TypeError, "x: expected dtype float32, got float64; nothing is cast"):
        plain(x.astype("float64"))
    with raises(TypeError, "h_0: expected a JAX array, as x is one, got a NumPy array"):
        plain(x, normal(1, 3, 6))
    (y, h_n), pullback = plain.vjp(x)
    for call, parts in [
        (lambda: plain(x[..., 1:]), (r"x: expected shape \(9, 3, 4\)", r"got shape \(9, 3, 3\)")),
        (lambda: plain(x, y), (r"h_0: expected shape \(1, 3, 6\) = ", r"got shape \(9, 3, 6\)")),
        (lambda: pullback(y[1:]), (r"dy: expected shape \(9, 3, 6\)", r"got shape \(8, 3, 6\)")),
        (lambda: pullback(y, y), (r"dh_n: expected shape \(1, 3, 6\)", r"got shape \(9, 3, 6\)")),
        (lambda: plain.step(x[0, :, 1:]), (r"x_t: expected shape \(3, 4\)", r"\(3, 3\)")),
        (lambda: plain.step(x[0], y), (r"h: expected shape \(1, 3, 6\)", r"\(9, 3, 6\)")),
        (
            lambda: make("GRU", 4, 6, bidirectional=True).step(x[0]),
            ("step: a bidirectional layer needs the whole sequence",),
        ),
        (
            lambda: make("LSTM", 4, 6)(x, (h_n, None)),
            (r"c_0: the state of LSTM is the pair \(h_0, c_0\), got h_0 alone",),
        ),
    ]:
        with raises(ValueError, *parts):
            call()


def test_plans_that_are_kept_follow_the_profile():
    """XLA's handlers keep plans between calls: those of the profile that holds. On the CPU the
    ways to run a layer round differently, so the bits tell."""
    rnn, params = layer("MinGRU", 4, 8, dtype="float32")
    plain = make("MinGRU", 4, 8, dtype="float32")
    plain.load_state_dict({name: np.asarray(value) for name, value in params.items()})
    x, device = array(4096, 1, 4, dtype="float32"), _core.Device(DEVICE)
    before, found = _core.profile(device), []
    strategies = ["parallel_scan", "fused_sequential"]
    try:
        for strategy in strategies * 2:
            rule = {
                "strategy": strategy,
                "runner_up": "direct",
                "across_blocks": False,
                "margin": 2,
            }
            content = {"name": strategy, "version": version(), "rules": [rule]}
            _core.set_profile(device, profile.parse(content, "the test"))
            assert plain.plan(4096, 1).strategy == strategy
            found.append(numpy(rnn(params, x)[0]))
            if DEVICE == "cpu":
                np.testing.assert_array_equal(found[-1], numpy(plain(np.asarray(x))[0]))
    finally:
        _core.set_profile(device, before)
    if DEVICE == "cpu":  # a GPU's block walks its states as the sequential kernel does
        assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(found[:2], found[2:])


USED = {
    "XLA_FFI_Extension_Base": ("type", "next"),
    "XLA_FFI_Api_Version": ("major_version", "minor_version"),
    "XLA_FFI_Metadata": ("api_version", "traits"),
    "XLA_FFI_Metadata_Extension": ("metadata",),
    "XLA_FFI_Error_Create_Args": ("message", "errc"),
    "XLA_FFI_Stream_Get_Args": ("ctx", "stream"),
    "XLA_FFI_Api": ("XLA_FFI_Error_Create", "XLA_FFI_Stream_Get", "api_version"),
    "XLA_FFI_Buffer": ("dtype", "data", "rank", "dims"),
    "XLA_FFI_Args": ("size", "types", "args"),
    "XLA_FFI_Rets": ("size", "types", "rets"),
    "XLA_FFI_ByteSpan": ("ptr", "len"),
    "XLA_FFI_Scalar": ("dtype", "value"),
    "XLA_FFI_Attrs": ("size", "types", "names", "attrs"),
    "XLA_FFI_CallFrame": ("api", "ctx", "stage", "args", "rets", "attrs"),
}
SAME_VALUE = (
    "XLA_FFI_DataType_S64", "XLA_FFI_DataType_U32", "XLA_FFI_DataType_U8",
    "XLA_FFI_DataType_F16", "XLA_FFI_DataType_F32",
    "XLA_FFI_DataType_F64", "XLA_FFI_DataType_BF16", "XLA_FFI_AttrType_SCALAR",
    "XLA_FFI_AttrType_STRING", "XLA_FFI_ExecutionStage_EXECUTE", "XLA_FFI_Extension_Metadata",
    "XLA_FFI_Error_Code_INVALID_ARGUMENT", "XLA_FFI_Error_Code_INTERNAL",
)  # fmt: skip


def test_the_binary_interface_is_that_of_this_jaxlib(tmp_path):
    """The header that we build with against the one of the jaxlib here, by the compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    ours = Path(__file__).parents[2] / "python/third_party/xla/ffi/api/c_api.h"
    theirs = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    lines = ["#include <cstddef>", "#include <cstdint>"]
    for name, header in {"ours": ours, "theirs": theirs}.items():
        lines += ["#undef XLA_FFI_API_C_API_H_", "#undef XLA_FFI_STRUCT_SIZE"]
        lines += ["#undef XLA_FFI_DEFINE_STRUCT_TRAITS", f"namespace {name} {{"]
        lines += [f'#include "{header}"', "constexpr int major = XLA_FFI_API_MAJOR;"]
        lines += ["}", "#undef XLA_FFI_API_MAJOR", "#undef XLA_FFI_API_MINOR"]
    declared = theirs.read_text(encoding="utf-8")
    kinds = [kind for kind in USED if re.search(rf"\b{kind}\b", declared)]
    assert len(kinds) >= len(USED) - 1  # a later XLA has another name for one
    for kind in kinds:
        for field in USED[kind]:
            one, other = (f"{which}::{kind}" for which in ("ours", "theirs"))
            lines.append(f"static_assert(offsetof({one}, {field}) == offsetof({other}, {field}));")
            lines.append(f"static_assert(sizeof({one}::{field}) == sizeof({other}::{field}));")
    for name in SAME_VALUE:
        lines.append(f"static_assert(int(ours::{name}) == int(theirs::{name}));")
    lines.append("static_assert(ours::major == theirs::major);")
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join(lines))
    command = [compiler, "-std=c++17", "-fsyntax-only", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    broken = source.read_text().replace(
        "offsetof(ours::XLA_FFI_Buffer, data)", "offsetof(ours::XLA_FFI_Buffer, rank)"
    )
    source.write_text(broken)
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
