"""The storm of tests/libamvgpu/storm.py for ten minutes.

    python -m tests.bench.libamvgpu_storm [--minutes N]

Exits with 1 when live processes together ever held more than the limit.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.libamvgpu.runtime import (
    MIB,
    Runtime,
    Share,
    build_library,
    build_standin,
    hip_tree,
)
from tests.libamvgpu.storm import storm

LIMIT = 256 * MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build_library(folder / "build")
        standin = build_standin(folder / "standin")
        built = folder / "trixie"
        built.mkdir()
        shutil.copy(standin, built)
        hip = Runtime("trixie", hip_tree("trixie"), built, library)
        share = Share.make(folder, library, LIMIT)
        outcome = storm(hip, share, processes=8, threads=8, seconds=minutes * 60, kills_apart=0.25)
    print(outcome, f"limit={LIMIT}")
    return 0 if outcome.highest <= LIMIT and outcome.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
