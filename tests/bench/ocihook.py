"""What the hook costs before a container, as a ratio to starting Python alone.

Run as ``python -m tests.bench.ocihook``. Runs of the hook and of bare Python take turns, so that
both see the same machine; the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ocihook.install import install
from tests.ocihook_scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG_BYTES = 64 * 1024


def seconds(command: list[str], text: str = "") -> float:
    """Return how long a command takes with an empty environment; it must exit with 0."""
    start = time.perf_counter()
    subprocess.run(command, input=text.encode(), env={}, check=True, capture_output=True)
    return time.perf_counter() - start


def compare(bare: list[str], scene: Scene, hook: str, runs: int) -> tuple[float, float]:
    """Return the medians of bare Python and of the hook, in seconds."""
    state = json.dumps(scene.state)
    command = [hook, *scene.arguments()]
    alone, whole = [], []
    for _ in range(runs):
        alone.append(seconds(bare))
        whole.append(seconds(command, state))
    return statistics.median(alone), statistics.median(whole)


def crowd(scenes: list[Scene], hook: str) -> list[float]:
    """Return the sorted times of hooks that all start at once."""
    with ThreadPoolExecutor(len(scenes)) as pool:
        jobs: list[Callable[[], float]] = [
            lambda s=scene: seconds([hook, *s.arguments()], json.dumps(s.state)) for scene in scenes
        ]
        return sorted(pool.map(lambda job: job(), jobs))


def lay(folder: Path, *, dmem: bool) -> Scene:
    """Lay a scene whose container has the machine's own programs and libc."""
    scene = Scene(folder)
    for path in ("bin", "lib", "lib64", "usr"):
        if Path("/", path).exists():
            scene.config["mounts"].insert(
                0,
                {
                    "destination": f"/{path}",
                    "type": "bind",
                    "source": f"/{path}",
                    "options": ["rbind", "ro"],
                },
            )
    return scene.lay(dmem=dmem, size=CONFIG_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--crowd", type=int, default=64)
    parser.add_argument("--interpreter", default="/usr/bin/python3")
    options = parser.parse_args()
    bare = [options.interpreter, "-I", "-S", "-c", "pass"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "hook", options.interpreter)
        hook = str(folder / "hook/amd-oci-hook")
        report = {"python": sys.version.split()[0], "runs": options.runs}
        with_dmem = lay(folder / "dmem", dmem=True)
        alone, whole = compare(bare, with_dmem, hook, options.runs)
        report |= {"bare_ms": alone * 1e3, "dmem_ms": whole * 1e3, "dmem_ratio": whole / alone}
        alone, libc = compare(bare, lay(folder / "libc", dmem=False), hook, options.runs)
        report |= {"libc_ms": libc * 1e3, "libc_ratio": libc / alone}
        scenes = [lay(folder / f"c{i}", dmem=True) for i in range(options.crowd)]
        times = crowd(scenes, hook)
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        bound = 4 * whole * options.crowd / (os.cpu_count() or 1)
        report |= {"crowd_p99_ms": p99 * 1e3, "crowd_bound_ms": bound * 1e3}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
