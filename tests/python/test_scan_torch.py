# SPDX-License-Identifier: Apache-2.0
"""The bare recurrence in torch: values, derivatives of every order, transformations."""

import numpy as np
import pytest
import reference
import scanrnn
from support import DEVICE, assert_close, normal, tolerance
from test_errors import raises
from test_torch_transforms import Seen
from torch_support import COMPILES, GPU, same, st, tensor, torch

FORMS = ["linear", "complex", "log", "log_output"]


def complexes(*shape, seed=0, grad=False):
    out = torch.complex(tensor(*shape, seed=seed), tensor(*shape, seed=seed + 9))
    return out.requires_grad_(grad)


class Case:
    """A scan's leaves, and a function of them: values that are far from where signs change."""

    def __init__(self, form, shape, axis=0, reverse=False, reset=None, start=True):
        axis %= len(shape)
        beside = (*shape[:axis], *shape[axis + 1 :])
        self.how = {"reverse": reverse, "axis": axis, "reset": reset}
        self.form = form
        draw = complexes if form == "complex" else tensor
        leaves = [draw(*shape), draw(*shape, seed=1), draw(*beside, seed=2)]
        self.sign, self.sign_h = tensor(*shape, seed=3).sign(), tensor(*beside, seed=4).sign()
        if form in ("log", "log_output"):
            leaves[:2] = (-v.abs() for v in leaves[:2])
        self.leaves = [v.detach().requires_grad_() for v in leaves[: 3 if start else 2]]

    def scan(self, a, b, h_0=None):
        if self.form in ("linear", "complex"):
            return st.scan(a, b, h_0, **self.how)
        if self.form == "log":
            return st.scan_log(a, b, self.sign, h_0, **self.how)
        start = None if h_0 is None else (h_0, self.sign_h)
        return st.scan_log(a, b, self.sign, start, log_output=True, **self.how)[0]

    def loop(self, a, b, h_0=None):
        """Step by step, by torch's own operators."""
        axis, reset = self.how["axis"], self.how["reset"]
        if self.form in ("log", "log_output"):
            a, b = a.exp(), b.exp() * self.sign
        if self.form == "log_output" and h_0 is not None:
            h_0 = h_0.exp() * self.sign_h
        a, b = a.movedim(axis, 0), b.movedim(axis, 0)
        h = torch.zeros_like(a[0]) if h_0 is None else h_0
        out = [None] * len(a)
        for t in range(len(a))[:: -1 if self.how["reverse"] else 1]:
            keep = h if reset is None else torch.where(reset.movedim(axis, 0)[t], 0, h)
            h = out[t] = a[t] * keep + b[t]
        h = torch.stack(out, axis)
        return h.abs().log() if self.form == "log_output" else h


def resets(*shape):
    return torch.tensor(normal(*shape, seed=6) > 0.8, device=DEVICE)


