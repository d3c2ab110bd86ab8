"""A command that is killed before any of its renames and removals leaves what the next heals."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys

import pytest

from cdi.spec import registry
from tests.cli.conftest import MakeHost
from tests.cli.host import Host

KILLED = """
import os, signal, sys
left = int(sys.argv.pop(1))
def audit(event, arguments):
    global left
    if event in ("os.rename", "os.remove"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
from cdi.__main__ import main
main()
"""


def killed(host: Host, step: int, *arguments: str) -> bool:
    """Run a command that dies before so many renames and removals; say whether it came to that."""
    command = [sys.executable, "-c", KILLED, str(step), *arguments]
    done = subprocess.run(command, env=host.environment, capture_output=True, check=False)
    assert done.returncode in {0, -signal.SIGKILL}, done
    return done.returncode != 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--format", "json"),
        ("share", "create", "c", "--gpu", "1", "--memory", "1GiB", "--require", "none"),
        ("share", "remove", "b"),
    ],
    ids=" ".join,
)
def test_the_next_command_finds_its_way(on: MakeHost, arguments: tuple[str, ...]) -> None:
    host = on("rx7900xtx")
    for name in ("a", "b"):
        host.share("create", name, "--gpu", "0", "--cores", "10", "--memory", "1GiB").done()
    places = (host.spec_dir, host.state_dir)
    for place in places:
        shutil.copytree(place, place.with_suffix(".before"))
    for step in itertools.count(1):
        if not killed(host, step, *arguments):
            break
        host.share("create", "d", "--gpu", "0", "--cores", "10", "--memory", "1GiB").done()
        shares = {share["name"] for share in host.ledger()["shares"]}
        assert shares >= {"share-a", "share-d"}
        # The one file that runtimes find has all that the ledger has.
        (entry,) = [registry.load(path) for path in registry.paths_in(host.spec_dir)]
        offered = {name.rpartition("=")[2] for name in entry.devices}
        assert offered >= {"0", "1", "all"}
        assert {name for name in offered if name.startswith("share-")} == shares
        assert {path.name for path in (host.state_dir / "shares").iterdir()} == {
            f"{share}{suffix}" for share in shares for suffix in (".conf", ".args")
        }
        assert not list(host.state_dir.glob(".ledger.*"))
        for place in places:
            shutil.rmtree(place)
            shutil.copytree(place.with_suffix(".before"), place)
    assert step > 3
