# SPDX-License-Identifier: Apache-2.0
"""What the benches say: which losses are listed, what tables show, what is refused as wrong."""

import importlib
from pathlib import Path

import pytest
from scanrnn.tools import measure

ROOT = Path(__file__).parents[2]
SIZE = {"bench": "layer", "cell": "LSTM", "pass": "forward", "layout": "TBH", "B": 16, "T": 1024}
SIZE |= {"H": 768, "dtype": "float16", "domain": "linear"}
HEAD = {"gpu": "a GPU", "commit": "0123456789", "command": "a command"}


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of bench."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module


def row(impl, ms, **other):
    return SIZE | {"impl": impl, "ms": ms} | other


def test_losses_are_to_the_fastest_in_the_same_layout(bench):
    losses = bench("losses")
    rows = [row("scanrnn", 2.0), row("scanrnn", 3.0, layout="BTH")]
    rows += [row("slow", 2.5), row("fast", 1.0), row("faster", 0.5), row("its", 2.9, layout="BTH")]
    rows += [row("another problem", 0.1, T=7), row("no time", 0.1) | {"ms": None}]
    del rows[-1]["ms"]
    (loss,) = losses.losses(rows)
    assert (loss.row["impl"], loss.ratio) == ("faster", 4.0)
    assert [found.row["impl"] for found in losses.losses([*rows[:3], rows[5]])] == ["its"]
    assert losses.list_of(rows[:3]) == "- nowhere"
    assert losses.compared(rows) == 1
    assert losses.compared(rows[:2]) == 0


def test_a_way_that_was_not_picked_counts_from_three_percent_on(bench):
    losses = bench("losses")
    rows = [row("scanrnn", 1.0), row(losses.OTHER_WAY, 0.98)]
    assert losses.losses(rows) == []
    rows.append(row(losses.OTHER_WAY, 0.9, strategy="block"))
    assert "1.11 x as fast, scanrnn, not picked (block)" in losses.list_of(rows)


def test_tables_show_the_pick_and_what_would_be_faster(bench):
    tables = bench("tables")
    scan = {"bench": "scan", "copy_share": 0.9, "gbps": 1, "T": 2048}
    rows = [row("scanrnn", 1.0, **scan | {"copy_share": 0.8}, picked=True, strategy="direct")]
    rows += [row("scanrnn", 0.9, **scan, picked=False, strategy="block")]
    rows += [row("cub::DeviceScan::InclusiveScan", 4.0, **scan | {"copy_share": 0.2})]
    text = tables.gpu_scans(HEAD | {"rows": rows})
    assert "| B16 T2048 H768 | TBH | float16 | scan | direct | 80% † | 90%, block | 20% |" in text
    assert "† less than was asked for, from 2^24 elements and 32 rows on 93%" in text
    assert text.endswith("\n\n- B16 T2048 H768 TBH: block has 90%, and is not picked.")
    rows[0]["copy_share"], rows[1]["ms"] = 0.86, 0.98
    text = tables.gpu_scans(HEAD | {"rows": rows})
    assert "| direct | 86% |  | 20% |" in text
    assert "†" not in text
    ways = tables.as_ways([*rows, SIZE | {"ms": 1.0}])
    assert [way["impl"] for way in ways] == ["scanrnn", "scanrnn, not picked"]


def test_a_layer_above_its_floor_has_a_reason_in_numbers(bench):
    tables = bench("tables")
    layer = {"bench": "layer", "cell": "MinGRU", "dtype": "bfloat16", "picked": True, "C": 1024}
    layer |= {"B": 8, "T": 4096, "H": 1024, "strategy": "parallel_scan, block", "gemm_ms": 1.0}
    longer = row("scanrnn", 1.32, **layer | {"floor_ms": 1.3, "floor_ratio": 1.02})
    less = {"B": 16, "T": 1024, "H": 768, "C": 768, "floor_ms": 1.1, "floor_ratio": 1.18}
    rows = [longer, row("scanrnn", 1.3, **layer | less)]
    text = tables.gpu_layers(HEAD | {"rows": rows})
    assert "| MinGRU | B8 T4096 H1024 | 1.32 | 1.02 |" in text
    assert "| MinGRU | B16 T1024 H768 | 1.30 | 1.18 † |" in text
    why = "The recurrence takes 3.0 times its bytes' time; forward 180 us more than its share of "
    assert text.endswith(f"{why}that.")
    longer |= {"ms": 8.0}  # of which the shorter one takes less than its share
    text = tables.gpu_layers(HEAD | {"rows": rows})
    assert text.endswith("The recurrence takes 3.0 times its bytes' time.")
    longer |= {"ms": 1.32}
    rows[1] |= {"B": 17}
    assert "- B17 T1024 H768: not explained yet." in tables.gpu_layers(HEAD | {"rows": rows})
    rows[1] |= {"T": 1000}
    assert "†" not in tables.gpu_layers(HEAD | {"rows": rows})  # up to 1.2
    rows[1] |= {"cell": "IndRNN", "pass": "forward_backward", "floor_ratio": 1.26}
    assert "- IndRNN: each step waits" in tables.gpu_layers(HEAD | {"rows": rows})


