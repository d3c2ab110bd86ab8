"""Many processes and threads at once, and an observer who reads the stand-in's own account."""

from __future__ import annotations

import mmap
import random
import signal
import struct
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.libamvgpu.runtime import ACCOUNT_SLOT, ACCOUNT_SLOTS, SOURCE, Runtime, Share

if TYPE_CHECKING:
    from pathlib import Path

PID, NUMBER = struct.Struct("<I"), struct.Struct("<Q")
DONE, BEGUN, HELD = 8, 16, 24  # in a slot of the stand-in's account; what is held of GPU 0


@dataclass
class Outcome:
    """`highest` is the most bytes that live processes held at any look."""

    highest: int = 0
    looks: int = 0
    kills: int = 0
    granted: int = 0
    refused: int = 0
    failed: int = 0


class Observer:
    """Sums what live processes hold. It is also the one who kills, so that none dies unseen."""

    def __init__(self, account: Path) -> None:
        with account.open("a+b") as file:
            file.truncate(NUMBER.size + ACCOUNT_SLOT.size * ACCOUNT_SLOTS)
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.ended: set[int] = set()  # places of slots; process numbers come again

    def places(self, pids: set[int]) -> list[int]:
        (taken,) = NUMBER.unpack_from(self.map, 0)
        found = [NUMBER.size + ACCOUNT_SLOT.size * i for i in range(taken)]
        return [
            at for at in found if at not in self.ended and PID.unpack_from(self.map, at)[0] in pids
        ]

    def end(self, pid: int) -> None:
        """The process has ended: what its slot says is free, also when its number comes again."""
        self.ended.update(self.places({pid}))

    def held(self, living: set[int]) -> int | None:
        """Bytes that the living held at one moment, None when some changed meanwhile."""
        places = self.places(living)
        done = [NUMBER.unpack_from(self.map, at + DONE)[0] for at in places]
        held = [NUMBER.unpack_from(self.map, at + HELD)[0] for at in places]
        begun = [NUMBER.unpack_from(self.map, at + BEGUN)[0] for at in places]
        return sum(held) if begun == done else None


def storm(
    hip: Runtime, share: Share, *, processes: int, threads: int, seconds: float, kills_apart: float
) -> Outcome:
    """Run `processes` of `threads` for `seconds`, killing one at random every `kills_apart`."""
    program = hip.compile(SOURCE / "tests" / "storm.c")
    limit = int(share.limits[0])
    # Ten times the limit is asked for: most of the time somebody is refused.
    command = [*hip.loader(), program, str(threads), str(limit // (processes * threads))]
    environment = share.environment({"STANDIN_GPUS": "1", "LIBHIP_LOG_LEVEL": "0"})

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    outcome = Outcome()
    observer = Observer(share.account)
    running = [begin() for _ in range(processes)]
    end = time.monotonic() + seconds
    kill_at = time.monotonic() + kills_apart
    chance = random.Random(1)
    while time.monotonic() < end:
        living = {process.pid for process in running}
        held = observer.held(living)
        if held is not None:
            outcome.highest = max(outcome.highest, held)
            outcome.looks += 1
        if time.monotonic() > kill_at:
            victim = chance.randrange(processes)
            running[victim].send_signal(signal.SIGKILL)
            running[victim].communicate()
            observer.end(running[victim].pid)
            running[victim] = begin()
            outcome.kills += 1
            kill_at = time.monotonic() + kills_apart
    for process in running:
        text, _ = process.communicate()
        granted, refused, failed = map(int, text.split())
        outcome.granted += granted
        outcome.refused += refused
        outcome.failed += failed
    return outcome
