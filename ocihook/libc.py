"""Whether the programs of the container will load the share's library through LD_AUDIT.

The dynamic loader of glibc does; a static program has no loader, musl's knows no LD_AUDIT, and what
it cannot load it leaves out with a message, running the program unenforced. So the library must be
mounted, fit the programs, and the loader and libc must be glibc from 2.34 on.
"""

from __future__ import annotations

import os
import stat

from ocihook import environment
from ocihook.elf import MACHINES, Elf, ElfError, glibc
from ocihook.files import read_descriptor
from ocihook.refusal import Refusal
from ocihook.rootfs import Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container
    from ocihook.share import Share

LIBRARY = "/usr/local/vgpu/libamvgpu.so"
VALUES = "/usr/local/vgpu/share.conf"
OLDEST = (2, 34)
MAX_AUDITORS = 8
"""Of LD_AUDIT: with more than 12, the loader of glibc 2.36 leaves out all of them (measured)."""

MAX_VALUES = 64 * 1024
SHELL = "/bin/sh"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_SCRIPTS = 5
"""Scripts whose interpreter is a script again, as deep as the kernel follows."""

ENGINE_INITS = {"/sbin/docker-init", "/run/podman-init", "/dev/init"}
"""Where docker and podman mount their own static init, which starts what follows ``--``."""

HINT = f"use an image with dynamic programs on glibc {OLDEST[0]}.{OLDEST[1]} or later"
REINSTALL = "install amd-cdi anew"
MOUNT_HINT = "give the container nothing at or above /usr/local/vgpu"


def check(container: Container, share: Share) -> str:
    """Return what makes the library hold, as a text; raises Refusal where it would not load."""
    auditors = container.environment.get("LD_AUDIT", "").split(":")
    if LIBRARY not in auditors or len(auditors) > MAX_AUDITORS:
        others = f" and at most {MAX_AUDITORS - 1} others" if LIBRARY in auditors else ""
        found = repr(container.environment.get("LD_AUDIT", ""))[:200]
        hint = "start the container without an LD_AUDIT of its own"
        raise Refusal(f"LD_AUDIT with {LIBRARY}{others} in {container.where}", found, hint)
    rootfs = Rootfs(container)
    _check_values(container, share, rootfs)
    library = _elf_library(container, share, rootfs)
    programs = [_entrypoint(container, rootfs)]
    if programs[0] != SHELL and _exists(rootfs, SHELL):
        programs.append(SHELL)
    versions = {_check_program(path, library.machine, container, rootfs) for path in programs}
    oldest = min(versions)
    return f"glibc {oldest[0]}.{oldest[1]} or later"


def _check_values(container: Container, share: Share, rootfs: Rootfs) -> None:
    """Raise Refusal unless the values that the library goes by are those of the share."""
    descriptor = _open_mounted(VALUES, share.values, container, rootfs)
    try:
        data = read_descriptor(descriptor, MAX_VALUES, VALUES)
    finally:
        os.close(descriptor)
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        name, _, value = line.partition("=")
        if values.setdefault(name, value) != value or "\0" in line:
            raise Refusal(f"each value once in {VALUES}", repr(line[:80]), MOUNT_HINT)
    mount = container.mount_of(VALUES)
    try:
        environment.check(values, share, f"{mount.source[:200] if mount else VALUES}")
    except Refusal as refusal:
        refusal.args = (f"{refusal}, and without a mount at {VALUES} of its own",)
        raise


def _elf_library(container: Container, share: Share, rootfs: Rootfs) -> Elf:
    """Return the headers of the library."""
    descriptor = _open_mounted(LIBRARY, share.library, container, rootfs)
    try:
        return Elf(descriptor)
    except ElfError as error:
        raise Refusal(f"an ELF library at {LIBRARY}", str(error), node_hint=REINSTALL) from error
    finally:
        os.close(descriptor)


def _open_mounted(path: str, own: str | None, container: Container, rootfs: Rootfs) -> int:
    """Open a file that must be a bind mount of its own, and the only one at that path.

    ``own`` is the only file of the host that may be mounted there, and not for writing: some
    engines let a mount of the user's take the place of the one that CDI gives.
    """
    expected = f"a bind mount at {path} in {container.where}"
    mount = container.mount_of(path)
    if mount is None or mount.destination != path or mount.kind != "bind":
        found = "no mount" if mount is None else f"the mount of {mount.source[:200]!r}"
        raise Refusal(expected, found, MOUNT_HINT)
    sources = [one.source for one in container.mounts if one.destination == path]
    if len(set(sources)) > 1:
        # Which of them is the share's cannot be told.
        raise Refusal(expected, f"mounts of {' and '.join(sources)[:400]!r}", MOUNT_HINT)
    if own is not None and os.path.realpath(mount.source) != os.path.realpath(own):
        raise Refusal(f"{own} at {path}", f"the mount of {mount.source[:200]!r}", MOUNT_HINT)
    if own is not None and "ro" not in mount.options:
        raise Refusal(f"{expected} that is read-only", repr(mount.options)[:200], MOUNT_HINT)
    opened = rootfs.open(path)
    if opened is None:
        raise Refusal(f"the file {mount.source}", "none", node_hint=REINSTALL)
    return opened[0]