def same_as_loop(form, shape, *how):
    case = Case(form, shape, *how)
    got, wanted = case.scan(*case.leaves), case.loop(*case.leaves)
    same([got.detach().abs()], [wanted.detach().abs()], 1e-11)
    seed = torch.ones_like(got) * (0.3 + 0.7j if form == "complex" else 0.7)
    pairs = [torch.autograd.grad(v, case.leaves, seed) for v in (got, wanted)]
    for ours, theirs in zip(*pairs, strict=True):
        assert_close(ours.cpu(), theirs.cpu(), 1e-9, f"{shape} {how}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_gradients_are_those_of_a_loop(form, reverse):
    for shape, axis in [((7,), 0), ((7, 3), 0), ((3, 7), -1), ((2, 7, 3), 1), ((2, 3, 2, 5), 2)]:
        for reset in (None, resets(*shape)):
            for start in (True, False):
                same_as_loop(form, shape, axis, reverse, reset, start)


@pytest.mark.parametrize("form", FORMS[:3])  # of so many logarithms some are of almost nothing
@pytest.mark.parametrize("reverse", [False, True])
def test_many_short_rows(form, reverse):
    for shape in [(4300, 21), (2, 2200, 33)]:
        for reset in (None, resets(*shape)):
            same_as_loop(form, shape, -1, reverse, reset)


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_so_many_that_a_lane_walks_several_as_one(form, reverse):
    shape = (90001 if DEVICE == "cuda" else 901, 24)
    for reset in (None, resets(*shape)):
        same_as_loop(form, shape, -1, reverse, reset)


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_few_steps(form, steps):
    for shape, axis in [((steps, 300), 0), ((3, steps, 130), 1), ((300, steps), -1)]:
        for reset in (None, resets(*shape)):
            same_as_loop(form, shape, axis, steps % 2 == 0, reset)


@COMPILES
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("scan", [st.scan, lambda a, b, h, *how: st.scan_log(a, b, None, h, *how)])
def test_derivatives_of_no_steps(scan, reverse):
    a = torch.zeros(0, 3, device=DEVICE, requires_grad=True)
    h = torch.ones(3, device=DEVICE, requires_grad=True)
    given = torch.autograd.grad(scan(a, a, h, reverse).sum(), [a, h], create_graph=True)
    same(given, [torch.zeros_like(a), torch.zeros_like(h)])
    of_h = torch.autograd.grad(given[1].sum(), [a, h], allow_unused=True)
    assert all(found is None or not found.any() for found in of_h)
    moved = torch.func.jvp(lambda x: scan(x, x, h.detach(), reverse), (a.detach(),), (a.detach(),))
    assert [tuple(found.shape) for found in moved] == [(0, 3), (0, 3)]


def test_a_reset_of_numpy_may_run_backwards():
    a, reset = torch.rand(4, 3, device=DEVICE), np.array([True, False, False, True])
    there = torch.tensor(reset[::-1].copy(), device=DEVICE)
    same([st.scan(a, a, reset=reset[::-1])], [st.scan(a, a, reset=there)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "axis", "reverse"), [((5, 2), 0, True), ((2, 4), -1, False)])
def test_gradcheck(form, shape, axis, reverse):
    for reset in (None, resets(*shape)):
        case = Case(form, shape, axis, reverse, reset)
        assert torch.autograd.gradcheck(case.scan, case.leaves)
        assert torch.autograd.gradgradcheck(case.scan, case.leaves)
    case = Case(form, shape, axis, reverse, start=False)
    assert torch.autograd.gradcheck(case.scan, case.leaves)
    assert torch.autograd.gradgradcheck(case.scan, case.leaves)


def test_one_gradient_alone():
    case = Case("linear", (6, 3))
    wanted = torch.autograd.grad(case.scan(*case.leaves).square().sum(), case.leaves)
    for index in range(3):
        leaves = [v.detach() for v in case.leaves]
        leaves[index].requires_grad_()
        case.scan(*leaves).square().sum().backward()
        same([leaves[index].grad], [wanted[index]])
    third = Case("linear", (4,), start=False)
    loss = third.scan(*third.leaves).pow(3).sum()
    for _ in range(3):
        loss = sum(g.sum() for g in torch.autograd.grad(loss, third.leaves, create_graph=True))
    other = third.loop(*third.leaves).pow(3).sum()
    for _ in range(3):
        other = sum(g.sum() for g in torch.autograd.grad(other, third.leaves, create_graph=True))
    same([loss], [other], 1e-9)


def test_tensors_in_both_ways_in():
    """scanrnn.scan and scanrnn.torch.scan, in narrow dtypes, too, and with NumPy's resets."""
    a, b, h_0 = tensor(6, 20, 3), tensor(6, 20, 3, seed=1), tensor(6, 3)
    reset = normal(6, 20, seed=2) > 1
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        given = [(v / 4).to(dtype) for v in (a, b, h_0)]
        arrays = [v.double().cpu().numpy() for v in given]
        wanted = reference.scan(*arrays, axis=1, reset=np.broadcast_to(reset[..., None], a.shape))
        for scan in (st.scan, scanrnn.scan):
            got = scan(*given, axis=1, reset=reset)
            assert got.dtype == dtype
            assert got.device == a.device
            bound = tolerance(str(dtype).partition(".")[2], 20)
            assert_close(got.double().cpu(), wanted, bound, str(dtype))
            same([scan(*given, axis=1, reset=torch.tensor(reset, device=DEVICE))], [got], 0)
    z = complexes(9, 3)
    same([st.scan(z.conj(), z).abs()], [st.scan(z.conj().resolve_conj(), z).abs()], 0)
    with raises(TypeError, "a: expected a plain tensor: pass it by .resolve_conj"):
        scanrnn.scan(z.conj(), z)
    same([st.scan(a.mT, b.mT).mT], [st.scan(a, b)])
    assert st.scan(a[:0], b[:0]).shape == (0, 20, 3)
    start = tensor(3, grad=True)
    st.scan(a[0, :0], b[0, :0], start).sum().backward()
    same([start.grad], [torch.zeros(3)], 0)


# ---- torch's transformations


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form):
    case = Case(form, (4, 6, 2), 1, True, resets(4, 6, 1))
    a, b, h_0 = case.leaves
    name = "linear" if form == "complex" else form
    linear, logs = name == "linear", name == "log_output"
    call = (
        name, True, 1, a, b, None if linear else case.sign, case.how["reset"], h_0,
        case.sign_h if logs else None,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.scanrnn.scan.default, call)
    h, sign_h = torch.ops.scanrnn.scan(*call)
    call = [v.detach().requires_grad_(v.requires_grad) if torch.is_tensor(v) else v for v in call]
    call[4] = None if linear else call[4]
    for needs in ([True, True, True], [True, False, True]):
        arguments = (
            *call, h.detach().requires_grad_(), sign_h if logs else None,
            torch.ones_like(h).requires_grad_(), needs,
        )  # fmt: skip
        torch.library.opcheck(torch.ops.scanrnn.scan_backward.default, arguments)


