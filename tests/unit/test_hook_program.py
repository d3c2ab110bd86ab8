"""The hook as a static program: what is in the file. What it decides: test_ocihook_command.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import need
from tests.hook_program import SOURCE, build

STDLIB = sys.stdlib_module_names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program")
    build(made)
    return made


def test_needs_neither_a_loader_nor_a_library(folder: Path) -> None:
    command = [need.program("readelf"), "--wide", "--program-headers", "--dynamic"]
    told = subprocess.run(
        [*command, folder / "amd-oci-hook"], capture_output=True, text=True, check=True
    ).stdout
    assert "LOAD" in told
    assert not re.search(r"INTERP|DYNAMIC|NEEDED", told)


def test_has_the_whole_hook_and_nothing_third_party(folder: Path) -> None:
    listed = re.findall(r'\.name = "([\w.]+)"', (folder / "modules.c").read_text())
    files = {path.stem for path in (SOURCE.parents[1] / "ocihook").glob("*.py")}
    hook = {f"ocihook.{name}" for name in files - {"__init__", "install"}} | {"ocihook"}
    assert {name for name in listed if name.split(".")[0] not in STDLIB} == {
        *hook,
        "cdi",
        "cdi.cumask",
    }


def test_same_sources_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """In another folder, on another day, with another seed for hashes and another language."""
    other = {"PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    again = build(tmp_path / "elsewhere", environment={**os.environ, **other})
    assert again.read_bytes() == (folder / "amd-oci-hook").read_bytes()


def test_tells_nothing_of_the_machine_that_built_it(folder: Path) -> None:
    data = (folder / "amd-oci-hook").read_bytes()
    assert b"ocihook/rootfs.py" in data
    assert str(SOURCE.parents[1]).encode() not in data
    assert str(folder).encode() not in data
