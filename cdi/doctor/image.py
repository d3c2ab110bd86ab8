"""The root filesystem of an image: a folder, or what podman or docker has under a name."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cdi.errors import PermanentError

SECONDS = 600

FOLDERS = ("bin/", "sbin/", "lib", "usr/bin/", "usr/lib", "usr/local/bin/")
NAMES = ("sh", "dash", "bash", "busybox", "libc.so.6", "ld-linux", "ld-musl", "ld-")
"""What the hook looks at in an image: a shell, its loader and its libc."""


@contextmanager
def mounted(name: str) -> Iterator[Path | None]:
    """Give the root filesystem of an image; None if there is no name."""
    if not name:
        yield None
    elif Path(name).is_dir():
        yield Path(name).absolute()
    elif (podman := shutil.which("podman")) and _succeeds([podman, "image", "exists", name]):
        yield Path(_said([podman, "image", "mount", name]))
        _succeeds([podman, "image", "unmount", name])
    elif (docker := shutil.which("docker")) and _succeeds([docker, "image", "inspect", name]):
        with tempfile.TemporaryDirectory(prefix="amd-cdi-image-") as folder:
            _export(docker, name, Path(folder))
            yield Path(folder)
    else:
        raise PermanentError(
            f"expected a folder or an image that podman or docker has, found neither at {name!r}",
            "pull it first, or name the folder of its root filesystem",
        )


def _export(docker: str, name: str, folder: Path) -> None:
    """Lay out what the hook looks at of an image that docker has."""
    container = _said([docker, "create", name, "/bin/sh"])
    try:
        with (
            subprocess.Popen(  # noqa: S603 -- the user's own docker
                [docker, "export", container], stdout=subprocess.PIPE
            ) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as archive,
        ):
            for member in archive:
                if _is_wanted(member):
                    with suppress(tarfile.TarError, OSError):
                        archive.extract(member, folder, filter="data")
    finally:
        _said([docker, "rm", container])


def _is_wanted(member: tarfile.TarInfo) -> bool:
    name = member.name.removeprefix("./")
    if member.issym() and name.startswith(("bin", "sbin", "lib", "usr/bin/", "usr/lib")):
        return True
    return name.startswith(FOLDERS) and name.rpartition("/")[2].startswith(NAMES)


def _succeeds(command: list[str]) -> bool:
    done = subprocess.run(  # noqa: S603 -- the user's own runtime
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    return done.returncode == 0


def _said(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 -- the user's own runtime
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise PermanentError(
            f"{' '.join(command)} failed: {done.stderr.strip()}",
            "name the folder of the image's root filesystem instead",
        )
    return done.stdout.strip()
