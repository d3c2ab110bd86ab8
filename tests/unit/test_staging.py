"""Files are replaced all together or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cdi.errors import AmdCdiError
from cdi.files import MAX_SPARES, Spares, Staging, at_once, staging
from tests import need


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
    staged = Staging()
    staged.write(tmp_path / "a", b"new")
    staged.write(tmp_path / "b", b"new")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(AmdCdiError, match=f"cannot write {tmp_path}/[ab]: No space left"):
        staged.commit(at_once)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def fail(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


NO_THREADS = """
import os, resource, sys
from pathlib import Path
from cdi.files import at_once, staging
from deviceplugin.reservations import settle_behind
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


def test_what_is_asked_last_can_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    seen = []

    def refuse() -> None:
        seen.extend(sorted(path.name for path in tmp_path.iterdir()))
        raise AmdCdiError("no")

    def write_both() -> None:
        with staging(confirm=refuse) as staged:
            staged.write(tmp_path / "a", b"new")
            staged.write(tmp_path / "b", b"new")

    with pytest.raises(AmdCdiError, match="no"):
        write_both()
    assert seen == [".a.new", ".b.new", "a"], "it is asked when all is written"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}
    # And who agreed learns of a disk that does not.
    monkeypatch.setattr(os, "fsync", fail)
    agreed: list[bool] = []
    with (
        pytest.raises(AmdCdiError, match="No space left"),
        staging(confirm=lambda: agreed.append(True)) as staged,
    ):
        staged.write(tmp_path / "a", b"new")
    assert agreed
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_files_that_are_ready_have_no_name(tmp_path: Path) -> None:
    spares = Spares()
    before = descriptors()
    for number in range(50):
        with staging(spares=spares) as staged:
            for name in "abc":
                staged.write(tmp_path / name, b"%d" % number)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
            "abc", b"%d" % number
        )
        assert {path.stat().st_mode for path in tmp_path.iterdir()} == {0o100644}
        assert descriptors() == before + MAX_SPARES
    (tmp_path / ".a.new").write_bytes(b"left by a process that died")
    with staging(spares=spares) as staged:
        staged.write(tmp_path / "a", b"last")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}
    assert (tmp_path / "a").read_bytes() == b"last"
    spares.close()
    assert descriptors() == before


def test_files_that_are_ready_elsewhere_are_of_no_use(tmp_path: Path) -> None:
    need.superuser("mounting")
    spares = Spares()
    place = tmp_path / "place"
    place.mkdir()
    with staging(spares=spares) as staged:
        staged.write(place / "a", b"below")
    before = descriptors()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", place], check=True)
    try:
        # A ramfs has no files without a name in old kernels, and the ready ones are not on it.
        for content in (b"one", b"two"):
            with staging(spares=spares) as staged:
                staged.write(place / "a", content)
            assert (place / "a").read_bytes() == content
        assert descriptors() <= before + MAX_SPARES
    finally:
        spares.close()
        assert descriptors() < before
        subprocess.run(["umount", place], check=True)
    assert (place / "a").read_bytes() == b"below"


def test_files_are_made_ready_while_others_are_taken(tmp_path: Path) -> None:
    spares = Spares()
    errors: list[BaseException] = []
    stop = threading.Event()

    def refill() -> None:
        try:
            while not stop.is_set():
                spares.refill()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=refill) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(400):
            # New directories change what the other threads go through.
            path = tmp_path / str(number % 100) / str(number)
            path.parent.mkdir(exist_ok=True)
            descriptor = spares.take(path)
            assert (descriptor is not None) == path.exists()
            if descriptor is not None:
                os.close(descriptor)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        spares.close()
    assert not errors
