"""The hook on a host that has nothing: no Python, no libc, and a root that cannot be written.

The host's root filesystem is Debian's static busybox and the hook. What runc itself needs lies in
a folder where no other program looks for it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import hook_program, need
from tests.integration import roots
from tests.integration.image import STATIC_BUSYBOX
from tests.ocihook_scene import Scene

if TYPE_CHECKING:
    from collections.abc import Sequence

HOOK = "/opt/amd-cdi/amd-oci-hook"
LOADER = b"/lib64/ld-linux-x86-64.so.2\0"
OWN_LOADER = b"/runc/loader"
LOG = "var/log/amd-cdi/hook.log"

# Arguments: the new root, the folder of the container, how the root is mounted, the command.
_INSIDE = """
set -eu
root=$1 folder=$2 access=$3; shift 3
mount --bind "$root" "$root"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs run "$root/run"
mount --bind "$folder" "$root$folder"
mount -o "remount,bind,$access" "$root"
cd "$root"
pivot_root . old
exec /bin/busybox sh -c '/bin/busybox umount -l /old && exec "$@"' sh "$@"
"""


@dataclass(frozen=True)
class Host:
    root: Path
    scene: Scene

    def run(
        self, command: Sequence[str], access: str = "rw", stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        unshare = ["unshare", "--mount", "--pid", "--fork", "--propagation=private"]
        arguments = [str(self.root), str(self.scene.bundle.parent), access, *command]
        return subprocess.run(
            [*unshare, "sh", "-c", _INSIDE, "sh", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, access: str = "rw") -> subprocess.CompletedProcess[str]:
        """Start the container of the scene."""
        runc = ["/runc/runc", "--root=/run/runc", "run", f"--bundle={self.scene.bundle}", "c1"]
        return self.run(runc, access)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need.namespaces()
    root = tmp_path_factory.mktemp("host")
    for name in ("bin", "dev", "etc", "old", "opt/amd-cdi", "proc", "run", "runc", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "var/log").mkdir(parents=True)
    shutil.copy(need.file(STATIC_BUSYBOX), root / "bin")
    hook = hook_program.build(tmp_path_factory.mktemp("program"))
    shutil.copy(hook, root / HOOK.lstrip("/"))
    _lay_runc(root)
    return root


def _lay_runc(root: Path) -> None:
    """runc with its loader and libraries in one folder, which only runc itself names."""
    program = need.program("runc").read_bytes()
    assert program.count(LOADER) == 1
    (root / "runc/runc").write_bytes(program.replace(LOADER, OWN_LOADER.ljust(len(LOADER), b"\0")))
    (root / "runc/runc").chmod(0o755)
    shutil.copy(LOADER.rstrip(b"\0").decode(), root / OWN_LOADER.decode().lstrip("/"))
    for name in ("libseccomp.so.2", "libc.so.6"):
        shutil.copy(need.file(Path("/lib/x86_64-linux-gnu", name)), root / "runc")
    (root / "etc/ld.so.conf").write_text("/runc\n")
    subprocess.run([need.program("ldconfig"), "-r", root], check=True)


@pytest.fixture
def host(root: Path, library: Path, tmp_path: Path) -> Host:
    """A host with a container of one share, held by the library: there is no dmem."""
    scene = Scene(tmp_path)
    scene.bundle.mkdir()
    shutil.copy(library, scene.library)
    subprocess.run([need.program("runc"), "spec", f"--bundle={scene.bundle}"], check=True)
    template = json.loads((scene.bundle / "config.json").read_text())
    roots.glibc_busybox(scene.bundle / "rootfs")
    (root / str(tmp_path).lstrip("/")).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / "var/log")
    (root / "var/log").mkdir()
    scene.lay(dmem=False)
    process = {"terminal": False, "cwd": "/", "args": ["/bin/sh", "-c", "echo started"]}
    own = [mount for mount in scene.config["mounts"] if "options" in mount][-2:]
    template["process"] |= process
    template["mounts"] += own
    template["linux"] |= {"cgroupsPath": f"/{tmp_path.name}", **_devices(scene)}
    template["hooks"] = {"prestart": [{"path": HOOK, "args": ["amd-oci-hook", *_words(scene)]}]}
    scene.config = template
    scene.lay_bundle()
    return Host(root, scene)


def _devices(scene: Scene) -> dict:
    linux = scene.config["linux"]
    return {name: linux[name] for name in ("devices", "resources")}


def _words(scene: Scene) -> list[str]:
    """The hook's arguments, for the kernel that is really there."""
    words = scene.arguments()
    return words[: words.index("--sysroot")]


def test_the_host_has_no_python_and_no_libc(host: Host) -> None:
    files = {path.name for path in host.root.rglob("*") if path.is_file()}
    assert files == {
        *("busybox", "amd-oci-hook", "ld.so.cache", "ld.so.conf"),
        *("runc", "loader", "libc.so.6", "libseccomp.so.2"),
    }
    # Whatever needs a loader at the usual place does not start.
    shutil.copy("/bin/true", host.root / "tmp/true")
    result = host.run(["/tmp/true"])
    (host.root / "tmp/true").unlink()
    assert result.returncode != 0


@pytest.mark.parametrize("access", ["rw", "ro"])
def test_what_is_held_starts(host: Host, access: str) -> None:
    result = host.start(access)
    assert (result.returncode, result.stdout, result.stderr) == (0, "started\n", "")
    log = host.root / LOG
    assert log.exists() is (access == "rw")
    if log.exists():
        assert re.fullmatch(
            r"\S+ amd-oci-hook: container c1: share share-a: memory held by the library.*\n",
            log.read_text(),
        )


@pytest.mark.parametrize("access", ["rw", "ro"])
def test_what_is_not_held_is_refused(host: Host, access: str) -> None:
    host.scene.environment["HSA_CU_MASK"] = "0:0-303"
    host.scene.lay_bundle()
    result = host.start(access)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "share share-a: refused: expected HSA_CU_MASK within 0:0-75" in result.stderr
