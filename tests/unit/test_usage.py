"""Usage regions: complete or not there, and never touched once they are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cdi.state import usage

ONE_GPU = 4096 + 1024 * (16 + 8)
"""A page, and for each of 1024 processes an id, a start time and the bytes on one GPU."""


def test_a_region_is_whole_and_open_to_every_user(tmp_path: Path) -> None:
    usage.lay(tmp_path, {"share-a": 1})
    path = tmp_path / "share-a"
    assert path.read_bytes() == bytes(ONE_GPU)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert path.stat().st_blocks * 512 >= ONE_GPU
    assert list(tmp_path.iterdir()) == [path]


def test_a_region_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "share-a"
    path.write_bytes(b"in use")
    usage.lay(tmp_path, {"share-a": 1})
    assert path.read_bytes() == b"in use"


def test_what_a_crash_left_is_neither_taken_for_a_region_nor_kept(tmp_path: Path) -> None:
    (tmp_path / ".share-a.new").write_bytes(b"half")
    (tmp_path / ".share-gone.new").write_bytes(b"half")
    usage.lay(tmp_path, {"share-a": 1})
    assert (tmp_path / "share-a").read_bytes() == bytes(ONE_GPU)
    assert {path.name for path in tmp_path.iterdir()} == {"share-a", ".share-gone.new"}
    usage.sweep(tmp_path, {"share-a"})
    assert [path.name for path in tmp_path.iterdir()] == ["share-a"]


def test_bounded_is_what_the_system_calls_a_mount(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/proc")
    (tmp_path / "nowhere").symlink_to("missing")
    mounts = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    plain = [tmp_path, *(tmp_path / name for name in ("file", "link", "nowhere", "missing"))]
    assert Path("/proc") in mounts
    for path in [*mounts, *plain]:
        expected = path if os.path.ismount(path) and path.is_dir() else None
        assert usage.bounded(path) == expected, path
    assert not any(map(usage.bounded, plain))
