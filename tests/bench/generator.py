"""What the ``amd-cdi`` command and the planner cost."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from cdi.node import topology
from cdi.plan import planner
from cdi.plan.amount import MIB, Amount
from cdi.state import ledger
from tests.bench.node import BenchNode, of_gpus, of_sample
from tests.bench.process import BARE, COMMAND, Job, compare
from tests.bench.report import Figure

SAMPLE = "mi300x-cpx"
"""The bundled node of 64 partitions."""

RUNS = 15

SERIES_RUNS = 5

GPUS = (1, 2, 4, 8, 16, 32, 64)

SHARES = (0, 625, 1250, 2500, 5000)

GROWTH = 2.2
"""What linear cost grows by when the size doubles is at most 2, and a tenth is for noise."""


def commands(folder: Path) -> list[Figure]:
    """Return the costs of single commands on the bundled node of 64 partitions."""
    empty = of_sample(SAMPLE, folder / "empty", 0)
    full = of_sample(SAMPLE, folder / "full", 640)
    found = compare(
        [
            Job("bare", BARE),
            Job("--version", (COMMAND, "--version")),
            _generate("generate", empty),
            _generate("generate, 640 shares", full),
        ],
        RUNS,
    )
    bare = found["bare"]
    figures = [
        Figure("python3 -I -S -c pass", bare.wall * 1e3, "ms"),
        *(
            Figure(f"amd-cdi {name}", found[name].wall / bare.wall, "times", bound)
            for name, bound in (
                ("--version", 8),
                ("generate", 20),
                ("generate, 640 shares", 30),
            )
        ),
        *(
            Figure(f"amd-cdi {name}: CPU time", found[name].cpu / bare.cpu, "times")
            for name in ("generate", "generate, 640 shares")
        ),
        *(
            Figure(f"amd-cdi {name}: peak memory", found[name].memory, "MiB", 64)
            for name in ("generate", "generate, 640 shares")
        ),
    ]
    return [*figures, Figure("plan one share beside 640", _planning(full) * 1e3, "ms", 2)]


def gpu_series(folder: Path) -> list[Figure]:
    """Return what ``generate`` costs by the number of GPUs."""
    nodes = {count: of_gpus(count, folder / f"gpus-{count}", 0) for count in GPUS}
    return _series(nodes, "GPUs")


def share_series(folder: Path) -> list[Figure]:
    """Return what ``generate`` costs on 64 GPUs by the number of shares."""
    nodes = {count: of_gpus(64, folder / f"shares-{count}", count) for count in SHARES}
    return _series(nodes, "shares on 64 GPUs")


def _series(nodes: dict[int, BenchNode], what: str) -> list[Figure]:
    """Return the CPU time of ``generate`` by size, and what the last doubling costs.

    CPU time, because a series is about what the program does, not about the disk.
    """
    jobs = [Job("bare", BARE), *(_generate(str(size), node) for size, node in nodes.items())]
    found = compare(jobs, SERIES_RUNS)
    ratios = {size: found[str(size)].cpu / found["bare"].cpu for size in nodes}
    *_, half, last = nodes
    return [
        *(Figure(f"{size} {what}", ratio, "times") for size, ratio in ratios.items()),
        Figure(f"from {half} to {last}", ratios[last] / ratios[half], "times", GROWTH),
    ]


def _generate(name: str, node: BenchNode) -> Job:
    return Job(name, (COMMAND, "generate", *node.options), node.forget)


def _planning(bench: BenchNode) -> float:
    """Return the median time to place one share beside those of a node, in seconds."""
    node = topology.read_node(bench.sysroot)
    living = ledger.load(bench.state_dir).shares
    gpu = node.gpus[0]
    want = planner.Want(
        gpu, gpu.partitions[0], Amount(3, percent=False), Amount(MIB, percent=False)
    )
    times = []
    for _ in range(101):
        began = time.perf_counter()
        planner.plan("share-new", [want], living)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
