"""The way to the container's cgroup and the cap on it, on a fake tree.

Files of a tree stand for the kernel's where one write of one region is all that happens. Where the
order of several writes and the kernel's refusals matter, ``Controller`` stands for it: it answers
as Linux 7.2 and 7.3 were seen to. The real controller is tried where a kernel with it runs.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ocihook import cgroup, dmem
from ocihook.arguments import parse
from ocihook.bundle import Container
from ocihook.refusal import DeadlineError, Refusal
from tests.ocihook_scene import BYTES, CAPACITY, GPU, GROUP, REGION, Scene, bind, write

if TYPE_CHECKING:
    from pathlib import Path

SECOND = "drm/0000:84:00.0/vram"
MOUNTS = (
    "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "30 22 0:26 {root} {place} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
)


class Controller:
    """The dmem files of a tree, with the kernel's answers to writes; lists what was written."""

    def __init__(self, scene: Scene, use: int = 0) -> None:
        self.file = scene.group / "dmem.max"
        self.use = use
        self.writes: list[str] = []
        self.folders: list[str] = []
        self.fail: dict[str, BaseException] = {}

    def write(self, path: str, text: str) -> None:
        self.writes.append(text)
        self.folders.append(path.rsplit("/", 2)[1])
        if text in self.fail:
            raise self.fail[text]
        if not path.endswith("dmem.max"):
            return
        region, value = text.split()
        table = dict(line.split() for line in self.file.read_text().splitlines())
        if region not in table:
            raise OSError(errno.EINVAL, "Invalid argument")
        if value == "max" or int(value) >= self.use:
            table[region] = value
        self.file.write_text("".join(f"{name} {size}\n" for name, size in table.items()))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).lay()


