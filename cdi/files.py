"""Files that are replaced whole or not at all, and the lock that orders their writers."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cdi.errors import AmdCdiError, PermanentError, TemporaryError

LOCK_SECONDS = 60.0
"""How long a writer waits for the others; each holds the lock for well under a second."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

HEALS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ENOMEM})
"""Errors of the operating system that go away without a change of the command."""

HINTS = {
    errno.EACCES: "run it as root, or choose a place you may write to",
    errno.EPERM: "run it as root, or choose a place you may write to",
    errno.EROFS: "choose a place on a writable filesystem",
    errno.ENOSPC: "free some space and run it again",
    errno.EDQUOT: "free some space and run it again",
    errno.ENOTDIR: "choose a path whose parents are directories",
    errno.EEXIST: "choose a path where nothing but a directory is",
    errno.ENOENT: "check the path",
    errno.EISDIR: "choose a file, not a directory",
    errno.ELOOP: "remove the symbolic link, or choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EIO: "see the kernel's log: the disk may be failing",
}


def os_error(action: str, path: Path | str, error: OSError) -> AmdCdiError:
    """Return an error of the operating system as one of ours."""
    kind = TemporaryError if error.errno in HEALS else PermanentError
    return kind(
        f"cannot {action} {path}: {os.strerror(error.errno) if error.errno else error}",
        HINTS.get(error.errno or 0, ""),
    )


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, unless it is there.

    The new ones get mode 0755, whatever the umask: rootless podman has to read specs.
    """
    if directory.is_dir():
        return
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for path in missing:
            path.chmod(0o755)
    except OSError as error:
        raise os_error("make the directory", directory, error) from error


@contextmanager
def lock(directory: Path, seconds: float = LOCK_SECONDS, name: str = ".") -> Iterator[None]:
    """Hold the lock of a directory, or of a file of this name in it, which is made if missing.

    The lock is flock(2), which the kernel releases when the process dies. Whoever can open the
    place can hold its lock, so a file, which only its owner can open, keeps other users out.
    Raises TemporaryError after ``seconds`` without it.
    """
    place = directory / name
    # Without O_NONBLOCK, a FIFO of this name would make us wait for ever.
    flags = os.O_DIRECTORY if name == "." else os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    deadline = time.monotonic() + seconds
    while True:
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | flags, 0o600)
        except OSError as error:
            raise os_error("use the directory", directory, error) from error
        try:
            _wait_for(descriptor, place, seconds, deadline)
            # Whoever removes the directory's files removes this one as well: then what we have
            # locked is not what others lock.
            if not _leads_to(place, descriptor):
                continue
            yield
            return
        finally:
            os.close(descriptor)


def _wait_for(descriptor: int, place: Path, seconds: float, deadline: float) -> None:
    """Take the lock of an open file; raises TemporaryError when the deadline is over."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise os_error("lock", place, error) from error
        else:
            return
        if time.monotonic() > deadline:
            raise TemporaryError(
                f"another process has held the lock of {place} for {seconds:.0f} s",
                "wait until it has ended and run it again",
            )
        # Many may wait: what they do meanwhile is taken from the one that works. Whoever has
        # little time looks more often, so that the others do not take all turns.
        time.sleep(min(0.02, seconds / 1000))


