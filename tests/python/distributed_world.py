# SPDX-License-Identifier: Apache-2.0
"""Worlds of processes for the tests of scanrnn.torch.distributed: each runs all its cases.

    python distributed_world.py RANK SIZE STORE RESULTS SUITE

Parents start one process a rank and wait for them, but not for ever. A process writes what became
of each case, as JSON, before the next one begins.
"""

import datetime
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

LIMIT = 300  # seconds for a world, of which it takes far fewer
TIMEOUT = 60  # seconds for one exchange


def processes(size, folder, suite):
    """A process a rank, each with a file of what it says."""
    started = []
    for rank in range(size):
        said = open(folder / f"said-{rank}.txt", "w")  # noqa: SIM115
        command = [sys.executable, __file__, rank, size, folder / "store", folder, suite]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        environment |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        started.append(
            subprocess.Popen(
                list(map(str, command)), stdout=said, stderr=subprocess.STDOUT, env=environment
            )
        )
        said.close()
    return started


def waited(started, limit=LIMIT):
    """Their exit statuses; those that do not end are killed, and have none."""
    end = time.monotonic() + limit
    statuses = []
    for process in started:
        try:
            statuses.append(process.wait(max(0.1, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            statuses.append(None)
    return statuses


def results(size, folder):
    """What became of each case on each rank: [{case: "" or what went wrong}]."""
    found = []
    for rank in range(size):
        path, said = folder / f"results-{rank}.json", (folder / f"said-{rank}.txt").read_text()
        content = json.loads(path.read_text()) if path.exists() else {}
        found.append((content, said))
    return found


class World:
    """What a case knows of its world."""

    def __init__(self, rank, size, timeout=TIMEOUT):
        import torch
        from support import DEVICE

        torch.set_num_threads(1)
        self.rank, self.size = rank, size
        self.device = torch.device(DEVICE, rank) if DEVICE != "cpu" else torch.device("cpu")
        self.backend = "gloo" if DEVICE == "cpu" else "nccl"
        if DEVICE != "cpu":
            torch.cuda.set_device(self.device)
        self.timeout = datetime.timedelta(seconds=timeout)

    def join(self, store):
        import torch.distributed as dist

        dist.init_process_group(
            self.backend, init_method=f"file://{store}", rank=self.rank, world_size=self.size,
            timeout=self.timeout,
        )  # fmt: skip


def main(rank, size, store, folder, suite):
    sys.path.insert(0, str(Path(__file__).parent))
    import torch.distributed as dist

    cases = importlib.import_module("distributed_cases")
    world = World(int(rank), int(size))
    world.join(store)
    found = {}
    for name, case in cases.SUITES[suite].items():
        try:
            case(world)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        Path(folder, f"results-{rank}.json").write_text(json.dumps(found))
        if found[name]:  # the ranks may not be at the same place any more
            sys.exit(1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
