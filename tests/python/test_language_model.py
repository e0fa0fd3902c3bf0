# SPDX-License-Identifier: Apache-2.0
"""The language model of docs/examples, in small: every model learns; what it writes is whole."""

import importlib.util
import json
from pathlib import Path

import pytest
from support import ALL_CELLS, DEVICE

torch = pytest.importorskip("torch")
if DEVICE != "cpu" and not torch.cuda.is_available():
    pytest.skip("this torch has no GPU", allow_module_level=True)
SOURCE = Path(__file__).parents[2] / "docs/examples/language_model.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("language_model", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_learns(example, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    command = [
        *("--device", DEVICE, "--steps", "60", "--parameters", "40000", "--layers", "1"),
        *("--batch", "8", "--length", "32", "--characters", "200000", "--rate", "0.01"),
        *("--plot", str(tmp_path / "lm.png"), "--json", str(tmp_path / "lm.json")),
    ]
    rows = example.main(command)
    names = [f"{row['impl'].partition(' ')[0]}.{row['cell']}" for row in rows]
    assert names == [*(f"scanrnn.{cell}" for cell in ALL_CELLS), "torch.GRU", "torch.LSTM"]
    saved = json.loads((tmp_path / "lm.json").read_text())
    assert saved["rows"] == rows
    assert {"commit", "command", "torch", "date"} <= set(saved)
    assert (tmp_path / "lm.png").stat().st_size > 10_000
    for row in rows:
        first, last = row["curve"][0][1], row["curve"][-1][1]
        assert 30_000 < row["parameters"] <= 40_000, row
        assert row["tokens_per_second"] > 0
        assert last < 4.9 < first < 9, row  # 7 bits know nothing; the letters' frequencies, 4.6
        assert row["held_out_bits"] < 6.3, row  # of other modules than those that it has read
    assert "bits a character" in capsys.readouterr().out


@pytest.mark.parametrize("cell", ALL_CELLS)
def test_documents_know_nothing_of_one_another(example, cell):
    torch.manual_seed(0)
    model = example.LanguageModel(example.recurrences()[f"scanrnn.{cell}"], 16, 2).to(DEVICE)
    text = torch.randint(1, 128, (12, 1), device=DEVICE)
    text[5] = example.BORDER
    logits, _ = model(text)
    alone, _ = model(text[5:])
    torch.testing.assert_close(logits[5:], alone, rtol=0, atol=1e-5)
    text[2] = 1 + text[2] % 127
    other, _ = model(text)
    assert (other[5:] == logits[5:]).all()
    assert not torch.equal(other[:5], logits[:5])


def test_windows_are_of_the_text(example):
    text = torch.arange(100, dtype=torch.uint8)
    window = next(example.windows(text, 3, 7, 0))
    assert window.shape == (8, 3)
    assert (window[1:] == window[:-1] + 1).all()


def test_the_same_number_of_parameters(example):
    for name, recurrent in example.recurrences().items():
        width = example.widest(recurrent, 2, 100_000)
        sizes = [
            sum(p.numel() for p in example.LanguageModel(recurrent, w, 2).parameters())
            for w in (width, width + 8)
        ]
        assert sizes[0] <= 100_000 < sizes[1], name


def test_too_little_text(example, tmp_path):
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(SystemExit, match="too little text: 3 characters"):
        example.load_text(tmp_path / "short.txt", 1000)
