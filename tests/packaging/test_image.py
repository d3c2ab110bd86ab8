"""The image: built twice, looked into, and run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from cdi.version import __version__
from tests import container_image, need
from tests.container_image import FOLDER, NAME, Built, Store

AGAIN = "localhost/amd-cdi:again"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    need.namespaces()
    with container_image.store() as made:
        yield made


@pytest.fixture(scope="module")
def built(store: Store) -> Built:
    first = container_image.built()
    store.podman("load", f"--input={first.archive}")
    return first


def run(store: Store, *command: str, options: tuple[str, ...] = ()) -> str:
    return store.podman("run", "--rm", "--network=none", "--read-only", *options, NAME, *command)


@pytest.fixture(scope="module")
def mounted(store: Store, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files."""
    root = tmp_path_factory.mktemp("root")
    archive = root / "files.tar"
    number = store.podman("create", "--network=none", NAME).strip()
    store.podman("export", f"--output={archive}", number)
    command = ["tar", "--extract", f"--file={archive}", f"--directory={root}", "app", "var", "usr"]
    subprocess.run(command, check=True)
    archive.unlink()
    return root


def test_same_sources_on_the_same_base_give_the_same_image(store: Store, built: Built) -> None:
    assert store.build(AGAIN) == built.number


def test_python_packages_are_those_that_are_locked() -> None:
    """Everything that pyproject.toml asks for is fixed, at a version that it allows."""
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", "\n".join(lines), re.MULTILINE))
    wanted = [Requirement(text) for text in requires("amd-cdi") or ()]
    chosen = [one for one in wanted if not one.marker or one.marker.evaluate({"extra": "plugin"})]
    assert len(chosen) >= 7
    for one in chosen:
        assert locked[one.name.lower()] in one.specifier


def test_commands_run_without_root(store: Store, built: Built) -> None:
    for command in ("amd-cdi", "amd-device-plugin"):
        assert run(store, command, "--version").split() == [command, __version__]
    assert "/usr/bin" not in run(store, "sh", "-c", "command -v amd-cdi python3 amd-device-plugin")
    assert run(store, "id", "-u").strip() == "65534"
    shown = json.loads(store.podman("image", "inspect", NAME))[0]["Config"]
    assert shown["User"] == "65534:65534"


def test_the_hook_runs_in_the_image(store: Store, built: Built) -> None:
    script = 'echo "{}" | "$1"/amd-oci-hook run; echo "status $?"'
    folder = next(iter(Path("/app/lib").glob("none")), None) or "/app/lib/python3.11/site-packages"
    said = run(store, "sh", "-c", f"({script}) 2>&1", "sh", f"{folder}/cdi/native")
    assert "refused:" in said
    assert "status 1" in said


def test_nothing_is_lacking_among_the_python_packages(built: Built, mounted: Path) -> None:
    (library,) = (mounted / "app/lib").glob("python3*/site-packages")
    command = [sys.executable, "-m", "pip", "check"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(library)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_bill_of_materials_lists_what_is_in_the_image(mounted: Path) -> None:
    command = [sys.executable, FOLDER / "sbom.py", mounted]
    texts = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)]
    assert texts[0] == texts[1]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(texts[0].decode()) is None
    bill = json.loads(texts[0])
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/amd-cdi@{__version__}"
    listed = {part["purl"] for part in bill["components"]}
    query = ["dpkg-query", f"--admindir={mounted}/var/lib/dpkg", "--show"]
    form = "--showformat=pkg:deb/debian/${Package}@${Version}?arch=${Architecture}\\n"
    packages = subprocess.run([*query, form], capture_output=True, text=True, check=True).stdout
    # A package's address has %2B for a plus sign, and %3A for a colon.
    named = {line.replace("+", "%2B").replace(":", "%3A", 1) for line in packages.split()}
    assert {one for one in listed if one.startswith("pkg:deb/")} == {
        line.replace("pkg%3A", "pkg:") for line in named
    }
    assert any(one.startswith("pkg:pypi/grpcio@") for one in listed)
    assert any(one.startswith("pkg:generic/cpython@3.") for one in listed)
