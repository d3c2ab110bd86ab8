"""The image of packaging/image, built by the real podman on a base bootstrapped from Debian.

No registry is asked: the base is made by mmdebstrap, and the wheels that the image is made of come
from a folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import debian, need
from tests.captures import REPOSITORY
from tests.debian import FetchError
from tests.integration import image
from tests.integration.podman import CONFIGURATION

NAME = "localhost/amd-cdi:0.1.0"
BASE = "localhost/debian:12"

FOLDER = REPOSITORY / "packaging/image"
LOCKS = ("build-requirements.txt", "requirements.txt")

PIP = """\
[global]
no-index = true
find-links = /wheels
"""


@dataclass(frozen=True)
class Store:
    """Images in a folder of their own."""

    folder: Path

    def podman(self, *arguments: str | Path) -> str:
        """What this command prints; it runs with mounts of its own, and must succeed."""
        places = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run"]
        runtime = f"--runtime={need.program('runc')}"
        private = ["unshare", "--mount", "--propagation=private"]
        done = subprocess.run(
            [*private, need.program("podman"), *places, runtime, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def build(self, name: str = NAME) -> str:
        """Build the image, nothing of it being there but its base; answer its id."""
        pip = self.folder / "pip.conf"
        pip.write_text(PIP)
        number = self.folder / "id"
        self.podman(
            "build",
            f"--file={FOLDER}/Containerfile",
            f"--build-arg=BASE={BASE}",
            f"--volume={pip}:/etc/pip.conf:ro",
            f"--volume={wheels()}:/wheels:ro",
            f"--iidfile={number}",
            f"--tag={name}",
            *("--timestamp=0", "--layers=false", "--pull=never", "--network=host"),
            REPOSITORY,
        )
        return number.read_text()


@contextmanager
def store() -> Iterator[Store]:
    """A store that has the base."""
    need.namespaces()
    need.program("conmon")
    folder = Path(tempfile.mkdtemp(prefix="amd-cdi-images-"))
    try:
        (folder / "containers.conf").write_text(CONFIGURATION)
        made = Store(folder)
        base = image.Image(BASE, need.fetched(base_root))
        made.podman("load", f"--input={image.archive(base, folder / 'base.tar')}")
        yield made
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Built:
    """An image that was built once, for all tests that want one."""

    folder: Path

    @property
    def number(self) -> str:
        return (self.folder / "id").read_text()

    @property
    def archive(self) -> Path:
        return self.folder / "image.tar"


def built() -> Built:
    """The image of the sources as they are; kept while they stay so."""
    key = hashlib.sha256()
    for path in _sources():
        key.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_mode:o}\0".encode())
        key.update(path.read_bytes())
    name = f"image-{key.hexdigest()[:16]}"
    for old in debian.cache().glob("image-*"):
        if old.name.partition(".")[0] != name and old.is_dir():
            shutil.rmtree(old)

    def make(place: Path) -> Path:
        files = place / "files"
        files.mkdir()
        with store() as made:
            (files / "id").write_text(made.build())
            made.podman("save", "--format=oci-archive", f"--output={files}/image.tar", NAME)
        return files

    return Built(debian.kept(name, make))


def base_root() -> Path:
    """Root of the base; raises FetchError."""
    return debian.root_filesystem("bookworm", "python3", "python3-venv")


def wheels() -> Path:
    """What the image is made of besides the sources."""
    locks = [FOLDER / name for name in LOCKS]
    key = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:16]

    def fetch(place: Path) -> Path:
        files = place / "files"
        for lock in locks:
            command = [sys.executable, "-m", "pip", "download", f"--dest={files}"]
            command += ["--only-binary=:all:", "--require-hashes", f"--requirement={lock}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise FetchError(f"pip could not download: {done.stderr.strip()[-1000:]}")
        return files

    return need.fetched(lambda: debian.kept(f"wheels-{key}", fetch))


def _sources() -> list[Path]:
    """What git would take of the folders that the image is built from, and what names them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    folders = ["cdi", "deviceplugin", "libamvgpu", "ocihook", "pyproject.toml"]
    folders += [f"packaging/{name}" for name in ("hatch_build.py", "hook", "image")]
    done = subprocess.run(
        [*command, *folders], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    names = sorted(filter(None, done.stdout.split("\0")))
    return [path for path in (REPOSITORY / name for name in names) if path.is_file()]
