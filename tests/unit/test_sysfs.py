from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from cdi.node import sysfs
from tests.captures import write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "base", "number"),
    [
        ("0", 10, 0),
        ("0099", 10, 99),
        ("0x74a1", 16, 0x74A1),
        ("74A1", 16, 0x74A1),
        ("8e1bb56457addd1b", 16, 0x8E1BB56457ADDD1B),
    ],
)
def test_numbers(text: str, base: int, number: int) -> None:
    assert sysfs.parse_number(text, base, 1 << 64, "here") == number


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("", 10),
        (" 1", 10),
        ("-1", 10),
        ("+1", 10),
        ("1_0", 10),
        ("1.5", 10),
        ("1e9", 10),
        ("٣", 10),
        ("²", 10),
        ("0x10", 10),
        ("0x", 16),
        ("0xg", 16),
        ("18446744073709551616", 10),
        ("9" * 5000, 10),
        ("0" * 21, 10),
    ],
)
def test_texts_that_are_no_numbers(text: str, base: int) -> None:
    with pytest.raises(sysfs.FileError, match="expected a number below 0x10000000000000000 as x"):
        sysfs.parse_number(text, base, 1 << 64, "x")


def test_the_limit_itself_is_too_much() -> None:
    assert sysfs.parse_number("255", 10, 256, "x") == 255
    with pytest.raises(sysfs.FileError, match="found '256'"):
        sysfs.parse_number("256", 10, 256, "x")


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    write(tmp_path / "file", "1")
    assert sysfs.read(f"{tmp_path}/missing") is None
    assert sysfs.read(f"{tmp_path}/file/below") is None
    assert sysfs.read_number(f"{tmp_path}/missing", 10, 9) is None
    assert sysfs.listing(f"{tmp_path}/missing") is None
    assert sysfs.numbered(f"{tmp_path}/missing") is None


def test_longest_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8191)
    assert sysfs.read(str(path)) == "x" * 8191
    path.write_bytes(b"x" * 8192)
    with pytest.raises(sysfs.FileError, match=f"less than 8192 bytes in {path}"):
        sysfs.read(str(path))


@pytest.mark.parametrize("content", [b"1\0", b"\xff"])
def test_only_text_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(sysfs.FileError, match=r"expected text in .*/file"):
        sysfs.read(f"{tmp_path}/file")


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "device", "loop"])
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path)
    with pytest.raises(sysfs.FileError, match=str(path)):
        sysfs.read(str(path))


def test_entries_that_are_numbers(tmp_path: Path) -> None:
    for name in ("10", "9", "x", "1x", "-1", "٣", "09", "1234567890"):
        write(tmp_path / name, "")
    assert sysfs.numbered(str(tmp_path)) == [9, 10]


def test_properties(tmp_path: Path) -> None:
    write(tmp_path / "properties", "simd_count 1216\nsimd_per_cu 4\nname \nodd")
    values = sysfs.Properties(f"{tmp_path}/properties")
    assert values.number("simd_count", 9999) == 1216
    assert values.number("simd", 9999, 7) == 7, "a name is not found within another"
    assert values.number("count", 9999, 7) == 7
    assert "simd_per_cu" in values
    assert "odd" not in values
    with pytest.raises(sysfs.FileError, match=r"expected gfx in .*properties, found no such line"):
        values.number("gfx", 9)
    with pytest.raises(sysfs.FileError, match=r"name in .*properties, found ''"):
        values.number("name", 9, 1)
