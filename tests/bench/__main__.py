"""``python -m tests.bench``: speed and size, as ratios; exit status 1 if a bound is broken."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench import generator
from tests.bench.report import show


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="amd-cdi-bench-") as name:
        folder = Path(name)
        kept = [
            show("Commands on the sample mi300x-cpx (64 partitions)", generator.commands(folder)),
            show("generate by the number of GPUs, CPU time", generator.gpu_series(folder)),
            show("generate by the number of shares, CPU time", generator.share_series(folder)),
        ]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
