"""Files that are replaced whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cdi.errors import PermanentError, TemporaryError
from cdi.files import lock, read_bounded, staging


def test_all_files_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"old")
    with pytest.raises(RuntimeError), staging() as staged:
        staged.write(first, b"new")
        staged.write(second, b"new")
        raise RuntimeError
    assert first.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [first]
    with staging() as staged:
        assert staged.write(first, b"new")
        assert staged.write(second, b"new")
        assert first.read_bytes() == b"old"
    assert (first.read_bytes(), second.read_bytes()) == (b"new", b"new")
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_a_failure_of_the_second_leaves_the_first(tmp_path: Path) -> None:
    first = tmp_path / "a"
    first.write_bytes(b"old")
    with pytest.raises(PermanentError, match="none/b"), staging() as staged:
        staged.write(first, b"new")
        staged.write(tmp_path / "none/b", b"new")
    assert first.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [first]


def test_everyone_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with staging() as staged:
            staged.write(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_an_unchanged_file_is_left_alone_but_not_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with staging() as staged:
        staged.write(path, b"x")
    before = path.stat()
    with staging() as staged:
        assert not staged.write(path, b"x")
    assert path.stat() == before
    path.chmod(0o600)
    with staging() as staged:
        assert staged.write(path, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "a").symlink_to("target")
    (tmp_path / ".a.new").symlink_to("target")
    with staging() as staged:
        staged.write(tmp_path / "a", b"x")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "a").is_symlink()


def test_a_device_is_no_place_for_a_file() -> None:
    with pytest.raises(PermanentError, match="/dev/null"), staging() as staged:
        staged.write(Path("/dev/null"), b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_directory_is_no_place_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(PermanentError, match="choose a file"), staging() as staged:
        staged.write(tmp_path / "a", b"x")


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".a.new").write_bytes(b"half")
    with staging() as staged:
        staged.write(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def hold(directory: Path, ready: object, done: object) -> None:
    with lock(directory):
        ready.set()  # type: ignore[attr-defined]
        done.wait()  # type: ignore[attr-defined]


def test_a_lock_is_held_by_one_process_and_freed_by_its_death(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path, ready, done))
    holder.start()
    ready.wait()
    with pytest.raises(TemporaryError, match=str(tmp_path)), lock(tmp_path, seconds=0.05):
        pass
    holder.kill()
    holder.join()
    with lock(tmp_path, seconds=5):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with lock(tmp_path, name=".lock"):
            assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600
    finally:
        os.umask(before)
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(PermanentError), lock(tmp_path, name="link"):
        pass
    assert not (tmp_path / "target").exists()


def test_a_fifo_in_the_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with lock(tmp_path, name=".lock"):
        pass


def hold_and_remove(directory: Path, ready: object, go: object) -> None:
    with lock(directory, name=".lock"):
        ready.set()  # type: ignore[attr-defined]
        go.wait()  # type: ignore[attr-defined]
        (directory / ".lock").unlink()


def test_who_waits_for_a_lock_that_is_removed_gets_the_new_one(tmp_path: Path) -> None:
    """Else one would hold the lock of a file that is gone, and another that of its successor."""
    context = multiprocessing.get_context("fork")
    ready, go, waiting = context.Event(), context.Event(), context.Event()
    holder = context.Process(target=hold_and_remove, args=(tmp_path, ready, go), daemon=True)
    holder.start()
    ready.wait()
    done = context.Event()
    waiter = context.Process(target=wait_and_hold, args=(tmp_path, waiting, done), daemon=True)
    waiter.start()
    time.sleep(0.1)
    go.set()
    waiting.wait(10)
    assert (tmp_path / ".lock").exists()
    with pytest.raises(TemporaryError), lock(tmp_path, seconds=0.05, name=".lock"):
        pass
    done.set()
    for process in (holder, waiter):
        process.join()


def wait_and_hold(directory: Path, waiting: object, done: object) -> None:
    with lock(directory, name=".lock"):
        waiting.set()  # type: ignore[attr-defined]
        done.wait()  # type: ignore[attr-defined]


def test_a_lock_of_a_directory_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with lock(tmp_path / "link", seconds=5):
        pass


def test_a_directory_where_the_earlier_file_is_kept_leaves_all_others(tmp_path: Path) -> None:
    first, kept = tmp_path / "a", tmp_path / "a.previous"
    first.write_bytes(b"old")
    kept.mkdir()
    with pytest.raises(PermanentError, match=r"a\.previous"), staging() as staged:
        staged.write(tmp_path / "b", b"new")
        staged.keep(first, kept)
    assert set(tmp_path.iterdir()) == {first, kept}


def test_reading_is_bounded_and_takes_regular_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, 100) == b"x" * 100
    with pytest.raises(PermanentError, match="larger"):
        read_bounded(path, 99)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PermanentError, match="regular file"):
        read_bounded(tmp_path / "fifo", 10)


def hold_again_and_again(directory: Path) -> None:
    while True:
        with lock(directory):
            time.sleep(0.06)
        # A command that has ended is not at once there again.
        time.sleep(0.02)


def test_who_has_little_time_gets_a_turn_among_many(tmp_path: Path) -> None:
    """Of 12 turns in 0.75 s, one of 49 that all look equally often gets one in a quarter of times.

    Who looks 27 times as often as each of 48 gets a third of the turns, so one of 12 for certain.
    """
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=hold_again_and_again, args=(tmp_path,)) for _ in range(48)]
    for other in others:
        other.start()
    got = 0
    for _ in range(36):
        time.sleep(0.1)
        with suppress(TemporaryError), lock(tmp_path, seconds=0.75):
            got += 1
    for other in others:
        other.kill()
        other.join()
    # Equals would get 9 of 36.
    assert got >= 18
