# SPDX-License-Identifier: Apache-2.0
"""Models of other people before and after scanrnn.torch.replace, with random weights.

    python bench/replaced.py [--device cuda] [--models encodec hdemucs words] [--out FILE]

EnCodec of transformers has two LSTMs of two layers between convolutions, HDemucs of torchaudio
LSTMs of two layers in both directions. The word language model of pytorch/examples, which needs
torch alone, is an LSTM of two layers between an embedding and its transpose. Outputs are compared
first, and gradients of the parameters; then both take turns, in eager mode as a user runs them.
TF32 is off in convolutions and recurrences; in products torch has it off. A GPU's rows also have
the peak of torch's memory beyond parameters and input.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import scanrnn.torch
import torch
from scanrnn import _core
from scanrnn.tools import measure
from scanrnn.tools.memory import peak_bytes
from torch import Tensor, nn

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}  # of the largest value


class Model(NamedTuple):
    module: nn.Module
    x: Tensor
    recurrent: list[str]  # modules that are replaced


class _Codec(nn.Module):
    """EnCodec without its quantizer, whose codes jump."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = whole.encoder, whole.decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def encodec(small: bool) -> Model:
    from transformers import EncodecConfig, EncodecModel

    sizes = {"num_filters": 2, "hidden_size": 8, "codebook_dim": 8} if small else {}
    whole = EncodecModel(EncodecConfig(**sizes))
    x = torch.randn(2, 1, 3200) if small else torch.randn(8, 1, 24000)  # 24 kHz
    return Model(_Codec(whole), x, ["encoder.layers.13.lstm", "decoder.layers.1.lstm"])


def hdemucs(small: bool) -> Model:
    from torchaudio.models import HDemucs

    module = HDemucs(["drums", "other"], channels=8 if small else 48, depth=6)
    x = torch.randn(1, 2, 44100 if small else 4 * 44100)  # 44.1 kHz
    names = [n for n, m in module.named_modules() if isinstance(m, nn.RNNBase)]
    return Model(module, x, names)


class _Words(nn.Module):
    """Its medium size; dropout, which draws other numbers in each library, is left out."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.rnn = nn.LSTM(hidden, hidden, 2)
        self.head = nn.Linear(hidden, words)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.log_softmax(self.head(self.rnn(self.embedding(x))[0]), -1)


def words(small: bool) -> Model:
    count, hidden = (50, 8) if small else (33278, 650)  # WikiText-2's words
    x = torch.randint(count, (5, 3) if small else (35, 20))
    return Model(_Words(count, hidden), x, ["rnn"])


MODELS: dict[str, Callable[[bool], Model]] = {
    "encodec": encodec,
    "hdemucs": hdemucs,
    "words": words,
}


def gradients(module: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """y, and what its squares make of each parameter that has a part in it."""
    named = list(module.parameters())
    y = module(x)
    found = torch.autograd.grad(y.square().mean(), named, allow_unused=True)
    return y.detach(), [value for value in found if value is not None]


def flat(values: list[Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in values])


def error(got: Tensor, wanted: Tensor) -> float:
    largest = wanted.abs().max().clamp(min=1e-30)
    return float((got - wanted).abs().max() / largest)


def pair(
    name: str, small: bool, device: str, dtype: torch.dtype
) -> tuple[nn.Module, nn.Module, Any]:
    """The model before and after, and x: compared, or an AssertionError."""
    torch.manual_seed(0)
    model = MODELS[name](small)
    before, x = model.module.to(device, dtype).eval(), model.x.to(device)
    x = x.to(dtype) if x.is_floating_point() else x
    before.requires_grad_()
    after = copy.deepcopy(before)
    names = scanrnn.torch.replace(after)
    if sorted(names) != sorted(model.recurrent) or not names:
        raise AssertionError(f"{name}: replaced {names}, wanted {model.recurrent}")
    if list(after.state_dict()) != list(before.state_dict()):
        raise AssertionError(f"{name}: other parameters than before")
    with torch.no_grad():
        off = [error(after(x), before(x))]
    for module in (before, after):  # in eval mode cuDNN has no backward
        for rnn in module.modules():
            if isinstance(rnn, (nn.RNNBase, scanrnn.torch.Recurrent)):
                rnn.train()
    (y, d_before), (z, d_after) = gradients(before, x), gradients(after, x)
    # All gradients are compared together: some of a normalised weight are 0 but for rounding.
    off += [error(z, y), error(flat(d_after), flat(d_before))]
    if not all(one <= TOLERANCE[dtype] for one in off):
        raise AssertionError(f"{name}: off by {off} of the largest value")
    return before, after, x


def runs(name: str, device: str, small: bool) -> dict[tuple[str, str, str], Callable[[], Any]]:
    before, after, x = pair(name, small, device, torch.float32)
    out: dict[tuple[str, str, str], Callable[[], Any]] = {}
    for impl, module in (("torch.nn", before), ("scanrnn.torch", after)):
        out[name, "forward", impl] = torch.no_grad()(lambda module=module: module(x))
        out[name, "forward_backward", impl] = lambda module=module: gradients(module, x)
    return out


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--small", action="store_true", help="a few units, to try the script")
    parser.add_argument("--turns", type=int, default=10, help="of each (10)")
    parser.add_argument("--out", type=Path, help="JSON file")
    chosen = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = False  # so that results can be compared
    if chosen.device != "cpu":
        torch.cuda.set_device(torch.device(chosen.device).index or 0)
    wait = torch.cuda.synchronize if chosen.device != "cpu" else lambda: None
    rows, table = [], []
    for name in chosen.models:
        try:
            found = runs(name, chosen.device, chosen.small)
        except (ImportError, OSError) as missing:
            print(f"{name}: not here: {missing}", flush=True)
            continue
        taken = measure.timed(found, seconds=0, least=chosen.turns, turn=0.2, wait=wait)
        for (model, direction, impl), timing in taken.items():
            row = {"bench": "replaced", "model": model, "pass": direction, "impl": impl}
            row |= {"dtype": "float32", "ms": timing.ms, "least_ms": timing.least}
            if chosen.device != "cpu":
                row["peak_bytes"] = peak_bytes(found[model, direction, impl])
            rows.append(row)
            table.append([model, direction, impl, f"{timing.ms:.2f}", f"{timing.least:.2f}"])
    if not rows:
        raise SystemExit(f"none of {chosen.models} is here")
    print(measure.table(["model", "pass", "modules", "ms", "least"], table))
    if chosen.out:
        head = measure.provenance(_core.Device(chosen.device)) | {"torch": torch.__version__}
        measure.save(chosen.out, head | {"rows": rows})
    return rows


if __name__ == "__main__":
    main()