def _leads_to(place: Path, descriptor: int) -> bool:
    """Whether this is still the place of an open file."""
    try:
        return os.path.samestat(place.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def names_in(directory: Path) -> set[str]:
    """Return the names in a directory, which may be thousands."""
    return set(os.listdir(directory))  # noqa: PTH208 -- no object for each of them


def remove_files(directory: Path, names: Iterable[str]) -> None:
    """Remove files that nobody needs; one that cannot be removed stays."""
    for name in names:
        with suppress(OSError):
            (directory / name).unlink()


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises OSError as open(2) does, and PermanentError for what is no regular file or is too large.
    """
    # Without O_NONBLOCK, a FIFO of this name would make us wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermanentError(
                f"a regular file was expected at {path}", "move away what is there"
            )
        data = file.read(limit + 1)
        if len(data) > limit:
            raise PermanentError(
                f"{path} is larger than {limit >> 20} MiB, which no file of its kind is",
                "move it away",
            )
    return data


@dataclass(slots=True)
class Staging:
    """Files written beside their targets, which replace them all together or not at all.

    Everything that can fail for want of space or permission happens before the first rename, and
    renames come in the order of writing. A crash leaves each target as it was or as it shall be.
    """

    renames: list[tuple[Path, Path]] = field(default_factory=list)
    gone: list[Path] = field(default_factory=list)
    """Files that are removed before the first rename."""

    def write(self, target: Path, data: bytes) -> bool:
        """Make durable what shall replace ``target``; say whether it differs from what is there.

        The file gets mode 0644, whatever the umask: rootless podman has to read specs.
        """
        temporary = _beside(target)
        try:
            # Left over by a process that died.
            temporary.unlink(missing_ok=True)
            if holds(target, data):
                return False
            self.renames.append((temporary, target))
            _write_new(temporary, data)
        except OSError as error:
            raise os_error("write", target, error) from error
        return True

    def keep(self, source: Path, target: Path) -> None:
        """Let ``target`` be the file that ``source`` is now, before that is replaced."""
        temporary = _beside(target)
        try:
            _require_no_directory(target)
            temporary.unlink(missing_ok=True)
            if target.exists() and target.samefile(source):
                # By a process that died before it replaced the source; rename(2) would do nothing.
                return
            temporary.hardlink_to(source)
        except FileNotFoundError:
            return
        except OSError as error:
            raise os_error("keep the earlier file as", target, error) from error
        self.renames.append((temporary, target))

    def remove(self, paths: Iterable[Path]) -> None:
        """Let these be gone before any file is in its place."""
        self.gone += paths

    def commit(self) -> None:
        """Put every file in its place, for good."""
        directories = {target.parent for _, target in self.renames}
        try:
            for path in self.gone:
                path.unlink(missing_ok=True)
            for directory in {path.parent for path in self.gone}:
                sync_directory(directory)
            while self.renames:
                temporary, target = self.renames[0]
                temporary.rename(target)
                del self.renames[0]
        except OSError as error:
            raise os_error("replace", error.filename2 or error.filename or "", error) from error
        for directory in directories:
            sync_directory(directory)

    def discard(self) -> None:
        """Remove what was written and not put in its place."""
        for temporary, _ in self.renames:
            with suppress(OSError):
                temporary.unlink()
        self.renames.clear()


@contextmanager
def staging() -> Iterator[Staging]:
    """Stage files: put in their places at the end, discarded when an exception passes."""
    staged = Staging()
    try:
        yield staged
        staged.commit()
    finally:
        staged.discard()


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, and make its content durable."""
    with os.fdopen(os.open(path, NEW, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())


def _require_no_directory(target: Path) -> None:
    """Raise OSError for a directory, which no file can replace."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))


def _beside(target: Path) -> Path:
    """Return where what shall replace the target is made."""
    return target.with_name(f".{target.name}.new")


def unstaged(name: str) -> str:
    """Return the name that a file gets when it is complete."""
    staged = name.startswith(".") and name.endswith(".new")
    return name[1:].removesuffix(".new") if staged else name


def sync_directory(directory: Path) -> None:
    """Make renames and removals in a directory durable."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise os_error("sync", directory, error) from error


def holds(target: Path, data: bytes) -> bool:
    """Whether the target holds these bytes and everyone may read them."""
    try:
        # What a link leads to counts: /dev/stdout must not be replaced by a file.
        status = target.stat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(status.st_mode):
        raise PermanentError(
            f"a regular file was expected at {target}, found a device or the like",
            "choose another file, or '-' for standard output",
        )
    return (
        not target.is_symlink()
        and stat.S_IMODE(status.st_mode) == 0o644
        and status.st_size == len(data)
        and target.read_bytes() == data
    )
