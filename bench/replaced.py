# SPDX-License-Identifier: Apache-2.0
"""Models of other people before and after scanrnn.torch.replace, with random weights.

    python bench/replaced.py [--device cuda] [--models encodec hdemucs] [--out FILE]

EnCodec of transformers has two LSTMs of two layers between convolutions, HDemucs of torchaudio
LSTMs of two layers in both directions. Outputs are compared first, and gradients of the parameters;
then both take turns, in eager mode as a user runs them.
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


MODELS: dict[str, Callable[[bool], Model]] = {"encodec": encodec, "hdemucs": hdemucs}


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
    before, x = model.module.to(device, dtype).eval(), model.x.to(device, dtype)
    before.requires_grad_()
    after = copy.deepcopy(before)
    names = scanrnn.torch.replace(after)
    if sorted(names) != sorted(model.recurrent) or not names:
        raise AssertionError(f"{name}: replaced {names}, wanted {model.recurrent}")
    if list(after.state_dict()) != list(before.state_dict()):
        raise AssertionError(f"{name}: other parameters than before")
    for training in (False, True):  # torch's GRUs and LSTMs go another way in training on CUDA
        for module in (before, after):
            for rnn in module.modules():
                if isinstance(rnn, nn.RNNBase) or type(rnn).__module__.startswith("scanrnn"):
                    rnn.train(training)
        (y, d_before), (z, d_after) = gradients(before, x), gradients(after, x)
        # Of all gradients together: some of a normalised weight are 0 but for rounding.
        off = max(error(z, y), error(flat(d_after), flat(d_before)))
        if not off <= TOLERANCE[dtype]:
            raise AssertionError(f"{name}: off by {off:.2g} of the largest value")
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
            rows.append(row | {"dtype": "float32", "ms": timing.ms, "least_ms": timing.least})
            table.append([model, direction, impl, f"{timing.ms:.2f}", f"{timing.least:.2f}"])
    print(measure.table(["model", "pass", "modules", "ms", "least"], table))
    if chosen.out:
        head = measure.provenance(_core.Device(chosen.device)) | {"torch": torch.__version__}
        measure.save(chosen.out, head | {"rows": rows})
    return rows


if __name__ == "__main__":
    main()
