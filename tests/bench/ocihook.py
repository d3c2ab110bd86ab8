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
from tests import hook_program
from tests.ocihook_scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG_BYTES = 64 * 1024

LIMITS = {
    "dmem_ratio": 2.5,
    "libc_ratio": 3.5,
    "crowd_ratio": 4.0,
    "program_dmem_ratio": 2.5,
    "program_libc_ratio": 3.5,
    "program_mib": 8.0,
}
"""Hook to bare Python, as files and as the static program, and the crowd's slowest hundredth to its
fair share of the cores."""


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


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return the figures: times in milliseconds, and what each may be at most."""
    bare = [options.interpreter, "-I", "-S", "-c", "pass"]
    install(folder / "hook", options.interpreter)
    hook = str(folder / "hook/amd-oci-hook")
    alone, dmem = compare(bare, lay(folder / "dmem", dmem=True), hook, options.runs)
    figures = {"bare_ms": alone * 1e3, "dmem_ms": dmem * 1e3, "dmem_ratio": dmem / alone}
    alone, libc = compare(bare, lay(folder / "libc", dmem=False), hook, options.runs)
    figures |= {"libc_ms": libc * 1e3, "libc_ratio": libc / alone}
    program = hook_program.build(folder / "program")
    for name, dmem_is_there in (("dmem", True), ("libc", False)):
        scene = lay(folder / f"program-{name}", dmem=dmem_is_there)
        alone, whole = compare(bare, scene, str(program), options.runs)
        figures |= {f"program_{name}_ms": whole * 1e3, f"program_{name}_ratio": whole / alone}
    figures["program_mib"] = program.stat().st_size / 2**20
    scenes = [lay(folder / f"c{i}", dmem=True) for i in range(options.crowd)]
    times = crowd(scenes, hook)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    share = dmem * options.crowd / (os.cpu_count() or 1)
    return figures | {"crowd_p99_ms": p99 * 1e3, "crowd_ratio": p99 / share}


def main() -> int:
    """Print the figures as JSON; the status is 1 if one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--crowd", type=int, default=64)
    parser.add_argument("--interpreter", default="/usr/bin/python3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = measure(options, Path(name))
    print(json.dumps(figures, indent=1))
    above = [name for name, limit in LIMITS.items() if figures[name] > limit]
    for name in above:
        print(f"{name}: expected at most {LIMITS[name]}, found {figures[name]}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
