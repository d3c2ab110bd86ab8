"""Debian software of any suite, beside the system's own, for tests against real programs.

Packages are downloaded by a private apt configuration from the mirror that the system itself
uses, and unpacked, not installed. Whatever was fetched once stays in `$AMD_CDI_CACHE`
(default `~/.cache/amd-cdi`) and is complete or absent, never half there.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PAUSES = (5.0, 15.0)
"""Seconds between attempts: a mirror that fails, or is just changing, is soon right again."""


class FetchError(Exception):
    """Something could not be fetched; the message says what and what to do."""


class _CommandError(FetchError):
    """A command failed, which it might not do another time."""


def cache() -> Path:
    """The folder that keeps what was fetched; made if absent."""
    folder = Path(os.environ.get("AMD_CDI_CACHE") or Path.home() / ".cache" / "amd-cdi")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unpacked(suite: str, *packages: str) -> Path:
    """A folder with the unpacked files of these packages, without their dependencies."""

    def fetch(mirror: str, place: Path) -> Path:
        archives = _download(suite, mirror, place, "download", *packages)
        files = place / "files"
        files.mkdir()
        _extract(archives, files)
        return files

    return _fetched(f"{suite}-{'+'.join(packages)}", fetch)


def tree(suite: str, *packages: str) -> Path:
    """A root filesystem with these packages and all that they depend on.

    Their libc and its ld.so included, so that a library which asks for a newer libc than the
    machine's runs all the same.
    """

    def fetch(mirror: str, place: Path) -> Path:
        command = ("install", "--download-only", "--yes", *packages)
        archives = _download(suite, mirror, place, *command)
        root = place / "root"
        for link in ("bin", "lib", "lib64", "sbin"):
            # Merged /usr, as every suite since bookworm expects and older ones tolerate.
            (root / "usr" / link).mkdir(parents=True)
            (root / link).symlink_to(f"usr/{link}")
        _extract(archives, root)
        return root

    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    return _fetched(f"trees/{suite}-{key}", fetch)


def root_filesystem(suite: str, *packages: str) -> Path:
    """The root of a minimal system with these packages, as a folder not to be changed."""

    def fetch(mirror: str, place: Path) -> Path:
        root = place / "root"
        options = ["--quiet", "--variant=minbase", "--format=directory"]
        if packages:
            options.append(f"--include={','.join(packages)}")
        _run(["mmdebstrap", *options, suite, str(root), mirror])
        return root

    return _fetched("-".join([suite, "minbase", *packages]), fetch)


def kept(name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` makes somewhere in the folder that it is given, kept in the cache.

    One process makes it; others that want it wait. The folder goes, however that ends.
    """
    target = cache() / name
    if not target.is_dir():
        target.parent.mkdir(exist_ok=True)
        with _locked(target), _workplace(target) as place:
            if not target.is_dir():
                make(place).rename(target)
    return target


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    with target.with_name(f"{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    place = target.with_name(f"{target.name}.partial")
    shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def _fetched(name: str, fetch: Callable[[str, Path], Path]) -> Path:
    """What `fetch` gets from the mirror, in a new folder for each attempt."""

    def make(place: Path) -> Path:
        mirror = _mirror()
        for pause in PAUSES:
            try:
                return fetch(mirror, Path(tempfile.mkdtemp(dir=place)))
            except _CommandError:
                time.sleep(pause)
        return fetch(mirror, Path(tempfile.mkdtemp(dir=place)))

    return kept(name, make)


def _mirror() -> str:
    """The address of the Debian mirror that the system's own sources name."""
    form = ["--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    for line in _run(["apt-get", "indextargets", *form]).splitlines():
        origin, label, address = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return address
    raise FetchError(
        "apt knows no Debian mirror: expected one in /etc/apt with its lists fetched; "
        "run 'apt-get update'"
    )


def _download(suite: str, mirror: str, place: Path, *command: str) -> list[Path]:
    """The packages that this apt command downloads on a system of this suite without any package.

    Proxies and credentials are the system's own.
    """
    for folder in ("lists/partial", "partial"):
        (place / folder).mkdir(parents=True)
    (place / "status").touch()
    # What is in preparation has only the packages that differ from sid's.
    suites = ["sid", suite] if suite == "experimental" else [suite]
    options = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    sources = [f"deb {options} {mirror} {name} main\n" for name in suites]
    (place / "sources.list").write_text("".join(sources))
    configuration = place / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::sourcelist "{place}/sources.list";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        'Dir::Etc::preferencesparts "/dev/null";\n'
        f'Dir::State "{place}";\n'
        f'Dir::State::status "{place}/status";\n'
        f'Dir::Cache "{place}";\n'
        f'Dir::Cache::archives "{place}";\n'
        f'APT::Default-Release "{suite}";\n'
        'APT::Install-Recommends "false";\n'
        'APT::Sandbox::User "root";\n'
        # Otherwise it would go on with the lists that it has, which are none.
        'APT::Update::Error-Mode "any";\n'
        # A mirror that is behind still has packages of the suites in preparation.
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::Languages "none";\n'
    )
    apt = ["apt-get", "-q", f"--config-file={configuration}"]
    _run([*apt, "update"])
    _run([*apt, *command], folder=place)
    return sorted(place.glob("*.deb"))


def _extract(archives: Sequence[Path], folder: Path) -> None:
    for archive in archives:
        # Through tar, since dpkg-deb would replace links to folders by folders.
        command = ["dpkg-deb", "--fsys-tarfile", archive]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as files:
            tar = ["tar", "--extract", "--keep-directory-symlink", f"--directory={folder}"]
            _run(tar, stdin=files.stdout)
        if files.returncode != 0:
            raise _CommandError(f"dpkg-deb could not read {archive.name}")


def _run(
    command: Sequence[str], *, folder: Path | None = None, stdin: IO[bytes] | None = None
) -> str:
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed: apt-get install it")
    done = subprocess.run(
        command, cwd=folder, stdin=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise _CommandError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
