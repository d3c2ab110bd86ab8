"""The library that holds HIP to a share, and the images that load it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor import hook
from cdi.doctor.finding import Finding
from cdi.doctor.hook import Trial
from cdi.plan.options import Policy

MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of elf(5)."""

REMEDY = "as root: amd-cdi install; or name another place with generate --library-path"


@dataclass(frozen=True, slots=True)
class Library:
    """The library as it lies on a machine."""

    path: str
    problem: str
    """Why containers cannot load it, empty if they can."""


def read(root: Path, path: str) -> Library:
    """Look at the library."""
    return Library(path, _problem(root / path.lstrip("/"), path))


def findings(library: Library, require: Policy, *, dmem: bool) -> Iterator[Finding]:
    """Yield what follows on a kernel with the dmem controller or without."""
    if not library.problem:
        yield Finding("works", "the library is there", library.path)
        return
    # Its mount is in every share, and runtimes refuse what is not there.
    missing = "no file" in library.problem
    held = dmem and require in {"any", "dmem"} and not missing
    yield Finding(
        "less" if held else "fails",
        "the library cannot be loaded",
        library.problem,
        "HIP's own accounting is not held to the share, the kernel's cap alone is"
        if held
        else "no container with a share starts",
        REMEDY,
    )


def image_findings(image: str, trial: Trial, *, dmem: bool) -> Iterator[Finding]:
    """Yield what follows for shares in an image in which the hook was tried."""
    if trial.passed:
        yield Finding("works", f"a share starts in {image}", "its programs load the library")
    else:
        yield Finding(
            "less" if dmem else "fails",
            f"the programs of {image} do not load the library",
            trial.said,
            "the kernel's cap alone holds its memory" if dmem else "no share starts in it",
            "" if dmem else "use an image on glibc 2.34 or later, or a kernel with dmem",
        )


def try_image(hook_path: str, library: Library, rootfs: Path) -> Trial:
    """Let the hook judge a root filesystem."""
    return hook.attempt(hook_path, "library", library.path, rootfs)


def _problem(place: Path, path: str) -> str:
    try:
        status = place.stat()
        with place.open("rb") as file:
            head = file.read(20)
    except FileNotFoundError:
        return f"no file at {path}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISREG(status.st_mode) or head[:4] != b"\x7fELF":
        return f"{path} is no ELF file"
    wanted = MACHINES.get(os.uname().machine)
    found = int.from_bytes(head[18:20], "little")
    if wanted not in {None, found}:
        return f"{path} is for machine {found}, and this is {wanted}"
    if not status.st_mode & stat.S_IROTH:
        return f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: users cannot read it"
    return ""
