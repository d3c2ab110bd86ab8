"""Files are replaced all together or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdi.errors import AmdCdiError
from cdi.files import Staging, at_once, staging


def test_many_files_come_into_their_places_and_no_descriptor_stays(tmp_path: Path) -> None:
    before = descriptors()
    with staging() as staged:
        for number in range(200):
            assert staged.write(tmp_path / str(number), b"%d" % number)
        assert all(path.name.startswith(".") for path in tmp_path.iterdir())
    assert {int(path.name): path.read_bytes() for path in tmp_path.iterdir()} == {
        number: b"%d" % number for number in range(200)
    }
    assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_was_there_is_kept_beside_it(tmp_path: Path) -> None:
    for content in (b"one", b"two", b"three"):
        with staging() as staged:
            staged.keep(tmp_path / "ledger", tmp_path / "previous")
            staged.write(tmp_path / "ledger", content)
    assert (tmp_path / "ledger").read_bytes() == b"three"
    assert (tmp_path / "previous").read_bytes() == b"two"


def test_a_failed_sync_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    staged = Staging()
    staged.write(tmp_path / "a", b"new")
    staged.write(tmp_path / "b", b"new")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(AmdCdiError, match=f"cannot write {tmp_path}/[ab]: No space left"):
        staged.commit(at_once)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


NO_THREADS = """
import os, resource, sys
from pathlib import Path
from cdi.files import at_once, staging
from deviceplugin.books import settle_behind
if os.geteuid() == 0:
    # The limit does not hold root; what is imported may be closed to others.
    os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
for settle in (at_once, settle_behind):
    with staging(settle) as staged:
        for name in "abc":
            staged.write(Path(name), settle.__name__.encode())
    assert len(os.listdir("/proc/self/fd")) == int(sys.argv[1])
"""


def test_where_there_are_no_more_threads_it_takes_longer(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    count = "import os; print(len(os.listdir('/proc/self/fd')))"
    command = [sys.executable, "-c"]
    bare = subprocess.run([*command, count], capture_output=True, check=True).stdout.strip()
    done = subprocess.run(
        [*command, NO_THREADS, bare],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        "abc", b"settle_behind"
    )
