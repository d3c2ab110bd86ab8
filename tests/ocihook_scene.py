"""A container about to start, as files: what the hook finds at prestart or createRuntime.

The sysroot holds /proc, /sys/fs/cgroup and /var of a fake machine with the dmem controller, the
bundle what an engine writes for a container with one share. A plain file takes a write at its
beginning as the kernel's file takes the write of one region, so a tree with one region behaves as
the real one; several regions, and all errors of the kernel, need the real controller.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PCI = "0000:83:00.0"
ROCR = "GPU-8e1bb56457addd1b"
BYTES = 51539607552
CAPACITY = 206141652992
GPU = f"pci={PCI},index=0,rocr={ROCR},cus=0-75,count=304,atom=4,bytes={BYTES},render=128,card=1"
REGION = f"drm/{PCI}/vram"
APU = "0000:c6:00.0"
APU_BYTES = 1073741824
"""Of the host's memory; less than the 2 GiB that the firmware set aside, so a cap would fit."""

APU_GPU = (
    f"pci={APU},index=0,rocr=0,cus=0-19,count=40,atom=2,bytes={APU_BYTES},render=129,card=2,"
    "memory=shared"
)
APU_REGION = f"drm/{APU}/vram 2147483648\n"
"""What the kernel says of it in dmem.capacity: a cap there is taken, and does not hold HIP."""

GROUP = "kubepods.slice/pod1.slice/cri-1.scope"
LIBRARY = "/usr/local/vgpu/libamvgpu.so"
VALUES = "/usr/local/vgpu/share.conf"