def _entrypoint(container: Container, rootfs: Rootfs) -> str:
    """Return the container path of the first program that is not an engine's own init."""
    arguments = container.arguments
    if not arguments:
        raise Refusal(f"process.args in {container.where}", "none", HINT)
    if arguments[0] in ENGINE_INITS and "--" in arguments:
        mount = container.mount_of(arguments[0])
        following = arguments[arguments.index("--") + 1 :]
        if mount is not None and mount.destination == arguments[0] and following:
            arguments = following
    name = arguments[0]
    for candidate in _candidates(name, container):
        if _exists(rootfs, candidate, or_folder="/" not in name):
            return candidate
    raise Refusal(f"the program {name[:200]!r} in the container's image", "none", HINT)


def _candidates(name: str, container: Container) -> list[str]:
    """Return where execvp would look for a program."""
    if "/" in name:
        return [os.path.join(container.cwd, name)]
    folders = container.environment.get("PATH") or DEFAULT_PATH
    return [os.path.join(container.cwd, folder, name) for folder in folders.split(":")]


def _exists(rootfs: Rootfs, path: str, *, or_folder: bool = False) -> bool:
    """Whether a file is there that may be run; with ``or_folder`` a folder is passed over."""
    opened = rootfs.open(path, or_folder=or_folder)
    if opened is None:
        return False
    mode = os.fstat(opened[0]).st_mode
    os.close(opened[0])
    return bool(mode & 0o111)


def _check_program(
    path: str, machine: int, container: Container, rootfs: Rootfs
) -> tuple[int, int]:
    """Return the glibc version that a program will run on; raises Refusal if the library won't."""
    expected = f"{path[:200]!r} as a dynamic program that loads LD_AUDIT"
    for _ in range(MAX_SCRIPTS):
        opened = rootfs.open(path)
        if opened is None:
            raise Refusal(expected, f"no file at {path[:200]!r}", HINT)
        descriptor, real = opened
        try:
            script = _script_interpreter(descriptor)
            if script:
                path = os.path.join(container.cwd, script)
                continue
            if _gains_privilege(descriptor):
                raise Refusal(expected, f"a program with privileges at {real[:200]!r}", HINT)
            program = Elf(descriptor)
        except ElfError as error:
            raise Refusal(expected, f"{error} at {real[:200]!r}", HINT) from error
        finally:
            os.close(descriptor)
        if program.machine != machine:
            found = f"a program for machine {program.machine}, and a library for {machine}"
            raise Refusal(expected, f"{found}, at {real[:200]!r}", HINT)
        if program.interpreter is None:
            raise Refusal(expected, f"a static program at {real[:200]!r}", HINT)
        return _check_loader(program.interpreter, machine, expected, rootfs)
    raise Refusal(expected, f"more than {MAX_SCRIPTS} scripts one through the other", HINT)


def _gains_privilege(descriptor: int) -> bool:
    """Whether a program is setuid, setgid or has capabilities: its loader then drops LD_AUDIT."""
    if os.fstat(descriptor).st_mode & (stat.S_ISUID | stat.S_ISGID):
        return True
    try:
        return bool(os.getxattr(descriptor, "security.capability"))
    except OSError:
        return False


def _script_interpreter(descriptor: int) -> str:
    """Return the program that a ``#!`` line names, empty for what is no script."""
    line = os.pread(descriptor, 256, 0).split(b"\n")[0]
    words = line.removeprefix(b"#!").split()
    return os.fsdecode(words[0]) if line.startswith(b"#!") and words else ""


def _check_loader(loader: str, machine: int, expected: str, rootfs: Rootfs) -> tuple[int, int]:
    """Return the version of a glibc loader and its libc, the older of both."""
    loader_version, real = _glibc_of(loader, expected, rootfs)
    if loader_version < OLDEST:
        raise Refusal(expected, _named("the loader", real, loader_version), HINT)
    triple = MACHINES.get(machine, "")
    folders = [os.path.dirname(real), os.path.dirname(loader)]
    for prefix in ("/lib", "/usr/lib"):
        folders += [f"{prefix}/{triple}", f"{prefix}64", prefix]
    for folder in folders:
        path = f"{folder}/libc.so.6"
        opened = rootfs.open(path)
        if opened is not None:
            os.close(opened[0])
            version, real = _glibc_of(path, expected, rootfs)
            if version < OLDEST:
                raise Refusal(expected, _named("the libc", real, version), HINT)
            return min(version, loader_version)
    raise Refusal(expected, f"no libc.so.6 for {loader[:200]!r}", HINT)


def _glibc_of(path: str, expected: str, rootfs: Rootfs) -> tuple[tuple[int, int], str]:
    """Return which glibc a loader or libc is of, (0, 0) for none, and its path without links."""
    opened = rootfs.open(path)
    if opened is None:
        raise Refusal(expected, f"no file at {path[:200]!r}", HINT)
    descriptor, real = opened
    try:
        return glibc(Elf(descriptor).versions()), real
    except ElfError as error:
        raise Refusal(expected, f"{error} at {real[:200]!r}", HINT) from error
    finally:
        os.close(descriptor)


def _named(what: str, path: str, version: tuple[int, int]) -> str:
    kind = f"glibc older than {OLDEST[0]}.{OLDEST[1]}" if version[0] else "none of glibc's"
    return f"{what} {path[:200]!r}, {kind}"