def test_what_is_asked_of_a_scan_goes_by_its_size_and_numbers(bench):
    asked = bench("asked").share_asked
    scan = {"pass": "forward", "domain": "linear", "dtype": "float32", "B": 8, "T": 4096, "H": 1536}
    log, both = {"domain": "log"}, {"pass": "forward_backward"}
    assert [asked(scan), asked(scan | log), asked(scan | both)] == [0.93, 0.9, 0.85]
    half = scan | {"dtype": "bfloat16"}
    assert [asked(half), asked(half | log), asked(half | both)] == [0.85, 0.75, 0.85]
    assert asked(scan | {"dtype": "complex64"}) == 0.85
    assert asked(scan | {"T": 1024}) == 0  # less than 2^24 elements
    row = scan | {"B": 1, "H": 1, "T": 1 << 24}
    assert [asked(row), asked(row | {"T": 1 << 28})] == [0.65, 0.8]
    assert asked(row | {"T": 1 << 20}) == 0
    assert asked(row | log) == pytest.approx(0.65 / 1.1)
    assert asked(row | {"dtype": "bfloat16"}) == 0


def test_cudnn_stands_with_its_algorithm(bench):
    tables = bench("tables")
    rows = [row("scanrnn", 1.5), row("cuDNN 9, best", 2.0, algorithm="standard")]
    rows += [row("torch.nn, eager", 9.0), row("cuDNN 9 LSTM", 1.0)]
    for found in rows:
        del found["domain"]
    text = tables.gpu_cudnn(HEAD | {"rows": rows})
    assert "| LSTM | B16 T1024 H768 | float16 | 1.50 | 2.00, standard | 9.00 |" in text
    rows.append(rows[0] | {"impl": "scanrnn, not picked", "ms": 1.2})
    assert "| float16 | 1.50 (best 1.20) | 2.00," in tables.gpu_cudnn(HEAD | {"rows": rows})
    said = "In the median of 1 times cuDNN at its best takes 1.33 times ours; 0 are below 1.3,"
    assert said in text
    rows[-1]["ms"] = 1.49
    assert "best 1" not in tables.gpu_cudnn(HEAD | {"rows": rows})


def test_ranks_stand_beside_one_gpu(bench, tmp_path):
    tables = bench("tables")
    one = row("scanrnn", 8.0, ranks=1, peak_bytes=[3 * 2**30], efficiency=1.0, in_a_row_ms=7.9)
    two = row("scanrnn", 5.0, ranks=2, peak_bytes=[2**30, 2**31], memory=0.667, exchange_us=21.4)
    two |= {"groups": 4, "efficiency": 0.8, "max_error": 0.001}
    two |= {"in_a_row_ms": 4.3, "in_a_row_efficiency": 0.92}
    failed = SIZE | {"ranks": 4, "failed": "MemoryError: a | b"}
    at_once = row("scanrnn", 2.1, ranks=4, groups=1, way="tails", efficiency=0.95)
    text = tables.many_ranks(HEAD | {"rows": [one, two, failed, at_once]})
    head = "| LSTM | B16 T1024 H768, float16 | forward |"
    assert f"{head} 1 |  | 8.00 | 1.00 | 7.90 |  | 3.00 |  |  |  |" in text
    assert f"{head} 2 | 4 | 5.00 | 0.80 | 4.30 | 0.92 | 2.00 | 0.67 | 21.4 | 1.0e-03 |" in text
    assert f"{head} 4 |  | MemoryError: a / b |" in text
    assert f"{head} 4 | tails | 2.10 | 0.95 |" in text
    page = tmp_path / "page.md"
    page.write_text("<!-- many ranks -->\nNot measured yet.\n<!-- end -->\n")
    tables.fill(page, tmp_path)
    assert "Not measured yet." in page.read_text()


