"""What a process costs: wall-clock and CPU time, and its peak memory, from wait4(2)."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BARE = (sys.executable, "-I", "-S", "-c", "pass")
"""The least that starting Python costs: what all times are ratios to."""

COMMAND = str(Path(sys.executable).with_name("amd-cdi"))


@dataclass(frozen=True, slots=True)
class Cost:
    """Times in seconds, memory in MiB."""

    wall: float
    cpu: float
    memory: float


def cost(command: Sequence[str]) -> Cost:
    """Run a command, which must exit with 0, and return what it cost."""
    # Compiled modules are part of an installation.
    kept = {
        key: value
        for key, value in os.environ.items()
        if key != "PYTHONDONTWRITEBYTECODE" and not key.startswith("AMD_CDI_")
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} exits with {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each figure."""
    return Cost(
        statistics.median(each.wall for each in costs),
        statistics.median(each.cpu for each in costs),
        statistics.median(each.memory for each in costs),
    )


@dataclass(frozen=True, slots=True)
class Job:
    """A command that is measured, and what puts everything as it was before each run."""

    name: str
    command: tuple[str, ...]
    before: Callable[[], None] = lambda: None


def compare(jobs: Sequence[Job], runs: int) -> dict[str, Cost]:
    """Return the median cost of each job; all take turns, so that all see the same machine."""
    costs: dict[str, list[Cost]] = {job.name: [] for job in jobs}
    for turn in range(runs + 1):
        for job in jobs:
            job.before()
            measured = cost(job.command)
            # The first run compiles modules and fills caches.
            if turn:
                costs[job.name].append(measured)
    return {name: median(found) for name, found in costs.items()}
