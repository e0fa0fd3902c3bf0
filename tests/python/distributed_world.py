# SPDX-License-Identifier: Apache-2.0
"""Worlds of processes for the tests of scanrnn.torch.distributed: each runs all its cases.

    python distributed_world.py RANK SIZE STORE RESULTS SUITE...

Parents start one process a rank and wait for them, but not for ever. A process writes what became
of each case, as JSON, before the next one begins.
"""

import datetime
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

# No name server is asked for this host, and no NVLink multicast is set up.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # which other ranks would be waited for
    # NCCL tries again to reach a process that has ended, each time later: 3.6 s; 34 times are 60 s.
    "NCCL_SOCKET_RETRY_CNT": "8",
}
LIMIT = 300  # seconds for a suite of a world, of which it takes far fewer
TIMEOUT = 60  # seconds for one exchange
WATCHED = 15  # of NCCL, where its watchdog is to end what a dead rank has left
STACK = 55  # seconds until a process writes where it waits


def processes(size, folder, suites):
    """A process a rank, each with a file of what it says."""
    started = []
    for rank in range(size):
        said = open(folder / f"said-{rank}.txt", "w")  # noqa: SIM115
        command = [sys.executable, __file__, rank, size, folder / "store", folder, *suites]
        started.append(_started(command, said))
    return started


def launched(size, folder, command):
    """The same of a command, in the environment that torchrun gives it. Here, too, the store is
    in the parent, but no name is looked up: torchrun asks for that of the host, again and again,
    for many seconds each time where nobody answers."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "WORLD_SIZE": size}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": 0}
    started = []
    for rank in range(size):
        said = open(folder / f"said-{rank}.txt", "w")  # noqa: SIM115
        own = told | {"RANK": rank, "LOCAL_RANK": rank}
        started.append(_started(command, said, {name: str(value) for name, value in own.items()}))
    return store, started


def _started(command, said, told=None):
    environment = os.environ | ENVIRONMENT | (told or {})
    with said:
        return subprocess.Popen(
            list(map(str, command)), stdout=said, stderr=subprocess.STDOUT, env=environment
        )


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
    """What became of each case on each rank: [{"suite: case": "" or what went wrong}]."""
    found = []
    for rank in range(size):
        path, said = folder / f"results-{rank}.json", (folder / f"said-{rank}.txt").read_text()
        content = json.loads(path.read_text()) if path.exists() else {}
        found.append((content, said))
    return found


class World:
    """What a case knows of its world."""

    def __init__(self, rank, size, dies=False):
        import torch
        from support import DEVICE

        torch.set_num_threads(1)
        self.rank, self.size, self.dies = rank, size, dies
        self.device = torch.device(DEVICE, rank) if DEVICE != "cpu" else torch.device("cpu")
        self.backend = "gloo" if DEVICE == "cpu" else "nccl"
        if DEVICE != "cpu":
            torch.cuda.set_device(self.device)
        # gloo sees at once that a process has ended.
        seconds = WATCHED if dies and self.backend == "nccl" else TIMEOUT
        self.timeout = datetime.timedelta(seconds=seconds)

    def join(self, store):
        import torch.distributed as dist

        dist.init_process_group(
            self.backend, init_method=f"file://{store}", rank=self.rank, world_size=self.size,
            timeout=self.timeout,
        )  # fmt: skip


def main(rank, size, store, folder, *suites):
    sys.path.insert(0, str(Path(__file__).parent))
    import torch.distributed as dist

    cases = importlib.import_module("distributed_cases")
    world = World(int(rank), int(size), suites[0].startswith("dies"))
    world.join(store)
    found = {}
    tried = {f"{s}: {name}": case for s in suites for name, case in cases.SUITES[s].items()}
    for name, case in tried.items():
        faulthandler.dump_traceback_later(STACK)
        try:
            case(world)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        Path(folder, f"results-{rank}.json").write_text(json.dumps(found))
        if found[name]:  # the ranks may not be at the same place any more
            sys.exit(1)
    if world.dies:  # NCCL's watchdog would end what waits for all ranks, after its time
        sys.stdout.flush()
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
