"""Whether the kernel can hold a container to its memory: the dmem controller of cgroup v2."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor.finding import Finding, Level
from cdi.node.gpu import Gpu
from cdi.plan.options import Policy

CONTROLLER = "dmem"
PARENTS = (
    "system.slice",
    "user.slice",
    "machine.slice",
    "kubepods.slice",
    "kubepods",
    "docker",
    "machine",
    "libpod_parent",
)
"""Where runtimes put the cgroups of their containers."""

REMEDY = (
    "boot a kernel of 6.14 or later with CONFIG_CGROUP_DMEM=y; "
    "where shares shall not start without it, generate with --require dmem"
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a kernel says of its cgroups."""

    release: str
    mount: str
    """Where cgroup v2 is mounted, empty for nowhere."""
    v1: bool
    """Whether controllers are mounted as cgroup v1 as well."""
    controllers: frozenset[str]
    """Those of the root of cgroup v2."""
    lacking: tuple[str, ...] = ()
    """Cgroups above those of containers in which dmem is not switched on yet."""
    closed: tuple[str, ...] = ()
    """Those of them in which it cannot be, as they hold processes themselves."""
    regions: frozenset[str] | None = None
    """What dmem.capacity names; None where it does not exist before dmem is first switched on."""
    systemd: bool = False

    @property
    def has_dmem(self) -> bool:
        """Whether memory can be capped in some cgroup."""
        return CONTROLLER in self.controllers


def read(root: Path) -> Kernel:
    """Read what the kernel of a machine says."""
    mount, v1 = "", False
    for line in (root / "proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        kind = right.partition(" ")[0]
        v1 |= kind == "cgroup"
        if kind == "cgroup2" and not mount:
            mount = left.split(" ")[4]
    release = (root / "proc/sys/kernel/osrelease").read_text().strip()
    systemd = (root / "run/systemd/system").is_dir()
    if not mount:
        return Kernel(release, "", v1, frozenset(), systemd=systemd)
    top = root / mount.lstrip("/")
    controllers = frozenset((top / "cgroup.controllers").read_text().split())
    found = Kernel(release, mount, v1, controllers, systemd=systemd)
    if not found.has_dmem:
        return found
    places = [top, *(top / name for name in PARENTS if (top / name).is_dir())]
    lacking = [place for place in places if not _is_on(place)]
    closed = [place for place in lacking if place != top and _words(place / "cgroup.procs")]
    capacity = top / "dmem.capacity"
    lines = capacity.read_text().splitlines() if capacity.exists() else None
    return Kernel(
        release,
        mount,
        v1,
        controllers,
        tuple(_name(place, root) for place in lacking),
        tuple(_name(place, root) for place in closed),
        None if lines is None else frozenset(line.rpartition(" ")[0] for line in lines),
        systemd,
    )


def findings(
    kernel: Kernel, gpus: Sequence[Gpu], require: Policy, *, library: bool
) -> Iterator[Finding]:
    """Yield what follows for shares of these GPUs, with the library or without."""
    without: Level = "less" if library and require != "dmem" else "fails"
    consequence = {
        "less": "memory is held by the library alone: a share starts only in an image with glibc "
        "2.34 or later",
        "fails": "no container with a share starts"
        + (", as --require dmem says" if require == "dmem" else ", as the library lacks as well"),
    }[without]
    if require in {"library", "none"}:
        without, consequence = "works", f"--require {require} does without it"
    hybrid = "cgroup v1 beside it" if kernel.v1 else "no cgroup v1"
    driver = "systemd manages cgroups" if kernel.systemd else "no systemd manages cgroups"
    evidence = f"Linux {kernel.release}, cgroup v2 at {kernel.mount or 'nowhere'}, {hybrid}"
    if not kernel.mount:
        yield Finding(without, "the kernel has no cgroup v2 mounted", evidence, consequence, REMEDY)
        return
    listed = " ".join(sorted(kernel.controllers)) or "nothing"
    evidence = f"{evidence}, {driver}; its cgroup.controllers has {listed}"
    if not kernel.has_dmem:
        what = "the kernel has no dmem controller"
        yield Finding(without, what, evidence, consequence, REMEDY)
        return
    if kernel.closed:
        yield Finding(
            without,
            "the kernel cannot cap memory below " + ", ".join(kernel.closed),
            "processes of their own in these cgroups, whose cgroup.subtree_control lacks dmem",
            consequence,
            "move these processes into cgroups below, or put containers elsewhere",
        )
    # An APU has a region as well: that of its carve-out, which HIP gets nothing of.
    shared = [gpu.pci for gpu in gpus if gpu.partitions[0].memory_kind == "shared"]
    if shared:
        yield Finding(
            without,
            f"the kernel cannot cap the memory of GPU {', '.join(shared)}",
            "it is shared with the host, and dmem charges VRAM alone",
            consequence,
            "let the library hold its shares, with --require any",
        )
    strangers = [
        gpu.pci
        for gpu in gpus
        if gpu.pci not in shared and not _has_region(kernel.regions, gpu.pci)
    ]
    if strangers:
        yield Finding(
            without,
            f"the kernel cannot cap the memory of GPU {', '.join(strangers)}",
            f"dmem.capacity names {' '.join(sorted(kernel.regions or ())) or 'nothing'}",
            consequence,
            "use a kernel whose amdgpu registers its memory there",
        )
    charges_none = bool(shared) and len(shared) == len(gpus)
    if not kernel.closed and not strangers and not charges_none:
        later = (
            f"; the hook switches it on in {', '.join(kernel.lacking)}" if kernel.lacking else ""
        )
        yield Finding("works", "the kernel caps memory", f"{evidence}{later}")


def _has_region(regions: frozenset[str] | None, pci: str) -> bool:
    return regions is None or any(pci in name.split("/") for name in regions)


def _is_on(place: Path) -> bool:
    return CONTROLLER in _words(place / "cgroup.subtree_control")


def _words(path: Path) -> list[str]:
    return path.read_text().split()


def _name(place: Path, root: Path) -> str:
    return os.fspath(Path("/") / place.relative_to(root))
