#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The forward algorithm of a hidden Markov model over a million observations, by scans.

A machine wears out: it goes through its conditions in one order, stays in each for a while, and
never comes back. What is seen of it is a noisy reading at every step. With alpha_t(k) the
probability of the readings so far and of condition k,

    alpha_t(k) = e_k(x_t) (stay_k alpha_{t-1}(k) + go_{k-1} alpha_{t-1}(k-1)),

which is h_t = a_t h_{t-1} + b_t for one condition after the other: a is e_k(x_t) stay_k, and b is
what comes from the condition before. Each step takes a factor of about 1/e, so that the last
alpha is near e^-1000000: `log_output=True` gives its logarithm. (A model of this kind can be
solved by one scan a condition since it has no way back; one that has wants products of matrices.)

    python docs/examples/hidden_markov_model.py
    python docs/examples/hidden_markov_model.py --observations 100000000 --device cuda
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scanrnn

Array = npt.NDArray[np.float64]

MEANS = (0.0, 0.4, 1.1)  # of the readings, by condition
DEVIATION = math.exp(1 - math.log(2 * math.pi * math.e) / 2)  # a reading says 1 nat
MOST_IN_A_LOOP = 2_000_000


def readings(count: int, seed: int) -> Array:
    random = np.random.default_rng(seed)
    condition = np.arange(count) * len(MEANS) // max(count, 1)
    return random.normal(np.array(MEANS)[condition], DEVIATION)


def log_probabilities(x: Array) -> tuple[Array, Array, Array]:
    """log e_k(x_t) [K,T], log stay_k and log go_k [K]; the last condition is for ever."""
    scaled = (x - np.array(MEANS)[:, None]) / DEVIATION
    log_emission = -0.5 * scaled**2 - math.log(DEVIATION * math.sqrt(2 * math.pi))
    go = np.full(len(MEANS), len(MEANS) / max(len(x), len(MEANS) + 1))
    go[-1] = 0
    with np.errstate(divide="ignore"):
        return log_emission, np.log1p(-go), np.log(go)


def by_scans(x: Array, dtype: str, device: str) -> float:
    """log p(x, the last condition at the end)."""
    log_emission, stay, go = log_probabilities(x)
    log_alpha = np.full(len(x) + 1, -np.inf)  # of no condition before the first one
    for k, log_e in enumerate(log_emission):
        log_a = (log_e + stay[k]).astype(dtype)
        log_b = (log_e + go[k - 1] + log_alpha[:-1]).astype(dtype)
        start = 0.0 if k == 0 else -np.inf
        log_h, _ = scanrnn.scan_log(
            log_a, log_b, None, (np.array(start, dtype), None), log_output=True, device=device
        )
        log_alpha = np.concatenate([[start], log_h])
    return float(log_alpha[-1])


def by_a_loop(x: Array) -> float:
    """The same in float64, step by step."""
    log_emission, stay, go = (value.tolist() for value in log_probabilities(x))
    alpha = [0.0] + [-math.inf] * (len(MEANS) - 1)
    for step in zip(*log_emission, strict=True):
        for k in reversed(range(len(MEANS))):  # those before it are still of the step before
            kept = stay[k] + alpha[k]
            came = go[k - 1] + alpha[k - 1] if k else -math.inf
            most, least = (kept, came) if kept > came else (came, kept)
            more = math.log1p(math.exp(least - most)) if least > -math.inf else 0.0
            alpha[k] = step[k] + most + more
    return alpha[-1]


def main(command: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--observations", type=int, default=1_000_000)
    parser.add_argument("--device", default="auto", help="of the scans")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(command)
    x = readings(args.observations, args.seed)
    found = {}
    for dtype in ("float32", "float64"):
        start = time.perf_counter()
        found[dtype] = by_scans(x, dtype, args.device)
        seconds = time.perf_counter() - start
        print(f"log-likelihood by scans, {dtype}: {found[dtype]:.4f}  ({seconds:.3f} s)")
    if len(x) <= MOST_IN_A_LOOP:
        start = time.perf_counter()
        found["exact"] = by_a_loop(x)
        seconds = time.perf_counter() - start
        print(f"log-likelihood by a loop, float64: {found['exact']:.4f}  ({seconds:.3f} s)")
    return found


if __name__ == "__main__":
    main()
