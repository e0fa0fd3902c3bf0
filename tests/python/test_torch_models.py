# SPDX-License-Identifier: Apache-2.0
"""scanrnn.torch.replace in models of other packages, by the script that times them."""

import importlib
from pathlib import Path

import pytest
from scanrnn.tools import measure
from torch_support import DEVICE, st, torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def replaced(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("replaced")


def test_encodec_stays_what_it_was(replaced):
    pytest.importorskip("transformers")
    before, after, x = replaced.pair("encodec", True, DEVICE, torch.float64)
    assert isinstance(after.encoder.layers[13].lstm, st.LSTM)
    assert isinstance(before.encoder.layers[13].lstm, torch.nn.LSTM)
    with torch.no_grad():
        torch.testing.assert_close(after(x), before(x), rtol=0, atol=1e-12)
    after.load_state_dict({k: 2 * v for k, v in before.state_dict().items()})
    with torch.no_grad():
        assert replaced.error(after(x), before(x)) > 1e-3


@pytest.mark.parametrize(
    ("model", "package"),
    [("encodec", "transformers"), ("hdemucs", "torchaudio"), ("words", "torch")],
)
def test_the_script_times_both(replaced, tmp_path, model, package):
    pytest.importorskip(package)
    out = tmp_path / "replaced.json"
    command = ["--models", model, "--small", "--turns", "2", "--device", DEVICE]
    rows = replaced.main([*command, "--out", str(out)])
    passes = [(row["pass"], row["impl"]) for row in rows]
    assert sorted(passes) == [
        ("forward", "scanrnn.torch"), ("forward", "torch.nn"),
        ("forward_backward", "scanrnn.torch"), ("forward_backward", "torch.nn"),
    ]  # fmt: skip
    assert all(row["ms"] > 0 for row in rows)
    assert [row["model"] for row in measure.load(out)["rows"]] == [model] * 4


def test_what_is_not_here_is_an_error(replaced, monkeypatch):
    def missing(small):
        raise ImportError("no such package")

    monkeypatch.setitem(replaced.MODELS, "words", missing)
    with pytest.raises(SystemExit, match=r"none of .* is here"):
        replaced.main(["--models", "words", "--device", DEVICE])


def test_a_wrong_result_is_refused(replaced):
    wanted = torch.tensor([1.0, -4.0])
    assert replaced.error(wanted + 0.004, wanted) == pytest.approx(0.001, rel=1e-3)
    assert not replaced.error(wanted * float("nan"), wanted) <= 1
