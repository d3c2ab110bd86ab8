"""Debian software of another suite, beside the system's own, for tests against real programs.

Packages are downloaded by a private apt configuration from the mirror that the system itself
uses, and unpacked, not installed. Whatever was fetched once stays in `$AMD_CDI_CACHE`
(default `~/.cache/amd-cdi`) and is complete or absent, never half there.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FetchError(Exception):
    """Something could not be fetched; the message says what and what to do."""


def cache() -> Path:
    """The folder that keeps what was fetched; made if absent."""
    folder = Path(os.environ.get("AMD_CDI_CACHE") or Path.home() / ".cache" / "amd-cdi")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unpacked(suite: str, *packages: str) -> Path:
    """A folder with the unpacked files of these packages, without their dependencies."""
    target = cache() / f"{suite}-{'+'.join(packages)}"
    if not target.is_dir():
        with _workplace() as place:
            apt = _apt_configuration(place, suite)
            _run(["apt-get", "-q", "update"], place, apt)
            _run(["apt-get", "-q", "download", *packages], place, apt)
            files = place / "files"
            for package in place.glob("*.deb"):
                _run(["dpkg-deb", "-x", str(package), str(files)], place, apt)
            _publish(files, target)
    return target


def root_filesystem(suite: str) -> Path:
    """The root filesystem of a minimal system of this suite, as a folder not to be changed."""
    target = cache() / f"{suite}-minbase"
    if not target.is_dir():
        with _workplace() as place:
            options = ["--quiet", "--variant=minbase", "--format=directory"]
            _run(["mmdebstrap", *options, suite, str(place / "root"), _mirror()], place, {})
            _publish(place / "root", target)
    return target


@contextmanager
def _workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=cache(), prefix="fetch-") as folder:
        yield Path(folder)


def _publish(made: Path, target: Path) -> None:
    """Give what was made its name at once; another process may have been first."""
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise


def _apt_configuration(place: Path, suite: str) -> dict[str, str]:
    """Apt's environment for this suite alone; proxies and credentials stay the system's."""
    sources = place / "sources.list"
    sources.write_text(f"deb {_mirror()} {suite} main\n")
    for folder in ("lists/partial", "archives/partial"):
        (place / folder).mkdir(parents=True)
    configuration = place / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::sourcelist "{sources}";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        'Dir::Etc::preferencesparts "/dev/null";\n'
        f'Dir::State::Lists "{place}/lists";\n'
        f'Dir::Cache "{place}";\n'
        # A mirror that is behind still has packages of the suites in preparation.
        'Acquire::Check-Valid-Until "false";\n'
        'APT::Sandbox::User "root";\n'
    )
    return {"APT_CONFIG": str(configuration)}


def _mirror() -> str:
    """The address of the Debian mirror that the system's own sources name."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    form = ["--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]
    listing = _run(["apt-get", "indextargets", *form], Path("/"), {})
    for line in listing.splitlines():
        release, _, address = line.partition(" ")
        if release == codename:
            return address
    raise FetchError(
        f"apt knows no mirror of {codename or 'this system'}: "
        "expected one in /etc/apt with its lists fetched; run 'apt-get update'"
    )


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed: apt-get install it")
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FetchError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
