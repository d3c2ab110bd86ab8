"""Files that are replaced whole or not at all, and the lock that orders their writers."""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cdi.errors import AmdCdiError, PermanentError, TemporaryError

Settle = Callable[[Callable[[], None]], None]
"""Runs what makes renames durable, now or soon."""

LOCK_SECONDS = 60.0
"""How long a writer waits for the others; each holds the lock for well under a second."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

UNNAMED = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC

MAX_SPARES = 2
"""Files that are ready in one directory at most."""

MAX_UNSYNCED = 64
"""Files that are open at most, waiting to be synced together."""

MAX_REPLACED = 16
"""Replaced files that are kept open at most, so that their blocks are freed later."""

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
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise os_error("use the directory", directory, error) from error
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise os_error("lock", place, error) from error
            if time.monotonic() > deadline:
                raise TemporaryError(
                    f"another process has held the lock of {place} for {seconds:.0f} s",
                    "wait until it has ended and run it again",
                )
            # Many may wait: what they do meanwhile is taken from the one that works. Whoever has
            # little time looks more often, so that the others do not take all turns.
            time.sleep(min(0.02, seconds / 1000))
        yield
    finally:
        os.close(descriptor)


def names_in(directory: Path) -> set[str]:
    """Return the names in a directory, which may be thousands."""
    return set(os.listdir(directory))  # noqa: PTH208 -- no object for each of them


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
class Spares:
    """Files that a process that stays has ready, as many in each directory as it took last.

    Where many files have been removed lately, ext4 takes 1.4 ms to find one that is free, and 0.03
    ms to give a file that is there a name. Until then nobody sees it, and the kernel removes it
    with the process.
    """

    ready: dict[Path, list[int]] = field(default_factory=dict)
    """Descriptors by directory."""
    taken: Counter[Path] = field(default_factory=Counter)

    def take(self, path: Path) -> int | None:
        """Give a file this name and return its descriptor; None if there is none for it."""
        self.taken[path.parent] += 1
        ready = self.ready.get(path.parent)
        if not ready:
            return None
        descriptor = ready.pop()
        try:
            # With a directory, as linkat(2) follows the link to the file, and link(2) does not.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
        except FileExistsError:
            ready.append(descriptor)
            raise
        except OSError:
            # The directory is on another filesystem by now.
            os.close(descriptor)
            return None
        return descriptor

    def refill(self) -> None:
        """Make ready what may be taken next, where the filesystem knows of files without a name.

        Meanwhile another thread may take some.
        """
        taken, self.taken = self.taken, Counter()
        for directory, count in list(taken.items()):
            ready = self.ready.setdefault(directory, [])
            with suppress(OSError):
                while len(ready) < min(count, MAX_SPARES):
                    ready.append(os.open(directory, UNNAMED, 0o600))

    def close(self) -> None:
        """Let go of what is ready, which keeps its filesystem busy."""
        for ready in self.ready.values():
            _close(ready)
        self.ready.clear()


@dataclass(slots=True)
class Staging:
    """Files written beside their targets, which replace them all together or not at all.

    Everything that can fail for want of space or permission happens before the first rename, and
    renames come in the order of writing. A crash leaves each target as it was or as it shall be.
    """

    spares: Spares | None = None
    renames: list[tuple[Path, Path]] = field(default_factory=list)
    unsynced: list[tuple[int, Path]] = field(default_factory=list)
    """Descriptors of files that the disk may not hold yet, and what they shall replace."""
    gone: list[Path] = field(default_factory=list)
    """Files that are removed before the first rename."""

    def write(self, target: Path, data: bytes) -> bool:
        """Write what shall replace ``target``; say whether it differs from what is there.

        The file gets mode 0644, whatever the umask: rootless podman has to read specs.
        """
        try:
            temporary = _beside(target)
            if _unchanged(target, data):
                temporary.unlink(missing_ok=True)
                return False
            try:
                descriptor = self._create(temporary)
            except FileExistsError:
                # Left over by a process that died.
                temporary.unlink()
                descriptor = self._create(temporary)
            self.renames.append((temporary, target))
            self.unsynced.append((descriptor, target))
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fchmod(descriptor, 0o644)
            if len(self.unsynced) >= MAX_UNSYNCED:
                self._sync()
        except OSError as error:
            raise os_error("write", target, error) from error
        return True

    def _create(self, path: Path) -> int:
        spare = self.spares.take(path) if self.spares else None
        return os.open(path, NEW, 0o600) if spare is None else spare

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

    def commit(self, settle: Settle, confirm: Callable[[], None] | None = None) -> None:
        """Make the files durable and put every one in its place; then settle the renames.

        None is put in its place if ``confirm``, which runs while the disk works, raises.
        """
        replaced: list[int] = []
        try:
            self._sync([confirm] if confirm else [])
            for path in self.gone:
                path.unlink(missing_ok=True)
            for directory in {path.parent for path in self.gone}:
                sync_directory(directory)
            directories = {target.parent for _, target in self.renames}
            while self.renames:
                temporary, target = self.renames[0]
                if len(replaced) < MAX_REPLACED:
                    replaced += _held(target)
                temporary.rename(target)
                del self.renames[0]
        except OSError as error:
            _close(replaced)
            raise os_error("replace", error.filename2 or error.filename or "", error) from error
        finally:
            self.discard()
        settle(partial(_settle, directories, replaced, self.spares))

    def discard(self) -> None:
        """Remove what was written and not put in its place."""
        self._close()
        for temporary, _ in self.renames:
            with suppress(OSError):
                temporary.unlink()
        self.renames.clear()

    def _sync(self, tasks: Iterable[Callable[[], None]] = ()) -> None:
        _side_by_side([*tasks, *[partial(_sync_file, *file) for file in self.unsynced]])
        self._close()

    def _close(self) -> None:
        while self.unsynced:
            os.close(self.unsynced.pop()[0])


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


def at_once(task: Callable[[], None]) -> None:
    """Settle renames before anything else is done."""
    task()


@contextmanager
def staging(
    settle: Settle = at_once,
    confirm: Callable[[], None] | None = None,
    spares: Spares | None = None,
) -> Iterator[Staging]:
    """Stage files: committed at the end, discarded when an exception passes."""
    staged = Staging(spares)
    try:
        yield staged
        staged.commit(settle, confirm)
    finally:
        staged.discard()


def _held(target: Path) -> list[int]:
    """Return a descriptor of what is about to be replaced, none if nothing is there.

    While it is open, its blocks are not freed, which takes longer than the rename.
    """
    try:
        return [os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)]
    except OSError:
        return []


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _settle(directories: Iterable[Path], replaced: Iterable[int], spares: Spares | None) -> None:
    """Free what was replaced, make ready what is needed next, and make the renames durable."""
    _close(replaced)
    if spares is not None:
        spares.refill()
    _side_by_side([partial(sync_directory, directory) for directory in directories])


def _side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks side by side, the first of them here: a filesystem syncs several files at once.

    Raises the first error, by the order of the tasks, when all have ended.
    """
    errors: dict[int, Exception] = {}

    def attempt(number: int, ended: _thread.LockType | None = None) -> None:
        try:
            tasks[number]()
        except Exception as error:  # noqa: BLE001 -- it is raised where it is waited for
            errors[number] = error
        finally:
            if ended is not None:
                ended.release()

    running = []
    for number in range(1, len(tasks)):
        ended = _thread.allocate_lock()
        ended.acquire()
        try:
            # Not threading.Thread, whose start waits until it runs: longer than a disk takes.
            _thread.start_new_thread(attempt, (number, ended))
        except RuntimeError:
            # There may be no more threads: then one after the other.
            attempt(number, ended)
        running.append(ended)
    try:
        if tasks:
            attempt(0)
    finally:
        for ended in running:
            ended.acquire()
    if errors:
        raise errors[min(errors)]


def _sync_file(descriptor: int, target: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise os_error("write", target, error) from error


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


def _unchanged(target: Path, data: bytes) -> bool:
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
