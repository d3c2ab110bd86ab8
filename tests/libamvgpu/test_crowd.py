"""As many processes at once as the region has slots, and one more."""

from __future__ import annotations

import os
import select
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.libamvgpu import region
from tests.libamvgpu.runtime import MIB, SOURCE, Runtime, Share

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CROWD = 1024
LEFT = 300  # pieces that are left when everybody has one
LIMIT = (CROWD + LEFT) * MIB
PATIENCE = 60.0


class Crowd:
    """Processes of tests/crowd.c: three pipes to all of them, whose ends let them go on all at
    once, and one from all of them."""

    def __init__(self, hip: Runtime, share: Share, count: int) -> None:
        program = hip.compile(SOURCE / "tests" / "crowd.c", "-Wl,--as-needed")
        gates = [os.pipe() for _ in range(3)]
        inherited = [reader for reader, _ in gates]
        self.gates = [writer for _, writer in gates]
        self.answers, output = os.pipe()
        self.errors = share.folder / f"errors-{output}"
        with self.errors.open("ab") as errors:
            self.processes = [
                subprocess.Popen(
                    [*hip.loader(), program, str(MIB), *map(str, inherited)],
                    env=share.environment({"STANDIN_GPUS": "1"}),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    pass_fds=inherited,
                )
                for _ in range(count)
            ]
        for file in (*inherited, output):
            os.close(file)

    def step(self) -> dict[int, int]:
        """Let all do their next step; what each of them was granted."""
        text, count = b"", len(self.processes)
        os.close(self.gates.pop(0))
        end = time.monotonic() + PATIENCE
        while len(lines := text.splitlines()) < count:
            ready, _, _ = select.select([self.answers], [], [], end - time.monotonic())
            assert ready, f"{len(lines)} of {count} answered: {self.errors.read_text()}"
            text += os.read(self.answers, 1 << 16)
        return {int(pid): int(granted) for pid, granted in map(bytes.split, lines)}

    def end(self) -> None:
        """Those that live give back what they hold, and end."""
        os.close(self.gates.pop(0))
        for process in self.processes:
            process.wait(PATIENCE)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for file in (*self.gates, self.answers):
            os.close(file)


@contextmanager
def crowd(hip: Runtime, share: Share, count: int) -> Iterator[Crowd]:
    made = Crowd(hip, share, count)
    try:
        yield made
    finally:
        made.close()


def test_a_process_for_every_slot(trixie: Runtime, library: Path, tmp_path: Path) -> None:
    share = Share.make(tmp_path, library, LIMIT)
    with crowd(trixie, share, CROWD) as many:
        # All at once take their slot and their first piece.
        pids = {process.pid for process in many.processes}
        assert many.step() == dict.fromkeys(pids, 1)
        assert set(region.pids(share.usage)) == pids
        assert region.used(share.usage, 0) == [MIB] * CROWD
        assert share.allocated() == CROWD * MIB

        # One more finds no slot, though there is memory left.
        with crowd(trixie, share, 1) as late:
            assert list(late.step().values()) == [0]
            assert "expected a free slot, found 1024 live processes" in late.errors.read_text()
        assert set(region.pids(share.usage)) == pids
        assert share.counted() == share.allocated() == CROWD * MIB

        # All at once want whatever is left: just that is granted, and nobody is put off.
        more = many.step()
        assert sum(more.values()) == LEFT
        assert share.counted() == share.allocated() == LIMIT
        held = zip(region.pids(share.usage), region.used(share.usage, 0), strict=True)
        assert dict(held) == {pid: (1 + granted) * MIB for pid, granted in more.items()}

        # One half is killed, the other gives back what it holds.
        for process in many.processes[::2]:
            process.kill()
        many.end()
    assert "ERROR" not in many.errors.read_text()

    with crowd(trixie, share, 1) as last:
        assert list(last.step().values()) == [1]
        assert region.pids(share.usage) == [last.processes[0].pid]
        assert share.counted() == MIB
        assert list(last.step().values()) == [CROWD + LEFT - 1]
        last.end()
    assert share.counted() == 0
