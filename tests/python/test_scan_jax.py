# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence in JAX: values, jit, vmap, and JAX's own convention of complex gradients."""

import itertools

import numpy as np
import pytest
import scanrnn
from support import assert_close, normal
from test_errors import raises

jax = pytest.importorskip("jax")
pytest.importorskip("jaxlib")
import jax.numpy as jnp  # noqa: E402
import scanrnn.jax as sj  # noqa: E402
from jax.test_util import check_grads  # noqa: E402
from test_jax import array, float64, same  # noqa: E402, F401  a fixture of all tests here

FORMS = ["linear", "complex", "log", "log_output"]
PLACES = [((7,), 0), ((7, 3), 0), ((3, 7), -1), ((2, 5, 3), 1), ((2, 5, 1, 2), 1)]


def complexes(*shape, seed=0):
    return array(*shape, seed=seed) + 1j * array(*shape, seed=seed + 9)


def resets(*shape):
    return jnp.asarray(normal(*shape, seed=6) > 0.8)


class Case:
    """A scan's arguments, the function of them, and the same by JAX's own operators."""

    def __init__(self, form, shape, axis=0, reverse=False, reset=None):
        self.form, self.axis = form, axis % len(shape)
        self.reverse, self.reset = reverse, reset
        beside = (*shape[: self.axis], *shape[self.axis + 1 :])
        draw = complexes if form == "complex" else array
        self.values = [draw(*shape), draw(*shape, seed=1), draw(*beside, seed=2)]
        self.sign, self.sign_h = (jnp.sign(array(*s, seed=3)) for s in (shape, beside))
        if form in ("log", "log_output"):
            self.values[:2] = (-abs(v) for v in self.values[:2])

    def scan(self, a, b, h_0):
        how = {"reverse": self.reverse, "axis": self.axis, "reset": self.reset}
        if self.form in ("linear", "complex"):
            return sj.scan(a, b, h_0, **how)
        if self.form == "log":
            return sj.scan_log(a, b, self.sign, h_0, **how)
        return sj.scan_log(a, b, self.sign, (h_0, self.sign_h), log_output=True, **how)[0]

    def exact(self, a, b, h_0):
        """jax.lax.associative_scan, of h_0 as a step before the others."""
        if self.form in ("log", "log_output"):
            a, b = jnp.exp(a), jnp.exp(b) * self.sign
        if self.form == "log_output":
            h_0 = jnp.exp(h_0) * self.sign_h
        axis = self.axis
        reset = False if self.reset is None else self.reset
        a = jnp.where(jnp.broadcast_to(reset, a.shape), 0, a)
        h_0 = jnp.expand_dims(h_0, axis)
        ends = ((a, jnp.ones_like(h_0)), (b, h_0))
        a, b = (jnp.concatenate(pair if self.reverse else pair[::-1], axis) for pair in ends)

        def joined(one, other):
            return other[0] * one[0], other[0] * one[1] + other[1]

        h = jax.lax.associative_scan(joined, (a, b), self.reverse, axis)[1]
        edge = slice(0, -1) if self.reverse else slice(1, None)
        h = h[(slice(None),) * axis + (edge,)]
        return jnp.log(abs(h)) if self.form == "log_output" else h


