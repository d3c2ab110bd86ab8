"""A guest: one command on a kernel that has the dmem controller and regions of device memory.

The guest's root filesystem is the host's, read-only, so that programs, Python and the repository
are the same inside. What it may write (/run, /tmp, /var/lib, /var/log, /var/tmp) is its own, in
memory, empty at its start, and gone at its end; so is the cgroup2 tree at /sys/fs/cgroup. One
folder is shared with the host.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_INIT = Path(__file__).with_name("init.sh")
_REPOSITORY = Path(__file__).parents[2]


class GuestError(Exception):
    """There can be no guest, or it did not come to its end; the message has what it said."""


@dataclass(frozen=True)
class Region:
    """A region of device memory, as a GPU's driver announces it: `drm/<PCI address>/vram`."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Guest:
    kernel: Path
    regions: Sequence[Region] = ()
    visible: Sequence[Path] = ()
    """Host folders beside the repository, read-only in the guest, that its own /tmp and the like
    would hide."""
    parameters: Sequence[str] = ()
    """Of the kernel, besides those it needs: `name=value`."""
    memory: int = 1024
    """MiB; taken from the host as it is used."""
    seconds: float = 600
    """Time limit, from start to power-off."""


@dataclass(frozen=True)
class Outcome:
    """How the guest's command ended."""

    status: int
    output: str
    """Standard output and error, as they came."""


def check_host() -> None:
    """Raise GuestError where the host lacks what a guest needs besides its kernel."""
    if os.geteuid() != 0:
        raise GuestError("only root starts containers in a guest: run the tests as root")
    missing = [name for name in ("busybox", "gcc", "setpriv") if shutil.which(name) is None]
    if missing:
        raise GuestError(f"not installed: {', '.join(missing)}: apt-get install them")


def python(*arguments: str) -> list[str]:
    """A command that runs this very Python; `Guest.visible` has to hold `python_folders()`."""
    return [sys.executable, *arguments]


def python_folders() -> list[Path]:
    """Where this Python and its packages are."""
    return [Path(sys.prefix), Path(sys.base_prefix)]


def run(
    guest: Guest, command: Sequence[str], shared: Path, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Start a guest, run the command as root in the repository's folder, power it off.

    `shared` is an existing folder, writable for both sides and at the same path; `command`,
    `output`, `status`, and `console` in it are the guest's. Raises GuestError when the command
    did not end within `guest.seconds`, or the kernel stopped before.
    """
    (shared / "command").write_text(_script(guest, command, environment or {}))
    console = shared / "console"
    with console.open("w") as log:
        kernel = subprocess.Popen(
            # Should the tests die, so does the guest.
            ["setpriv", "--pdeathsig=KILL", "--", *_boot(guest, shared)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            kernel.wait(guest.seconds)
        except subprocess.TimeoutExpired:
            raise GuestError(
                f"the guest did not end within {guest.seconds} s:\n{_said(shared)}"
            ) from None
        finally:
            _end(kernel)
    status = shared / "status"
    if not status.exists():
        raise GuestError(f"the guest stopped before its command ended:\n{_said(shared)}")
    return Outcome(int(status.read_text()), (shared / "output").read_text(errors="replace"))


def _boot(guest: Guest, shared: Path) -> list[str]:
    """The kernel and its parameters; without `ro` the guest would write to the host's disk."""
    root = ["root=none", "rootfstype=hostfs", "rootflags=/", "ro"]
    console = ["quiet", "con=null", "con0=null,fd:1", "con1=null,fd:1"]
    # With `seccomp` the host's kernel intercepts the guest's system calls faster than ptrace does.
    machine = [f"mem={guest.memory}M", "seccomp=auto", f"uml_dir={shared}"]
    own = [*root, *console, *guest.parameters, f"init={_INIT}", "--", str(shared)]
    return [str(guest.kernel), *machine, *own]


def _script(guest: Guest, command: Sequence[str], environment: Mapping[str, str]) -> str:
    lines = ["set -e"]
    visible = [_REPOSITORY, *(path.absolute() for path in guest.visible)]
    for folder in dict.fromkeys(visible):
        place = shlex.quote(str(folder))
        lines += [f"mkdir -p {place}", f"mount -t hostfs -o ro,{place} host {place}"]
    lines += [
        shlex.join(["echo", "register", region.name, str(region.bytes)]) + " >/proc/dmemtest"
        for region in guest.regions
    ]
    lines += [f"export {shlex.quote(name)}={shlex.quote(v)}" for name, v in environment.items()]
    return "\n".join([*lines, shlex.join(["cd", str(_REPOSITORY)]), shlex.join(command), ""])


def _end(kernel: subprocess.Popen[bytes]) -> None:
    """The guest's processes are of the kernel's session."""
    with suppress(ProcessLookupError):
        os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait()


def _said(shared: Path) -> str:
    texts = [shared / "console", shared / "output"]
    return "\n".join(text.read_text(errors="replace")[-4000:] for text in texts if text.exists())