@pytest.mark.parametrize("form", FORMS)
def test_vmap_of_every_argument(form):
    """Mapped axes in any place, and what is not mapped, are calls one by one."""
    count, shape, axis = 3, (4, 6, 2), 1
    reset = resets(count, 4, 6)
    cases = [Case(form, shape, axis) for _ in range(count)]
    values = [[v * (1 + 0.1 * i) for v in case.leaves] for i, case in enumerate(cases)]
    for mapped in [(1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]:

        def call(a, b, h_0, reset, case=cases[0]):
            case.how["reset"] = reset
            return case.scan(a, b, h_0)

        each = [[*v, r] for v, r in zip(values, reset, strict=True)]
        given = [
            torch.stack([e[i] for e in each]).movedim(0, -1).detach() if m else each[0][i].detach()
            for i, m in enumerate(mapped)
        ]
        wanted = torch.stack(
            [call(*(e[i] if m else each[0][i] for i, m in enumerate(mapped))) for e in each]
        )
        in_dims = tuple(-1 if m else None for m in mapped)
        same([torch.vmap(call, in_dims)(*given).abs()], [wanted.abs()], 1e-12)
        leaves = [v.requires_grad_() for v in given[:3]]
        got = torch.vmap(call, in_dims)(*leaves, given[3]).abs().sum()
        wanted = sum(
            call(*(
                v.select(-1, index) if m else v
                for v, m in zip((*leaves, given[3]), mapped, strict=True)
            )).abs().sum()
            for index in range(count)
        )  # fmt: skip
        pairs = [torch.autograd.grad(v, leaves) for v in (got, wanted)]
        for ours, theirs in zip(*pairs, strict=True):
            assert_close(ours.cpu(), theirs.cpu(), 1e-11, str(mapped))


@COMPILES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(form, dynamic):
    def loss(case, *leaves):
        return case.scan(*(v * 0.5 for v in leaves)).abs().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for size in (6, 6, 9) if dynamic else (6,):
        case = Case(form, (2, size, 3), 1, True, resets(2, size, 1))
        pairs = [torch.autograd.grad(f(case, *case.leaves), case.leaves) for f in (loss, compiled)]
        for ours, theirs in zip(*pairs, strict=True):
            assert_close(theirs.cpu(), ours.cpu(), 1e-12)
    torch.compiler.reset()


@COMPILES
def test_export():
    class Module(torch.nn.Module):
        def forward(self, a, b, reset):
            return st.scan(a, b, axis=-1, reset=reset) * 2

    given = tensor(3, 9), tensor(3, 9, seed=1), resets(9)
    exported = torch.export.export(Module(), given).module()
    same([exported(*given)], [Module()(*given)], 0)


def test_eager_mode_is_the_operator():
    """Bit for bit, forward and backward."""
    for form in FORMS:
        case = Case(form, (4, 6, 2), 1)
        h = case.scan(*case.leaves)
        plain = [h, *torch.autograd.grad(h.abs().sum(), case.leaves)]
        with Seen() as seen:
            h = case.scan(*case.leaves)
            looked_at = [h, *torch.autograd.grad(h.abs().sum(), case.leaves)]
        assert seen.names == ["scan", "scan_backward"]
        for ours, theirs in zip(plain, looked_at, strict=True):
            assert torch.equal(ours, theirs)


# ---- signs


ALONE = r"^{}: expected \+1 and -1 alone, got {} at \({}\)"
PLAIN = torch.zeros(4, 3)


def with_sign(value, dtype=torch.float32, device="cpu"):
    signs = torch.ones(4, 3, dtype=dtype, device=device)
    signs[2, 1] = value
    return signs


@pytest.mark.parametrize("scan_log", [st.scan_log, scanrnn.scan_log])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_signs_on_the_cpu_are_checked(scan_log, dtype):
    a = PLAIN.to(dtype)
    for value in (0.0, 0.5, -2.0, float("nan")):
        with pytest.raises(ValueError, match=ALONE.format("sign_b", value, "2, 1")):
            scan_log(a, a, with_sign(value, dtype))
        sign_h = with_sign(value, dtype)[2]
        with pytest.raises(ValueError, match=ALONE.format(r"h_0\[1\]", value, "1,")):
            scan_log(a, a, None, (a[0], sign_h), log_output=True)
    signs = with_sign(-1.0, dtype)
    scan_log(a, a, signs, (a[0], signs[2]), log_output=True)
    scan_log(a[:0], a[:0], signs[:0])


def test_signs_are_checked_whatever_their_memory():
    signs = with_sign(0.5).repeat(2, 2)[::2, ::2]
    with pytest.raises(ValueError, match=ALONE.format("sign_b", 0.5, "1, 2")):
        st.scan_log(PLAIN, PLAIN, signs)
    with pytest.raises(ValueError, match=ALONE.format("sign_b", -0.5, "2, 1")):
        st.scan_log(PLAIN, PLAIN, torch.complex(PLAIN, with_sign(0.5)).conj().imag)
    with pytest.raises(ValueError, match=ALONE.format("sign_b", 0.5, "2, 1")):
        st.scan_log(PLAIN, PLAIN, with_sign(0.5).requires_grad_())


@COMPILES
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_signs_are_not_looked_at_where_a_call_is_traced():
    def states(signs):
        return st.scan_log(PLAIN, PLAIN, signs)

    class Module(torch.nn.Module):
        def forward(self, signs):
            return states(signs)

    signs = with_sign(0.5)
    torch.compile(states, fullgraph=True, backend="aot_eager")(signs)
    torch.compiler.reset()
    torch.export.export(Module(), (signs,))
    torch.vmap(states)(signs[None])
    torch.fx.experimental.proxy_tensor.make_fx(states)(signs)
    torch.jit.trace(states, signs, check_trace=False)
    assert st.scan_log(*[PLAIN.to("meta")] * 3).is_meta


@GPU
@pytest.mark.parametrize("scan_log", [st.scan_log, scanrnn.scan_log])
def test_signs_on_a_gpu_are_checked_on_request(monkeypatch, scan_log):
    a, signs = PLAIN.to(DEVICE), with_sign(0.5, device=DEVICE)
    monkeypatch.delenv("SCANRNN_CHECK", raising=False)
    scan_log(a, a, signs)
    monkeypatch.setenv("SCANRNN_CHECK", "1")
    with pytest.raises(ValueError, match=ALONE.format("sign_b", 0.5, "2, 1")):
        scan_log(a, a, signs)
    scan_log(a, a, signs.sign())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # where there are no values to look at
        scan_log(a, a, signs)