@pytest.fixture
def controller(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """Two GPUs, and a controller that takes one region a write."""
    other = GPU.replace("0000:83", "0000:84").replace("index=0", "index=1")
    scene.gpus.append(other.replace(f"bytes={BYTES}", "bytes=4096"))
    capacity = scene.sysroot / "sys/fs/cgroup/dmem.capacity"
    capacity.write_text(f"{REGION} {CAPACITY}\n{SECOND} 8192\n")
    (scene.group / "dmem.max").write_text(f"{REGION} max\n{SECOND} 6000\n")
    made = Controller(scene)
    monkeypatch.setattr(cgroup, "write", made.write)
    return made


def apply(scene: Scene) -> str:
    share = parse(scene.arguments()).share
    assert share is not None
    container = Container(scene.config, str(scene.bundle))
    return dmem.apply(scene.state["pid"], container, share, str(scene.sysroot))


def caps(scene: Scene) -> str:
    return (scene.group / "dmem.max").read_text()


def test_cap_is_set(scene: Scene) -> None:
    assert apply(scene) == f"{REGION}={BYTES}"
    assert caps(scene) == f"{REGION} {BYTES}\n"


def test_again_changes_nothing(scene: Scene) -> None:
    apply(scene)
    apply(scene)
    assert caps(scene) == f"{REGION} {BYTES}\n"


def test_each_region_in_a_write_of_its_own(scene: Scene, controller: Controller) -> None:
    apply(scene)
    assert controller.writes == [f"{REGION} {BYTES}\n", f"{SECOND} 4096\n"]
    assert caps(scene) == f"{REGION} {BYTES}\n{SECOND} 4096\n"


def test_partitions_of_a_gpu_add_up(scene: Scene) -> None:
    scene.gpus.append(GPU.replace("index=0", "index=1").replace("render=128,card=1", "render=129"))
    apply(scene)
    assert caps(scene) == f"{REGION} {2 * BYTES}\n"


def test_partitions_beyond_capacity(scene: Scene) -> None:
    scene.gpus = [
        GPU.replace("index=0", f"index={i}").replace(str(BYTES), str(CAPACITY // 2 + 1))
        for i in range(2)
    ]
    with pytest.raises(Refusal, match=f"at most the {CAPACITY} bytes of {REGION}"):
        apply(scene)
    assert caps(scene) == f"{REGION} max\n"


@pytest.mark.parametrize(
    "capacity",
    ["", "drm/0000:84:00.0/vram 5\n", "drm/10000:83:00.0/vram 5\n", f"{REGION}0 9\n{REGION}1 9\n"],
)
def test_region_unknown_or_ambiguous(scene: Scene, capacity: str) -> None:
    (scene.sysroot / "sys/fs/cgroup/dmem.capacity").write_text(capacity)
    with pytest.raises(Refusal, match=r"one VRAM region of 0000:83:00\.0"):
        apply(scene)
    assert caps(scene) == f"{REGION} max\n"


def test_other_memory_of_the_gpu_is_not_the_region(scene: Scene) -> None:
    capacity = f"drm/0000:83:00.0/gtt 9\n{REGION} {CAPACITY}\n"
    (scene.sysroot / "sys/fs/cgroup/dmem.capacity").write_text(capacity)
    assert apply(scene) == f"{REGION}={BYTES}"


def test_second_region_refused_restores_the_first(scene: Scene, controller: Controller) -> None:
    controller.fail[f"{SECOND} 4096\n"] = OSError(errno.EINVAL, "Invalid argument")
    with pytest.raises(Refusal, match=f"to write `{SECOND} 4096` .*Invalid argument"):
        apply(scene)
    assert caps(scene) == f"{REGION} max\n{SECOND} 6000\n"


def test_cap_below_use_of_old_kernels_is_found(scene: Scene, controller: Controller) -> None:
    controller.use = 5000
    with pytest.raises(Refusal, match=f"`{SECOND} 4096` .*6000 read back"):
        apply(scene)
    assert caps(scene) == f"{REGION} max\n{SECOND} 6000\n"


def test_deadline_between_regions_restores(scene: Scene, controller: Controller) -> None:
    controller.fail[f"{SECOND} 4096\n"] = DeadlineError()
    with pytest.raises(DeadlineError):
        apply(scene)
    assert caps(scene) == f"{REGION} max\n{SECOND} 6000\n"


def test_restore_goes_on_after_a_failure(scene: Scene, controller: Controller) -> None:
    controller.use = 5000
    controller.fail[f"{REGION} max\n"] = OSError(errno.ENODEV, "gone")
    with pytest.raises(Refusal, match="6000 read back"):
        apply(scene)
    assert controller.writes[-2:] == [f"{REGION} max\n", f"{SECOND} 6000\n"]


def test_controller_is_enabled_from_the_top(scene: Scene, controller: Controller) -> None:
    mount = scene.sysroot / "sys/fs/cgroup"
    slices = [mount, mount / "kubepods.slice", mount / "kubepods.slice/pod1.slice"]
    for folder in slices:
        (folder / "cgroup.subtree_control").write_text("cpu memory\n")
    apply(scene)
    assert controller.writes[:3] == ["+dmem"] * 3
    assert controller.folders[:3] == ["cgroup", "kubepods.slice", "pod1.slice"]
    assert not any("-dmem" in text for text in controller.writes)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EBUSY, "processes in that cgroup itself"),
        (errno.ENOENT, "no such controller there"),
        (errno.EINVAL, "no such controller there"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_ancestor_that_does_not_take_it(
    scene: Scene, controller: Controller, code: int, reason: str
) -> None:
    control = scene.sysroot / "sys/fs/cgroup/kubepods.slice/cgroup.subtree_control"
    control.write_text("cpu\n")
    controller.fail["+dmem"] = OSError(code, "Permission denied")
    with pytest.raises(Refusal, match=f"to enable dmem in .*kubepods.slice.*{reason}"):
        apply(scene)
    assert caps(scene) == f"{REGION} max\n{SECOND} 6000\n"


def test_no_controller_in_the_kernel(tmp_path: Path) -> None:
    scene = Scene(tmp_path).lay(dmem=False)
    with pytest.raises(Refusal, match=r"dmem\.capacity"):
        apply(scene)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/", "own, found it in '/'"),
        ("/system.slice/containerd.service", "own, found it in '/system.slice/containerd.service'"),
        ("/system.slice", "own, found it in '/system.slice'"),
        ("/../x", "below the hook's"),
        ("/system.slice/containerd.service/../x", "below the hook's"),
    ],
)
def test_cgroup_that_is_not_the_containers(scene: Scene, path: str, reason: str) -> None:
    write(scene.sysroot / "proc/4242/cgroup", f"0::{path}\n")
    with pytest.raises(Refusal, match=reason):
        apply(scene)


@pytest.mark.parametrize("lines", ["", "4:memory:/x\n", "1:name=systemd:/x\n0:x:/y\n"])
def test_no_unified_hierarchy(scene: Scene, lines: str) -> None:
    write(scene.sysroot / "proc/4242/cgroup", lines)
    with pytest.raises(Refusal, match="a cgroup v2 in"):
        apply(scene)


def test_process_that_is_gone(scene: Scene) -> None:
    (scene.sysroot / "proc/4242/cgroup").unlink()
    with pytest.raises(Refusal, match="No such file"):
        apply(scene)


def place(scene: Scene, place: str, root: str = "/") -> None:
    """Move the tree to another mount point."""
    text = MOUNTS.format(root=root, place=place)
    write(scene.sysroot / "proc/self/mountinfo", text)


def test_hybrid_hierarchy(scene: Scene) -> None:
    """A v1 machine with the bare cgroup2 beside: as podman on it was seen to write."""
    mount = scene.sysroot / "sys/fs/cgroup"
    mount.rename(scene.sysroot / "sys/fs/unified")
    mount.mkdir()
    (scene.sysroot / "sys/fs/unified").rename(mount / "unified")
    place(scene, "/sys/fs/cgroup/unified")
    write(scene.sysroot / "proc/4242/cgroup", f"5:devices:/x\n1:cpu:/x\n0::/{GROUP}\n")
    apply(scene)
    assert (mount / "unified" / GROUP / "dmem.max").read_text() == f"{REGION} {BYTES}\n"


def test_child_group_of_cruns_systemd_driver(scene: Scene) -> None:
    child = scene.group / "container"
    write(scene.group / "cgroup.subtree_control", "dmem\n")
    write(child / "dmem.max", f"{REGION} max\n")
    write(scene.sysroot / "proc/4242/cgroup", f"0::/{GROUP}/container\n")
    apply(scene)
    assert (child / "dmem.max").read_text() == f"{REGION} {BYTES}\n"
    assert caps(scene) == f"{REGION} max\n"


def test_mount_of_a_part_of_the_hierarchy(scene: Scene) -> None:
    place(scene, "/sys/fs/cgroup", "/outer")
    write(scene.sysroot / "proc/self/cgroup", "0::/outer/system.slice/x\n")
    write(scene.sysroot / "proc/4242/cgroup", f"0::/outer/{GROUP}\n")
    apply(scene)
    assert caps(scene) == f"{REGION} {BYTES}\n"


def test_mount_that_does_not_show_the_container(scene: Scene) -> None:
    place(scene, "/sys/fs/cgroup", "/out")
    write(scene.sysroot / "proc/4242/cgroup", f"0::/outer/{GROUP}\n")
    with pytest.raises(Refusal, match="a cgroup2 mount in"):
        apply(scene)


def test_blank_in_the_mount_point(scene: Scene) -> None:
    mount = scene.sysroot / "sys/fs/cgroup"
    mount.rename(scene.sysroot / "sys/fs/my group")
    place(scene, "/sys/fs/my\\040group")
    apply(scene)
    text = (scene.sysroot / "sys/fs/my group" / GROUP / "dmem.max").read_text()
    assert text == f"{REGION} {BYTES}\n"


def cgroup_mount(*options: str) -> dict:
    kind = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"}
    return {**kind, "options": ["nosuid", *options]}


@pytest.mark.parametrize(
    "mount",
    [
        cgroup_mount(),
        cgroup_mount("rw"),
        bind("/cg", "/sys/fs/cgroup", "rw"),
        bind("/cg", "/sys//fs/./cgroup/system.slice", "rw"),
        bind("/cg", "/sys", "rw"),
        bind("/cg", "/sys", "ro"),  # what lies below stays writable: mount(2), MS_RDONLY
        bind("/cg", "/", "ro"),
        {**bind("/cg", "/sys/fs"), "options": ["rw"]},
    ],
)
def test_container_that_could_lift_its_cap(scene: Scene, mount: dict) -> None:
    scene.config["mounts"][1] = mount
    with pytest.raises(Refusal, match="a writable cgroup mount at"):
        apply(scene)


def test_link_to_the_cgroups(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "innocent").symlink_to("/sys/fs")
    scene.config["mounts"].append(bind("/x", tmp_path / "innocent", "rw"))
    with pytest.raises(Refusal, match="a writable cgroup mount at '/x'"):
        apply(scene)


@pytest.mark.parametrize(
    "mount",
    [
        cgroup_mount("ro"),
        bind("/cg", "/sys/fs/cgroup", "ro"),
        bind("/cg", "/sys", "ro", "rro"),
        {**bind("/cg", "/sys"), "options": ["bind", "rw"]},
        bind("/cg", "/sys/fs/cgroup-tools", "rw"),
        bind("/cg", "/srv", "rw"),
    ],
)
def test_container_that_cannot_lift_its_cap(scene: Scene, mount: dict) -> None:
    scene.config["mounts"][1] = mount
    apply(scene)


def test_container_that_may_mount_cgroups(scene: Scene) -> None:
    scene.config["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
    with pytest.raises(Refusal, match="CAP_SYS_ADMIN"):
        apply(scene)


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_cgroup_name_with_what_ends_a_line_elsewhere(scene: Scene, end: str) -> None:
    # The kernel takes every character but a line feed, and writes it as it is (Linux 6.18).
    folder = scene.group.parent / f"a{end}b"
    scene.group.rename(folder)
    write(scene.group.parent / "a/dmem.max", f"{REGION} max\n")
    name = GROUP.rsplit("/", 1)[0] + f"/a{end}b"
    (scene.sysroot / "proc/4242/cgroup").write_text(f"0::/{name}\n", newline="")
    apply(scene)
    assert (folder / "dmem.max").read_text() == f"{REGION} {BYTES}\n"
    assert (scene.group.parent / "a/dmem.max").read_text() == f"{REGION} max\n"
