"""Files are replaced all together or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdi.errors import AmdCdiError
from cdi.files import staging


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

    def write_both() -> None:
        with staging() as staged:
            staged.write(tmp_path / "a", b"new")
            monkeypatch.setattr(os, "fsync", fail)
            staged.write(tmp_path / "b", b"new")

    with pytest.raises(AmdCdiError, match=f"cannot write {tmp_path}/b: No space left"):
        write_both()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def fail(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_whoever_comes_after_the_writing_can_stop_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    seen = []

    def write_both() -> None:
        with staging() as staged:
            staged.write(tmp_path / "a", b"new")
            staged.write(tmp_path / "b", b"new")
            seen.extend(sorted(path.name for path in tmp_path.iterdir()))
            raise AmdCdiError("no")

    with pytest.raises(AmdCdiError, match="no"):
        write_both()
    assert seen == [".a.new", ".b.new", "a"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_what_a_process_that_died_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    with staging() as staged:
        staged.write(tmp_path / "a", b"old")
    for name in "ab":
        (tmp_path / f".{name}.new").write_bytes(b"half")
    with staging() as staged:
        assert not staged.write(tmp_path / "a", b"old")
        assert staged.write(tmp_path / "b", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"old",
        "b": b"new",
    }
