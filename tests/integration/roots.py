"""Root filesystems, real ones and hostile ones, to start containers from."""

import os
import shutil
import subprocess
from pathlib import Path

from tests import debian, need
from tests.integration import image

LIBC = Path("lib/x86_64-linux-gnu/libc.so.6")


def static_busybox(root: Path) -> None:
    """Debian's static busybox and nothing else."""
    image.add_programs(root)
    shutil.copy(need.file(image.STATIC_BUSYBOX), root / "bin")


def glibc_busybox(root: Path) -> None:
    """busybox and the libc of Debian 12, glibc 2.36."""
    files = need.fetched(lambda: debian.unpacked("bookworm", "busybox", "libc6"))
    shutil.copytree(files, root, symlinks=True, dirs_exist_ok=True)
    image.add_programs(root)


def musl(root: Path) -> None:
    """A /bin/sh that does nothing, and does it well, on Debian's musl."""
    files = need.fetched(lambda: debian.unpacked("bookworm", "musl", "musl-dev"))
    libraries = files / "lib/x86_64-linux-musl"
    empty(root)
    (root / "lib").mkdir()
    shutil.copy(libraries / "libc.so", root / "lib/ld-musl-x86_64.so.1")
    command: list[str | Path] = [need.program("cc"), "-nostdlib", "-o", root / "bin/sh"]
    command += ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1", "-x", "c", "-", "-x", "none"]
    command += [files / "usr/lib/x86_64-linux-musl/Scrt1.o", f"-L{libraries}", "-l:libc.so"]
    subprocess.run(command, input=b"int main(void) { return 0; }", check=True)


def empty(root: Path) -> None:
    (root / "bin").mkdir()


def link_out(root: Path) -> None:
    """The host's shell, if a link were followed from the host's root."""
    empty(root)
    (root / "bin/sh").symlink_to("../../../../../../../../../../../../bin/dash")


def link_through_proc(root: Path) -> None:
    """The host's libc, if a link went through the kernel's link to the hook's own root."""
    glibc_busybox(root)
    (root / LIBC).unlink()
    (root / LIBC).symlink_to(f"/proc/self/root/usr/{LIBC}")


def link_loop(root: Path) -> None:
    empty(root)
    (root / "bin/sh").symlink_to("sh")


def fifo_libc(root: Path) -> None:
    """A hook that opens this file waits for a writer who never comes."""
    glibc_busybox(root)
    (root / LIBC).unlink()
    os.mkfifo(root / LIBC)


def device_shell(root: Path) -> None:
    empty(root)
    os.mknod(root / "bin/sh", 0o020777, os.makedev(1, 5))


def huge_libc(root: Path) -> None:
    """A libc of 10 GiB, nearly all of it a hole."""
    glibc_busybox(root)
    (root / LIBC).unlink()
    with (root / LIBC).open("wb") as libc:
        libc.truncate(10 * 2**30)
