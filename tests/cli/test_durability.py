"""What a crash of the machine cannot take: the system calls of a real process, in their order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import need
from tests.cli.host import Host


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that succeeded, and the lines of the trace where it began and ended."""

    name: str
    paths: tuple[Path, ...]
    began: int
    ended: int


def read(trace: str) -> list[Call]:
    """Read a trace of several threads, in which one line begins a call and another may end it."""
    calls = []
    unfinished: dict[str, tuple[int, str]] = {}
    for ended, line in enumerate(trace.splitlines()):
        thread, said = line.split(maxsplit=1)
        if said.endswith("<unfinished ...>"):
            unfinished[thread] = (ended, said.removesuffix("<unfinished ...>"))
            continue
        began = ended
        if resumed := re.match(r"<\.\.\. \w+ resumed>", said):
            began, first = unfinished.pop(thread)
            said = first + said[resumed.end() :]
        if done := re.fullmatch(r"(\w+)\((.*)\) += 0", said):
            # `fsync(3</a/b>)`, `rename("/a/b", "/a/c")`
            paths = re.findall(r'"(/[^"]*)"|\d<(/[^>]*)>', done[2])
            calls.append(Call(done[1], tuple(Path(a or b) for a, b in paths), began, ended))
    return calls


@pytest.fixture
def traced(radeons: Host) -> list[Call]:
    """What `share create` does where a share is already."""
    arguments = ["--gpu", "0", "--cores", "25", "--memory", "1GiB"]
    radeons.share("create", "a", *arguments).done()
    trace = radeons.folder / "trace"
    watched = "trace=fsync,fdatasync,rename,renameat,renameat2"
    strace = [
        str(need.program("strace")),
        "-f",
        "--seccomp-bpf",
        "-y",
        "-o",
        str(trace),
        "-e",
        watched,
    ]
    radeons.under(*strace).share("create", "b", *arguments).done()
    return read(trace.read_text())


def syncs(calls: list[Call], path: Path) -> list[Call]:
    return [call for call in calls if "sync" in call.name and call.paths == (path,)]


def rename(calls: list[Call], target: Path) -> Call:
    (found,) = [call for call in calls if "rename" in call.name and call.paths[1:] == (target,)]
    return found


def test_nothing_that_was_done_is_lost(radeons: Host, traced: list[Call]) -> None:
    for target in (
        radeons.state_dir / "shares/share-b.conf",
        radeons.ledger_file,
        radeons.spec_file,
    ):
        renamed = rename(traced, target)
        (synced,) = syncs(traced, renamed.paths[0])
        assert synced.ended < renamed.began, "a name for what the disk may not hold yet"
        assert any(one.began > renamed.ended for one in syncs(traced, target.parent))


def test_the_spec_is_never_ahead_of_the_ledger(radeons: Host, traced: list[Call]) -> None:
    """A crash between the two leaves a ledger that the spec can be made of."""
    assert rename(traced, radeons.ledger_file).ended < rename(traced, radeons.spec_file).began
