# SPDX-License-Identifier: Apache-2.0
"""What the tests of scanrnn.torch share; without torch they are skipped."""

import numpy as np
import pytest
from support import ALL_CELLS, DEVICE, assert_close, construct, normal, normal_states, rows

torch = pytest.importorskip("torch")
if DEVICE != "cpu" and not torch.cuda.is_available():
    pytest.skip("this torch has no GPU", allow_module_level=True)
import scanrnn.torch as st  # noqa: E402

WIDE = torch.float64
WHOLE = (None, None, None)  # lengths, cu_seqlens and reset of a rectangular batch
TORCHS_OWN = [cell for cell in ALL_CELLS if hasattr(torch.nn, cell)]
# What torch says of itself when it compiles, and of float32 where TF32 could be.
COMPILES = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
GPU = pytest.mark.skipif(DEVICE == "cpu", reason="wants SCANRNN_TEST_DEVICE=cuda")


def module(cell, *sizes, variant=None, dtype=WIDE, **options):
    torch.manual_seed(0)
    return construct(st, cell, *sizes, variant=variant, device=DEVICE, dtype=dtype, **options)


def tensor(*shape, dtype=WIDE, grad=False, seed=0):
    values = torch.tensor(normal(*shape, dtype=np.float64, seed=seed))
    return values.to(DEVICE, dtype).requires_grad_(grad)


def state(rnn, batch, dtype=WIDE, grad=False):
    """h_0 for a module: a tensor or a tuple."""
    sequences = [] if batch is None else [batch]
    shape = (rows(rnn), *sequences, rnn.hidden_size)
    parts = normal_states(rnn._cell.name, *shape, dtype=np.float64, seed=7)
    # m, the last of four, is a constant to the gradients.
    states = tuple(
        torch.as_tensor(part).to(DEVICE, dtype).requires_grad_(grad and i < 3)
        for i, part in enumerate(parts)
    )
    return states if len(states) > 1 else states[0]


def flat(values):
    return [v for value in values for v in (value if isinstance(value, (tuple, list)) else [value])]


def numpy(value):
    return value.detach().to("cpu", WIDE).numpy()


def same(got, wanted, share=1e-12):
    for g, w in zip(flat(got), flat(wanted), strict=True):
        assert_close(numpy(g), numpy(w), share)


def operands(rnn, steps, batch, grad=False):
    """Arguments of the operator for a module's call."""
    x = tensor(steps, batch, rnn.input_size, grad=grad)
    params = [p.detach().clone().requires_grad_(grad) for p in rnn.parameters()]
    return x, flat([state(rnn, batch, grad=grad)]), params


# ---- ragged batches

FORMS = ["lengths", "reset", "lengths_reset", "packed", "packed_reset"]
LENGTHS = [5, 9, 1, 4]
ENDS = [0, 5, 5, 14, 19]


def integers(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def options_of(form, steps=9, *, lengths=LENGTHS, ends=ENDS, shift=0):
    """Arguments beside x, which is packed where its name says so; `shift` of the resets."""
    step = torch.arange(shift, shift + 4 * steps, device=DEVICE).reshape(steps, 4)
    token = torch.arange(shift, shift + 19, device=DEVICE)
    return {
        "lengths": {"lengths": integers(lengths)},
        "reset": {"reset": step % 5 == 3},
        "lengths_reset": {"lengths": integers(lengths, torch.int32), "reset": step % 5 == 3},
        "packed": {"cu_seqlens": integers(ends)},
        "packed_reset": {"cu_seqlens": integers(ends), "reset": token % 6 == 2},
    }[form]


def input_of(rnn, form, **options):
    tokens = (19,) if "packed" in form else (9, 4)
    return tensor(*tokens, rnn.input_size, **options)


def packed(x, lengths, batch_first=False, enforce_sorted=False):
    given = torch.tensor(lengths)
    return torch.nn.utils.rnn.pack_padded_sequence(x, given, batch_first, enforce_sorted)
