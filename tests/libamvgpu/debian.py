"""Debian packages of any suite, unpacked into a folder beside the system, never installed.

A *tree* is what a small set of packages needs to run, their libc and its ld.so included, so
that a library which asks for a newer libc than the machine's runs all the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class UnavailableError(Exception):
    """The packages cannot be had here; the text says why."""


def cache_folder() -> Path:
    """Folder of everything fetched: AMD_CDI_CACHE, by default ~/.cache/amd-cdi."""
    return Path(os.environ.get("AMD_CDI_CACHE", Path.home() / ".cache" / "amd-cdi"))


def tree(suite: str, packages: Sequence[str]) -> Path:
    """Unpack `packages` of `suite` and all they depend on; answer the folder (a root filesystem).

    Fetched once and kept: the folder's name is made of the suite and the packages. Raises
    UnavailableError where the suite or a package cannot be fetched.
    """
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    folder = cache_folder() / "trees" / f"{suite}-{name}"
    if folder.is_dir():
        return folder
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} is not here, so no package of {suite} can be fetched")
    with _locked(cache_folder() / f"{suite}.lock"):
        if not folder.is_dir():
            _unpack(_fetch(suite, packages), folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _mirror() -> str:
    """Where the system's own sources get Debian from."""
    wanted = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    targets = _run(
        ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"], "this system"
    )
    for line in targets.splitlines():
        origin, label, address = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return address
    raise UnavailableError("no source of this system is a Debian mirror")


def _apt(suite: str) -> tuple[list[str], Path]:
    """A private apt: own sources, lists and archive; an empty status file, so all is missing."""
    base = cache_folder() / "apt" / suite
    archive = base / "archive"
    for sub in ("lists/partial", "archive/partial", "nowhere/partial", "etc"):
        (base / sub).mkdir(parents=True, exist_ok=True)
    (base / "status").touch()
    # A suite of packages in preparation has only what differs from sid.
    suites = ["sid", suite] if suite == "experimental" else [suite]
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    mirror = _mirror()
    lines = [f"deb [signed-by={keyring}] {mirror} {name} main\n" for name in suites]
    (base / "sources.list").write_text("".join(lines))
    options = {
        "Dir::Etc::sourcelist": base / "sources.list",
        "Dir::Etc::sourceparts": base / "etc",
        "Dir::Etc::preferencesparts": base / "etc",
        "Dir::State": base,
        "Dir::State::lists": base / "lists",
        "Dir::State::status": base / "status",
        "Dir::Cache": base,
        "Dir::Cache::archives": archive,
        "APT::Architecture": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    arguments = ["apt-get", "--quiet=2"]
    for key, value in options.items():
        arguments += ["-o", f"{key}={value}"]
    if suite == "experimental":
        arguments += ["--target-release", suite]
    return arguments, archive


def _run(command: Sequence[str], suite: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"{suite}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _fetch(suite: str, packages: Sequence[str]) -> list[Path]:
    apt, archive = _apt(suite)
    _run([*apt, "update"], suite)
    install = [*apt, "--yes", "install", *packages]
    # With no archive: what is there already would not be listed.
    nowhere = ["-o", f"Dir::Cache::archives={archive.parent / 'nowhere'}"]
    uris = _run([*install, *nowhere, "--print-uris"], suite)
    names = [line.split()[1] for line in uris.splitlines() if line.startswith("'")]
    _run([*install, "--download-only"], suite)
    return [archive / name for name in names]


def _unpack(archives: Sequence[Path], folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        # Merged /usr, as every suite since bookworm expects and older ones tolerate.
        (partial / "usr" / link).mkdir(parents=True)
        (partial / link).symlink_to(f"usr/{link}")
    for archive in archives:
        # Through tar, since dpkg-deb would replace the links by folders.
        contents = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
        subprocess.run(
            ["tar", "--extract", "--keep-directory-symlink", "--directory", partial],
            stdin=contents.stdout,
            check=True,
        )
        if contents.wait():
            raise UnavailableError(f"{archive} cannot be unpacked")
    partial.rename(folder)
