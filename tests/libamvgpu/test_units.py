"""The parts that read what others wrote, fed with damage under sanitizers (tests/fuzz.c)."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import need
from tests.libamvgpu.runtime import SOURCE, run

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("account", "environment", "limits", "log", "memory", "pointers", "usage")
SEEDS = range(3)


def sanitize(sanitizer: str) -> list[str]:
    return [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []


def build(folder: Path, sanitizer: str) -> Path:
    program = folder / "fuzz"
    optimise = "-O1" if sanitizer else "-O2"
    probe = subprocess.run(
        ["cc", *sanitize(sanitizer), "-x", "c", "-o", folder / "probe", "-"],
        input=b"int main(void){return 0;}",
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        need.lacking(f"the sanitizers {sanitizer} are not here: {probe.stderr.decode()}")
    sources = [SOURCE / f"{part}.c" for part in PARTS]
    values = folder / "share.conf"
    run(
        [
            "cc",
            "-std=c11",
            "-D_GNU_SOURCE",
            optimise,
            "-g",
            *sanitize(sanitizer),
            "-Wall",
            f'-DSHARE_VALUES="{values}"',
            "-Werror",
            "-o",
            program,
            SOURCE / "tests" / "fuzz.c",
            *sources,
            "-lpthread",
        ]
    )
    return program


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("address"), "address,undefined")


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("thread"), "thread")


def passes(*command: str | Path) -> None:
    done = subprocess.run(
        ["setarch", "--addr-no-randomize", *command],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_regions(seed: int, checked: Path, tmp_path: Path) -> None:
    passes(checked, "region", tmp_path / "usage", "1500", str(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_values_and_environments(seed: int, checked: Path) -> None:
    passes(checked, "values", checked.parent / "share.conf", "300", str(seed))


def test_limits(checked: Path) -> None:
    passes(checked, "limits", "1000000", "1")


def test_ledger(checked: Path) -> None:
    passes(checked, "pointers", "1000000", "1")


def test_threads_without_a_race(raced: Path, tmp_path: Path) -> None:
    passes(raced, "threads", tmp_path / "usage", "3000", "1")


def test_threads_within_bounds(checked: Path, tmp_path: Path) -> None:
    passes(checked, "threads", tmp_path / "usage", "10000", "1")


def test_of_two_at_the_same_moment_one_is_granted(tmp_path: Path) -> None:
    """Not both, and not none. At full speed: they meet only when nothing slows them down."""
    passes(build(tmp_path, ""), "pair", tmp_path / "usage", "8000", "1")
