from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdi.node.products import Names, normalise, parse_ids
from tests import need
from tests.captures import write

LIBDRM = "usr/share/libdrm/amdgpu.ids"
AMD = "opt/amdgpu/share/libdrm/amdgpu.ids"


def test_the_gpus_own_name_comes_first(tmp_path: Path) -> None:
    write(tmp_path / LIBDRM, "74A1,\t00,\tListed")
    assert Names(tmp_path).market_name("AMD Instinct MI300X OAM", 0x74A1, 0) == (
        "AMD Instinct MI300X OAM"
    )


@pytest.mark.parametrize("place", [LIBDRM, AMD])
@pytest.mark.parametrize("told", ["", "\n", " \t\n"])
def test_then_libdrms_list_in_the_sysroot(tmp_path: Path, place: str, told: str) -> None:
    write(tmp_path / place, "# device, revision, name\n1.0.0\n744C,\tC8,\tListed XTX\n")
    assert Names(tmp_path).market_name(told, 0x744C, 0xC8) == "Listed XTX"


@pytest.mark.parametrize(
    ("device_id", "revision", "name"),
    [
        # Each as in libdrm's amdgpu.ids.
        (0x738C, 0x01, "AMD Instinct MI100"),
        (0x7408, 0x00, "AMD Instinct MI250X"),
        (0x740C, 0x01, "AMD Instinct MI250X / MI250"),
        (0x740F, 0x02, "AMD Instinct MI210"),
        (0x74A0, 0x00, "AMD Instinct MI300A"),
        (0x74A1, 0x00, "AMD Instinct MI300X"),
        (0x74A5, 0x00, "AMD Instinct MI325X"),
        (0x74B5, 0x00, "AMD Instinct MI300X VF"),
        (0x75A0, 0x00, "AMD Instinct MI350X"),
        (0x75A3, 0x00, "AMD Instinct MI355X"),
        (0x73BF, 0xC1, "AMD Radeon RX 6800 XT"),
        (0x744C, 0xC8, "AMD Radeon RX 7900 XTX"),
        (0x744C, 0xCC, "AMD Radeon RX 7900 XT"),
        (0x7550, 0xC0, "AMD Radeon RX 9070 XT"),
        (0x7551, 0xC0, "AMD Radeon AI PRO R9700"),
        (0x150E, 0xC1, "AMD Radeon 890M Graphics"),
    ],
)
def test_then_our_own_table(tmp_path: Path, device_id: int, revision: int, name: str) -> None:
    assert Names(tmp_path).market_name("", device_id, revision) == name


@pytest.mark.parametrize(
    ("device_id", "revision", "name"),
    [
        (0x74A1, 0x07, "AMD Instinct MI300X"),  # one product whatever the revision
        (0x744C, 0x07, "AMD GPU 744c"),  # several products, and none of this revision
        (0xABC, 0x00, "AMD GPU 0abc"),
    ],
)
def test_at_last_the_device_id(tmp_path: Path, device_id: int, revision: int, name: str) -> None:
    assert Names(tmp_path).market_name("", device_id, revision) == name


def test_our_table_agrees_with_debians_list(tmp_path: Path) -> None:
    path = need.file(Path("/", LIBDRM))
    compared = 0
    for (device, revision), listed in parse_ids(path.read_text(encoding="utf-8")).items():
        if (device, revision) == ("743f", "c3"):
            continue  # listed twice, with two names
        name = Names(tmp_path).market_name("", int(device, 16), int(revision, 16))
        if not name.startswith("AMD GPU "):
            assert name == listed
            compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("AMD Radeon Pro W7800\n", "AMD Radeon Pro W7800"),
        ("a,b:c;d", "a b c d"),
        (" a \t\r\n b ", "a b"),
        ("a\x00b\x1b[0mc\x7f", "a b [0mc"),
        ("a\u2028b\u200bc\u00a0d", "a b c d"),
        ("Größe 7", "Größe 7"),
        (",;:", ""),
        ("x" * 100, "x" * 64),
    ],
)
def test_names_are_safe_in_lists_and_lines(told: str, name: str) -> None:
    assert normalise(told) == name


@given(st.text())
def test_any_name_is_made_safe(told: str) -> None:
    name = normalise(told)
    assert len(name) <= 64
    assert name == normalise(name)
    assert name == name.strip()
    assert name.isprintable()
    assert not set(name) & set(",:;")


@given(st.text())
def test_any_list_is_read(text: str) -> None:
    assert all(parse_ids(text).values())


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"", b"7" * 100_000, b"74a1"])
def test_a_broken_list_is_passed_over(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / LIBDRM, "")
    (tmp_path / LIBDRM).write_bytes(content)
    assert Names(tmp_path).market_name("", 0x74A1, 0) == "AMD Instinct MI300X"


def test_a_list_that_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / LIBDRM).mkdir(parents=True)
    (tmp_path / AMD).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / AMD)
    assert Names(tmp_path).market_name("", 0x74A1, 0) == "AMD Instinct MI300X"