def test_wrong_results_are_refused(bench):
    torch = pytest.importorskip("torch")
    check = bench("checks").check
    want = torch.arange(4, dtype=torch.float64) + 1
    found = check(want + 0.004, want, {"w": want * 1.01}, {"w": want}, (0.01, 0.02))
    assert found == {"max_error": 0.001, "gradient_error": 0.01}
    for y, gradient in ((want + 1, want), (want, want * 2), (want, want * float("nan"))):
        with pytest.raises(AssertionError, match="wrong result"):
            check(y, want, {"w": gradient}, {"w": want}, (0.01, 0.02))
    with pytest.raises(AssertionError, match="gradients of"):
        check(want, want, {}, {"w": want})


def test_cpu_scans_runs(bench, tmp_path, monkeypatch):
    cpu_scans, out = bench("cpu_scans"), tmp_path / "scan.json"
    sizes = ((300, 5), (1000, 1))
    monkeypatch.setattr(cpu_scans, "SIZES", sizes)
    cpu_scans.main(["--seconds", "0.01", "--out", str(out)])
    rows = measure.load(out)["rows"]
    impls = {"np.add", cpu_scans.BOUND, "np.add, fresh result", "scanrnn, fresh result"}
    impls |= {"scanrnn", "scanrnn, not picked"}
    impls |= {f"scanrnn, {what}" for what, *_ in cpu_scans.OTHERS}
    for size in sizes:
        of_size = [row for row in rows if (row["T"], row["N"]) == size]
        assert {row["impl"] for row in of_size} == impls
        ways = {row["strategy"] for row in of_size if "strategy" in row}
        assert ways >= set(cpu_scans.WAYS)
    assert all(row["ms"] > 0 and row["share"] > 0 for row in rows)


def test_tables_of_torch(bench, tmp_path, capsys):
    tables = bench("tables")
    rows = [
        {"bench": "replaced", "model": "words", "pass": "forward", "impl": impl, "ms": ms}
        | {"peak_bytes": mib * 2**20}
        for impl, ms, mib in (("torch.nn", 3.0, 10), ("scanrnn.torch", 1.5, 8))
    ]
    text = tables.replaced(HEAD | {"rows": rows})
    assert "| word language model | forward | 3.00 | 1.50 | 2.00 x | 10 | 8 |" in text
    rows = [SIZE | {"impl": impl, "us": us} for impl, us in (("torch.nn", 9.4), ("ours", 8))]
    rows[1]["device_us"] = 3.2
    assert "| B16 T1024 H768 | LSTM | forward | 9 | 8 (3) |" in tables.calls(HEAD | {"rows": rows})
    page = tmp_path / "page.md"
    page.write_text("<!-- gpu replaced -->\nas it was\n<!-- end -->\n")
    tables.fill(page, tmp_path)  # in which no file is
    assert "as it was" in page.read_text()
    assert "no file for the table 'gpu replaced'" in capsys.readouterr().out


def test_cells_that_are_padded_alone_have_no_share_in_other_ways(bench):
    tables = bench("tables")
    ragged = {"bench": "ragged", "share": 1.0}
    rows = [row("scanrnn", 2.0, **ragged, way="padded")]
    rows += [row("scanrnn", 2.06, **ragged | {"share": 1.03}, way="padded, resets")]
    failed = row("scanrnn", 1.0, bench="ragged", cell="GRU", way="padded, resets")
    text = tables.gpu_ragged(HEAD | {"rows": [*rows, failed]})
    assert "| LSTM, B16 | forward | 2.00 | 1.03 |  |  |  |" in text
    assert "GRU" not in text


def test_options_stand_beside_formulas_where_there_are_such(bench):
    tables = bench("tables")
    option = {"bench": "options", "times": 1.0}
    rows = [row("scanrnn", 1.0, **option, way="LSTM")]
    rows += [row("scanrnn", 1.5, **option | {"times": 1.5}, way="SLSTM")]
    text = tables.gpu_options(HEAD | {"rows": rows})
    assert text.endswith("| B16 T1024 H768 | SLSTM | 1.50 x |  |")
    rows += [row("torch, compiled", 30.0, **option | {"times": 30}, way="SLSTM")]
    text = tables.gpu_options(HEAD | {"rows": rows})
    assert "| B16 T1024 H768 | LSTM | 1.00 ms |  |  |  |" in text
    assert "| B16 T1024 H768 | SLSTM | 1.50 x |  | 30.0 |  |" in text
