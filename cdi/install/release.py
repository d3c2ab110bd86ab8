"""Versions of the hook and the library side by side, and the link that says which one counts.

``PREFIX/VERSION`` holds both files and is never changed once it has its name; ``PREFIX/current``
leads to one of them. Specs name what lies below the link: a container's configuration that was made
from one, and may be started again at any time, works with whatever is installed then. Moving the
link is the one moment in which the old version becomes the new one.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cdi.errors import PermanentError
from cdi.files import names_in, os_error, sync_directory
from cdi.plan.options import HOOK_FILE, LIBRARY_FILE

FILES = (HOOK_FILE, LIBRARY_FILE)
CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Payload:
    """The files of a version, wherever they lie."""

    version: str
    folder: Path

    def __post_init__(self) -> None:
        for name in FILES:
            if not (self.folder / name).is_file():
                raise PermanentError(
                    f"this amd-cdi brings no {name}: a file was expected at {self.folder / name}",
                    "install the wheel that is made for this kind of machine, or build the "
                    "file and name its folder with --from",
                )

    def is_at(self, folder: Path) -> bool:
        """Whether a folder has these files and nothing else."""
        try:
            return set(FILES) == names_in(folder) and all(
                filecmp.cmp(self.folder / name, folder / name, shallow=False) for name in FILES
            )
        except (FileNotFoundError, NotADirectoryError):
            return False

    def digest(self) -> str:
        """Return what tells these files from others of the same version."""
        total = hashlib.sha256()
        for name in FILES:
            total.update((self.folder / name).read_bytes())
        return total.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The folder that has all versions; others may keep other things there."""

    folder: Path

    @property
    def current(self) -> str:
        """Name of the version that counts; empty if there is none."""
        try:
            return (self.folder / CURRENT).readlink().name
        except OSError:
            return ""

    @property
    def releases(self) -> set[str]:
        """Names of the versions."""
        try:
            return {name for name in names_in(self.folder) if self._is_release(name)}
        except FileNotFoundError:
            return set()

    def name_for(self, payload: Payload) -> str:
        """Return what these files are, or will be, called.

        Other files of the same version, as there are in development, get another name: a folder
        that is in use is not changed.
        """
        plain = self.folder / payload.version
        if payload.is_at(plain) or not plain.exists():
            return payload.version
        return f"{payload.version}-{payload.digest()}"

    def lay(self, payload: Payload) -> str:
        """Put the files in their place, durably, and return its name; nothing names it yet."""
        name = self.name_for(payload)
        target = self.folder / name
        if payload.is_at(target):
            return name
        new = self.folder / f".{name}.new"
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            new.chmod(0o755)
            for file in FILES:
                shutil.copyfile(payload.folder / file, new / file)
                (new / file).chmod(0o755)
                _sync(new / file)
            sync_directory(new)
            new.rename(target)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise os_error("install to", target, error) from error
        return name

    def switch(self, name: str) -> None:
        """Let a version be the one that counts."""
        if self.current == name:
            return
        new = self.folder / f".{CURRENT}.new"
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(name)
            new.rename(self.folder / CURRENT)
        except OSError as error:
            raise os_error("replace", self.folder / CURRENT, error) from error
        sync_directory(self.folder)

    def remove(self, names: Iterable[str]) -> None:
        """Remove versions, and what a process that died has left of others.

        Each loses its name first, so that none is ever there by half.
        """
        try:
            for name in names:
                old = self.folder / f".{name}.old"
                shutil.rmtree(old, ignore_errors=True)
                (self.folder / name).rename(old)
            for name in names_in(self.folder):
                if name.startswith(".") and name.endswith((".new", ".old")):
                    _discard(self.folder / name)
        except OSError as error:
            raise os_error("remove a version from", self.folder, error) from error

    def _is_release(self, name: str) -> bool:
        folder = self.folder / name
        return (
            not name.startswith(".")
            and folder.is_dir()
            and not folder.is_symlink()
            and names_in(folder) == set(FILES)
        )


def _discard(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.is_dir() and names_in(path) <= set(FILES):
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
