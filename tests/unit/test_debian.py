"""What the tests fetch: complete or absent, once, and tried again where a mirror fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import debian, need
from tests.captures import REPOSITORY
from tests.debian import FetchError

# An apt whose mirror fails so many times, and then has a package with one file.
APT = """#!/bin/sh
case "$*" in
*indextargets*) echo "Debian|Debian|http://mirror.invalid/debian/" ;;
*update*)
    echo >>{calls}
    [ "$(wc -l <{calls})" -gt {failures} ] || {{ echo "Failed to fetch" >&2; exit 100; }} ;;
*download*) cp {package} . ;;
esac
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMD_CDI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(debian, "PAUSES", (0.0, 0.0))
    return debian.cache()


def failing(folder: Path, failures: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put that apt before the system's; return the file with a line for each attempt."""
    need.program("dpkg-deb")
    (folder / "one/DEBIAN").mkdir(parents=True)
    control = "Package: one\nVersion: 1\nArchitecture: all\nMaintainer: a <a@a>\nDescription: a\n"
    (folder / "one/DEBIAN/control").write_text(control)
    (folder / "one/lib").mkdir()
    (folder / "one/lib/file").write_text("content")
    package, calls = folder / "one.deb", folder / "calls"
    subprocess.run(["dpkg-deb", "--build", folder / "one", package], check=True)
    (folder / "bin").mkdir()
    apt = folder / "bin/apt-get"
    apt.write_text(APT.format(calls=calls, failures=failures, package=package))
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:{os.environ['PATH']}")
    return calls


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"}


def test_a_mirror_that_fails_twice(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(tmp_path, 2, monkeypatch)
    assert (debian.unpacked("sid", "one") / "lib/file").read_text() == "content"
    assert (debian.unpacked("sid", "one") / "lib/file").read_text() == "content"
    assert len(calls.read_text()) == 3
    assert names(cache) == {"sid-one"}


def test_a_mirror_that_fails_for_good(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(tmp_path, 9, monkeypatch)
    with pytest.raises(FetchError, match=r"apt-get .* update failed: Failed to fetch"):
        debian.unpacked("sid", "one")
    assert len(calls.read_text()) == 3
    assert names(cache) == set()


def test_links_of_a_tree_stay_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(tmp_path, 0, monkeypatch)
    tree = debian.tree("sid", "one")
    assert (tree / "lib").readlink() == Path("usr/lib")
    assert (tree / "usr/lib/file").read_text() == "content"


def test_a_missing_program_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(tmp_path, 0, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(debian, "PAUSES", (600.0,))
    with pytest.raises(FetchError, match="mmdebstrap is not installed"):
        debian.root_filesystem("sid")


def test_what_cannot_be_made_leaves_nothing(cache: Path) -> None:
    def fail(place: Path) -> Path:
        (place / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        debian.kept("made", fail)
    assert names(cache) == set()


def test_what_a_killed_process_left_is_no_hindrance(cache: Path) -> None:
    script = (
        "import os; from tests import debian\n"
        "debian.kept('made', lambda place: ((place / 'half').touch(), os.kill(os.getpid(), 9)))"
    )
    killed = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False)
    assert killed.returncode == -9
    assert "made" not in names(cache)
    made = debian.kept("made", whole)
    assert {path.name for path in made.iterdir()} == {"whole"}
    assert names(cache) == {"made"}


def test_one_makes_it_for_all(cache: Path) -> None:
    makers: list[Path] = []

    def make(place: Path) -> Path:
        makers.append(place)
        time.sleep(0.3)  # until the others wait
        return whole(place)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: debian.kept("made", make), range(8)))
    assert set(made) == {cache / "made"}
    assert len(makers) == 1


def whole(place: Path) -> Path:
    made = place / "made"
    made.mkdir()
    (made / "whole").touch()
    return made