class Scene:
    """The folders of one start, and the values that a test may change before ``lay``."""

    def __init__(self, folder: Path) -> None:
        self.sysroot = folder / "host"
        self.share = "share-a"
        self.bundle = folder / "bundle"
        self.rootfs = self.bundle / "rootfs"
        self.library = folder / "host-library.so"
        self.values = self.sysroot / "var/lib/amd-cdi/shares/share-a.conf"
        self.environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "ROCR_VISIBLE_DEVICES": ROCR,
            "HIP_VISIBLE_DEVICES": "0",
            "HSA_CU_MASK": "0:0-75",
            "HIP_DEVICE_MEMORY_LIMIT_0": str(BYTES),
            "LD_AUDIT": LIBRARY,
        }
        self.state = {
            "ociVersion": "1.0.2",
            "id": "c1",
            "status": "creating",
            "pid": 4242,
            "bundle": str(self.bundle),
        }
        self.gpus = [GPU]
        self.require = "any"
        self.config: dict = {
            "ociVersion": "1.0.2",
            "process": {
                "args": ["/bin/true"],
                "cwd": "/",
                "env": [],
                "capabilities": {"bounding": ["CAP_CHOWN", "CAP_MKNOD"]},
            },
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/sys/fs/cgroup",
                    "type": "cgroup",
                    "source": "cgroup",
                    "options": ["nosuid", "ro"],
                },
                bind(LIBRARY, self.library),
                bind(VALUES, self.values),
            ],
            "hooks": {},
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "cgroup"}],
                "devices": [
                    device("/dev/kfd", 511, 0),
                    device("/dev/dri/renderD128", 226, 128),
                    device("/dev/dri/card1", 226, 1),
                ],
                "resources": {
                    "devices": [
                        {"allow": False, "access": "rwm"},
                        {"allow": True, "type": "c", "access": "m"},
                        rule(1, 3),
                        rule(511, 0),
                        rule(226, 128),
                        rule(226, 1),
                    ]
                },
            },
        }

    def on_apu(self) -> Scene:
        """Let the share be one of the APU alone."""
        self.gpus = [APU_GPU]
        self.environment |= {
            "ROCR_VISIBLE_DEVICES": "0",
            "HSA_CU_MASK": "0:0-19",
            "HIP_DEVICE_MEMORY_LIMIT_0": str(APU_BYTES),
        }
        nodes = [device("/dev/dri/renderD129", 226, 129), device("/dev/dri/card2", 226, 2)]
        self.config["linux"]["devices"][1:] = nodes
        self.config["linux"]["resources"]["devices"][-2:] = [rule(226, 129), rule(226, 2)]
        return self

    def with_apu(self) -> Scene:
        """Let the share have a part of the APU beside what it has."""
        self.gpus.append(APU_GPU.replace("index=0,rocr=0", "index=1,rocr=1"))
        self.environment |= {
            "ROCR_VISIBLE_DEVICES": f"{ROCR},1",
            "HIP_VISIBLE_DEVICES": "0,1",
            "HSA_CU_MASK": "0:0-75;1:0-19",
            "HIP_DEVICE_MEMORY_LIMIT_1": str(APU_BYTES),
        }
        nodes = [device("/dev/dri/renderD129", 226, 129), device("/dev/dri/card2", 226, 2)]
        self.config["linux"]["devices"] += nodes
        self.config["linux"]["resources"]["devices"] += [rule(226, 129), rule(226, 2)]
        return self

    @property
    def group(self) -> Path:
        """Folder of the container's cgroup."""
        return self.sysroot / "sys/fs/cgroup" / GROUP

    @property
    def log(self) -> Path:
        return self.sysroot / "var/log/amd-cdi/hook.log"

    def lay(self, *, dmem: bool = True, size: int = 0) -> Scene:
        """Write everything; with ``size`` the configuration is padded to so many bytes."""
        self.rootfs.mkdir(parents=True, exist_ok=True)
        write(self.values, "".join(f"{k}={v}\n" for k, v in self.environment.items()))
        (self.sysroot / "var/log").mkdir(parents=True, exist_ok=True)
        self._lay_library()
        self._lay_cgroups(dmem=dmem)
        return self.lay_bundle(size)

    def lay_bundle(self, size: int = 0) -> Scene:
        """Write the configuration alone."""
        config = copy.deepcopy(self.config)
        config["process"]["env"] = [f"{k}={v}" for k, v in self.environment.items()]
        missing = size - len(json.dumps(config))
        if missing > 0:
            names = [f"syscall_number_{i:05d}" for i in range(missing // 24 + 1)]
            config["linux"]["seccomp"] = {"syscalls": [{"names": names}]}
        write(self.bundle / "config.json", json.dumps(config))
        return self

    def _lay_library(self) -> None:
        """A file of the machine's own architecture stands for the library."""
        if not self.library.exists():
            shutil.copyfile("/bin/true", self.library)

    def _lay_cgroups(self, *, dmem: bool) -> None:
        mount = self.sysroot / "sys/fs/cgroup"
        proc = self.sysroot / "proc"
        write(
            proc / "self/mountinfo",
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
        write(proc / "self/cgroup", "0::/system.slice/containerd.service\n")
        write(proc / f"{self.state['pid']}/cgroup", f"0::/{GROUP}\n")
        controllers = "cpu memory dmem\n" if dmem else "cpu memory\n"
        folder = mount
        for name in ["", *GROUP.split("/")]:
            folder = folder / name
            write(folder / "cgroup.subtree_control", controllers)
        if dmem:
            write(mount / "dmem.capacity", f"{REGION} {CAPACITY}\n{APU_REGION}")
            write(folder / "dmem.max", f"{REGION} max\n")

    def arguments(self, *extra: str) -> list[str]:
        words = ["run", "--share", self.share, "--require", self.require]
        for gpu in self.gpus:
            words += ["--gpu", gpu]
        words += ["--library", str(self.library), "--values", str(self.values)]
        return [*words, "--sysroot", str(self.sysroot), *extra]

    def run(self, command: list[str], *extra: str) -> subprocess.CompletedProcess[str]:
        """Run the hook with the arguments of the share."""
        return self.call([*command, *self.arguments(*extra)])

    def call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a hook as a runtime does, with no environment at all."""
        return subprocess.run(
            command,
            input=json.dumps(self.state),
            env={},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, errors="backslashreplace")


def bind(destination: str, source: Path | str, *options: str) -> dict:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", *(options or ("ro",))],
    }


def device(path: str, major: int, minor: int) -> dict:
    return {"path": path, "type": "c", "major": major, "minor": minor}


def rule(major: int | None, minor: int | None, access: str = "rw") -> dict:
    found = {"allow": True, "type": "c", "major": major, "minor": minor, "access": access}
    return {key: value for key, value in found.items() if value is not None}
