"""The wheel: made from the sdist as pip makes it, and installed as people install it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import hook_program

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
NATIVE = {"cdi/native/amd-oci-hook", "cdi/native/libamvgpu.so"}
PLATFORM = "manylinux_2_17_x86_64"


def run(
    command: Sequence[str | Path], *, folder: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def must(command: Sequence[str | Path], **environment: str) -> str:
    done = run(command, **environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@dataclass(frozen=True)
class Built:
    wheel: Path
    house: Path
    """Folder of the wheel and of all that it depends on."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A wheel made from an sdist, nothing else of the checkout being there."""
    folder = tmp_path_factory.mktemp("built")
    hook_program.build(folder / "needs")  # or says what the machine lacks
    must([sys.executable, "-m", "build", "--outdir", folder, REPOSITORY])
    (wheel,) = folder.glob("*.whl")
    assert len(list(folder.glob("*.tar.gz"))) == 1
    house = folder / "house"
    must([sys.executable, "-m", "pip", "wheel", "--quiet", f"--wheel-dir={house}", wheel])
    return Built(wheel, house)


def test_tag_is_the_oldest_that_the_library_allows(built: Built) -> None:
    assert built.wheel.name == f"amd_cdi-0.1.0-py3-none-{PLATFORM}.manylinux2014_x86_64.whl"
    judged = must([sys.executable, "-m", "auditwheel", "show", built.wheel])
    assert f'following platform tag:\n"{PLATFORM}"' in judged


def test_same_sources_give_the_same_files(built: Built, tmp_path: Path) -> None:
    must([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)])
    (wheel,) = tmp_path.glob("*.whl")
    first, second = contents(built.wheel), contents(wheel)
    assert {name: first[name] for name in NATIVE} == {name: second[name] for name in NATIVE}


@pytest.mark.parametrize("target", ["wheel:standard", "wheel:editable"])
def test_without_a_compiler_there_is_a_wheel_without_what_takes_one(
    target: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(tmp_path)]
    done = run(command, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == "amd_cdi-0.1.0-py3-none-any.whl"
    assert not NATIVE & set(contents(wheel))
    # An installation for development needs neither, and says nothing of them.
    for name in ("libamvgpu.so", "amd-oci-hook"):
        assert (f"no {name} without make, cc" in done.stderr) is (target == "wheel:standard")


def pipx(built: Built, folder: Path) -> None:
    options = f"--pip-args=--no-index --find-links={built.house}"
    places = {"PIPX_HOME": str(folder / "home"), "PIPX_BIN_DIR": str(folder / "bin")}
    must([sys.executable, "-m", "pipx", "install", options, built.wheel], **places)


def uv(built: Built, folder: Path) -> None:
    options = ["--no-index", f"--find-links={built.house}", f"--python={sys.executable}"]
    places = {"UV_TOOL_DIR": str(folder / "home"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    places |= {"UV_CACHE_DIR": str(folder / "cache")}
    must([sys.executable, "-m", "uv", "tool", "install", *options, built.wheel], **places)


@pytest.mark.parametrize("install", [pipx, uv])
def test_what_installs_tools_gives_a_working_command(install, built: Built, tmp_path: Path) -> None:
    install(built, tmp_path)
    command = tmp_path / "bin/amd-cdi"
    assert "0.1.0" in must([command, "--version"])
    places = {f"AMD_CDI_{name}_DIR": str(tmp_path / name) for name in ("SPEC", "STATE", "USAGE")}
    must([command, "generate", "--sample=mi300x"], **places)
    spec = (tmp_path / "SPEC/amd.com-gpu.yaml").read_text()
    assert "/dev/dri/renderD128" in spec
    (hook,) = (tmp_path / "home").rglob("cdi/native/amd-oci-hook")
    done = subprocess.run([hook, "run"], input="", env={}, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"refused: expected JSON in the OCI state" in done.stderr
    root = tmp_path / "root"
    root.mkdir()
    must([command, "install", f"--sysroot={root}"])
    laid = {
        path.name: path.stat().st_mode & 0o777 for path in (root / "opt/amd-cdi/current").iterdir()
    }
    assert laid == {"amd-oci-hook": 0o755, "libamvgpu.so": 0o755}