def exactly(case, seed):
    """The value and the gradients, by JAX's own operators."""
    wanted, pulled = jax.vjp(case.exact, *case.values)
    return wanted, *pulled(seed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_gradients(form, reverse):
    for shape, axis in PLACES:
        for reset in (None, resets(*shape)):
            case = Case(form, shape, axis, reverse, reset)
            got, pulled = jax.vjp(case.scan, *case.values)
            seed = complexes(*shape, seed=5) if form == "complex" else array(*shape, seed=5)
            wanted = jax.jit(exactly, static_argnums=0)(case, seed)
            for ours, theirs in zip((got, *pulled(seed)), wanted, strict=True):
                assert_close(ours, theirs, 1e-10, f"{shape} {axis}")
            assert_close(jax.jit(case.scan)(*case.values), got, 1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives(form):
    shape, axis = (2, 4, 2), 1
    case = Case(form, shape, axis, True, resets(2, 4, 1))

    def of(scan):
        def loss(*values):
            out = jax.vjp(scan, *values)[1](jnp.ones_like(values[0]))
            return sum((abs(v) ** 2).sum() for v in out)

        return jax.grad(loss, (0, 1, 2))(*case.values)

    for ours, theirs in zip(of(case.scan), of(case.exact), strict=True):
        assert_close(ours, theirs, 1e-8)
    check_grads(case.scan, tuple(case.values), order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reverse", [False, True])
def test_tangents(form, reverse):
    """Tangents of all arguments and of one alone, beside those of JAX's own operators."""
    arguments = itertools.cycle([(0, 1, 2), (0,), (1,), (2,), (0, 2)])
    places = PLACES[::2] if reverse else PLACES[1::2]
    for (shape, axis), with_reset in itertools.product(places, [False, True]):
        case = Case(form, shape, axis, reverse, resets(*shape) if with_reset else None)
        draw, which = complexes if form == "complex" else array, next(arguments)
        moved = [draw(*case.values[i].shape, seed=20 + i) for i in which]

        def along(scan, case=case, which=which, moved=moved):
            def function(*given):
                told = dict(zip(which, given, strict=True))
                return scan(*(told.get(i, value) for i, value in enumerate(case.values)))

            return jax.jvp(function, [case.values[i] for i in which], moved)

        got = along(case.scan)
        for ours, theirs in zip(got, along(case.exact), strict=True):
            assert_close(ours, theirs, 1e-10, f"{shape} {axis} {which}")
        if with_reset:
            jitted = jax.jit(along, static_argnums=0)(case.scan)
            for ours, theirs in zip(jitted, got, strict=True):
                assert_close(ours, theirs, 1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_one_mode_over_the_other(form):
    shape = (2, 4, 1)
    case = Case(form, shape, 1, False, resets(2, 4, 1))
    weights = array(*shape, seed=8)

    def curved(scan):
        return lambda *values: (abs(scan(*values)) ** 2 * weights).sum()

    if form == "complex":  # whose second derivatives JAX has by parts alone
        parts = [v for value in case.values for v in (value.real, value.imag)]

        def loss(scan):
            return lambda *p: curved(scan)(*(p[i] + 1j * p[i + 1] for i in (0, 2, 4)))
    else:
        parts, loss = case.values, curved
    every = tuple(range(len(parts)))
    wanted = jax.hessian(loss(case.exact), every)(*parts)
    modes = [(jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacfwd)]
    if form != "complex":
        modes.append((jax.jacfwd, jax.jacfwd))
    for outer, inner in modes:
        got = jax.jit(outer(inner(loss(case.scan), every), every))(*parts)
        for ours, theirs in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
            how = f"{outer.__name__} of {inner.__name__}"
            assert_close(ours, theirs, 1e-9, how, largest=1)  # some are zero


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_inside_jaxs_own_control_flow(form):
    """Tangents and gradients through lax.scan, jax.checkpoint and jax.linearize."""
    case = Case(form, (5, 3), 0, False, resets(5, 1))
    moved = [0.1 * v for v in case.values]

    def twice(scan):
        def call(a, b, h_0):
            @jax.checkpoint
            def step(h, _):
                y = scan(a, b, h)
                return y[-1], y

            return jax.lax.scan(step, h_0, None, 2)[1]

        return call

    ours, theirs = twice(case.scan), twice(case.exact)
    got, wanted = (jax.jvp(f, case.values, moved) for f in (ours, theirs))
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other, 1e-10)
    assert_close(jax.linearize(ours, *case.values)[1](*moved), wanted[1], 1e-10)
    seed = jnp.ones_like(got[0])
    pulled = [jax.vjp(f, *case.values)[1](seed) for f in (ours, theirs)]
    for one, other in zip(*pulled, strict=True):
        assert_close(one, other, 1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_vmap_of_every_argument(form):
    count, shape = 3, (2, 5, 3)
    case = Case(form, shape, 1)
    values = [jnp.stack([v * (1 + 0.1 * i) for i in range(count)], -1) for v in case.values]
    values.append(jnp.moveaxis(resets(count, 2, 5), 0, -1))

    def call(a, b, h_0, reset):
        case.reset = reset
        return case.scan(a, b, h_0)

    def gradient(*given):
        return jax.grad(lambda *v: abs(call(*v)).sum(), (0, 1, 2))(*given)

    def tangent(a, b, h_0, reset):
        return jax.jvp(lambda *v: call(*v, reset), (a, b, h_0), (0.5 * a, b, -h_0))[1]

    for mapped in [(1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]:
        given = [v if m else v[..., 0] for v, m in zip(values, mapped, strict=True)]
        each = [
            [v[..., i] if m else v for v, m in zip(given, mapped, strict=True)]
            for i in range(count)
        ]
        dims = tuple(-1 if m else None for m in mapped)
        for function in (call, gradient, tangent):
            got = jax.jit(jax.vmap(function, dims))(*given)
            wanted = jax.tree.map(lambda *v: jnp.stack(v), *(function(*e) for e in each))
            for ours, theirs in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
                assert_close(ours, theirs, 1e-11, str(mapped))
    none = [jnp.stack([v] * 2, 0)[:0] for v in case.values]
    for function, like in ((call, none[:1]), (gradient, none)):
        got = jax.tree.leaves(jax.vmap(function)(*none, jnp.zeros((0, *shape[:2], 1), bool)))
        assert [v.shape for v in got][: len(like)] == [v.shape for v in like]
    a = array(2, 4, 6, 3)
    both = jax.vmap(jax.vmap(sj.scan, (0, None)), (0, None))(a, a[0, 0])
    same(both, jnp.stack([jnp.stack([sj.scan(v, a[0, 0]) for v in w]) for w in a]))


def test_arrays_of_jax_in_scanrnns_own():
    a, b, h_0 = array(4, 9, 2), array(4, 9, 2, seed=1), array(4, 2)
    reset = normal(4, 9, seed=2) > 1
    host = [np.asarray(v) for v in (a, b, h_0)]
    for reverse in (False, True):
        wanted = scanrnn.scan(*host, reverse, axis=1, reset=reset, device="cpu")
        for given in (reset, jnp.asarray(reset)):
            for scan in (scanrnn.scan, sj.scan):
                got = scan(a, b, h_0, reverse, axis=1, reset=given)
                assert isinstance(got, jax.Array)
                same(got, wanted)
    assert sj.scan(a[:0], b[:0]).shape == (0, 9, 2)
    assert sj.scan(a[:, :0], b[:, :0], h_0, axis=1).shape == (4, 0, 2)
    same(jax.grad(lambda h: sj.scan(a[:, :0], b[:, :0], h, axis=1).sum())(h_0), 0 * h_0)
    log_h, sign = sj.scan_log(-abs(a), b, jnp.sign(a), log_output=True)
    same(sign * jnp.exp(log_h), sj.scan_log(-abs(a), b, jnp.sign(a)))


def test_errors():
    a = array(4, 3)
    with raises(ValueError, "axis: expected -2 to 1, an axis of a of shape .* got 2"):
        sj.scan(a, a, axis=2)
    with raises(ValueError, r"reset: expected shape \(4, 3\), \(4,\) or .* got \(3,\)"):
        sj.scan(a, a, reset=jnp.ones(3, bool))
    with raises(TypeError, "h_0: expected dtype complex128, got float64"):
        sj.scan(a + 0j, a + 0j, a[0])
    with raises(TypeError, "log_a: expected real numbers, got complex128"):
        sj.scan_log(a + 0j, a + 0j)
    with raises(TypeError, r"h_0: expected the pair \(log\|h_0\|, sign\)"):
        sj.scan_log(a, a, None, a[0], log_output=True)
    for first, second in [("a", "b"), ("log_a", "log_b")]:
        call = scanrnn.scan if first == "a" else scanrnn.scan_log
        with raises(TypeError, f"{second}: expected a JAX array, as {first} is one, got a NumPy"):
            call(a, np.ones((4, 3)))
    with raises(ValueError, "a: expected an array, got list"):
        sj.scan([1.0], a)


@pytest.mark.parametrize("scan_log", [sj.scan_log, scanrnn.scan_log])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_signs_that_are_known_are_checked(scan_log, dtype, monkeypatch):
    monkeypatch.setenv("SCANRNN_CHECK", "1")  # else those on a device are not looked at
    a = jnp.zeros((4, 3), dtype)

    def with_sign(value):
        return jnp.ones_like(a).at[2, 1].set(value)

    for value in (0.0, 0.5, -2.0, float("nan")):
        words = rf"sign_b: expected \+1 and -1 alone, got {value} at \(2, 1\)"
        with raises(ValueError, words):
            scan_log(a, a, with_sign(value))
        with raises(ValueError, rf"h_0\[1\]: expected \+1 and -1 alone, got {value} at \(1,\)"):
            scan_log(a, a, None, (a[0], with_sign(value)[2]), log_output=True)
    scan_log(a, a, with_sign(-1), (a[0], with_sign(-1)[2]), log_output=True)


def test_signs_that_are_traced_are_not_looked_at(monkeypatch):
    monkeypatch.setenv("SCANRNN_CHECK", "1")
    a = jnp.zeros((4, 3))
    signs = a + 0.5
    jax.jit(sj.scan_log)(a, a, signs)
    jax.vmap(sj.scan_log)(a[None], a[None], signs[None])
    jax.make_jaxpr(sj.scan_log)(a, a, signs)
    for known in (signs, np.asarray(signs)):  # though the call is traced
        with raises(ValueError, r"sign_b: expected \+1 and -1 alone, got 0.5 at \(0, 0\)"):
            jax.jit(lambda a, known=known: sj.scan_log(a, a, known))(a)
        with raises(ValueError, r"sign_b: expected \+1 and -1 alone, got 0.5 at \(0, 0\)"):
            jax.grad(lambda a, known=known: sj.scan_log(a, a, known).sum())(a)
    signs = jnp.sign(signs)
    same(jax.jit(lambda a: sj.scan_log(a, a, signs))(a), sj.scan_log(a, a, signs))
