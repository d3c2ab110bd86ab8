"""The container runtimes of a machine, and what each makes of a CDI device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor.finding import Finding, Level
from cdi.errors import AmdCdiError
from cdi.plan.options import Options
from cdi.runtime import host, version
from cdi.runtime.containerd import Containerd
from cdi.runtime.host import KINDS, Kind
from cdi.runtime.setting import Setting
from cdi.runtime.version import Version

FLAGS = ("--config", "--config-file", "-c")
"""By which runtimes are told their main file."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime as it is installed, or as one of its processes was started."""

    kind: Kind
    version: Version | None
    config: str
    setting: Setting | None
    """None where its configuration cannot be read."""
    reason: str = ""
    """Why it cannot be read."""
    without_cri: bool = False
    """A containerd that serves no Kubernetes, such as the one that Docker starts."""
    outdated: bool = False
    """Whether it runs with an older configuration than that in its files."""

    @property
    def name(self) -> str:
        """What it is called in findings."""
        return f"{self.kind.name} {version.shown(self.version)}"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that reads its configuration when it starts."""

    config: str
    """As it was told; empty for the default."""
    started: float
    """In seconds since the epoch."""


def read(root: Path, options: Options) -> list[Runtime]:
    """Read what runtimes there are on this machine."""
    found: list[Runtime] = []
    for kind in KINDS.values():
        running = _processes(root, kind) if kind.unit else []
        place = host.program(kind)
        known = host.version_of(place) if place else None
        processes = running or ([Process("", 0)] if place else [])
        found += [_runtime(kind, known, root, process, options) for process in processes]
    return found


def findings(runtimes: Sequence[Runtime], spec_dir: str, spec_version: str) -> Iterator[Finding]:
    """Yield what follows for specs of this version in this directory."""
    if not runtimes:
        yield Finding(
            "fails",
            "there is no container runtime",
            f"none of {', '.join(kind.program for kind in KINDS.values())} in {host.PATH}",
            "nobody can start a container with a share",
            "install one: podman, docker, or containerd or CRI-O for Kubernetes",
        )
        return
    good = [one for one in runtimes if not list(_faults(one, spec_dir, spec_version, "less"))]
    # What one runtime lacks leaves the others, unless it is the only one.
    for runtime in runtimes:
        faults = list(_faults(runtime, spec_dir, spec_version, "less" if good else "fails"))
        if faults:
            yield from faults
        elif runtime.without_cri:
            yield Finding(
                "works",
                f"{runtime.name} serves no Kubernetes",
                f"{runtime.config} turns CRI off; ctr and nerdctl take CDI names by themselves",
            )
        elif runtime.setting:
            dirs = " and ".join(runtime.setting.spec_dirs)
            newest = version.newest_spec(runtime.kind.name, runtime.version)
            knows = f", up to version {newest} of the specification" if newest else ""
            yield Finding(
                "works",
                f"{runtime.name} gives CDI devices",
                f"by {runtime.setting.source}: specs from {dirs}{knows}",
            )


def _faults(runtime: Runtime, spec_dir: str, spec_version: str, level: Level) -> Iterator[Finding]:
    """Yield what keeps a runtime from giving devices of the specs."""
    configure = f"amd-cdi runtime configure --runtime {runtime.kind.name}"
    if runtime.setting is None:
        yield Finding(
            level,
            f"the configuration of {runtime.name} cannot be read",
            runtime.reason,
            "the runtime may not start, or not give CDI devices",
            f"correct it, then: {configure}",
        )
        return
    if runtime.without_cri:
        return
    if not runtime.setting.on:
        silently = runtime.kind.name == "containerd"
        yield Finding(
            level,
            f"CDI is off in {runtime.name}",
            f"by {runtime.setting.source}",
            "pods start without their GPU, and nothing says so"
            if silently
            else "it refuses CDI names",
            f"{configure} --restart",
        )
    elif not runtime.setting.reads(spec_dir):
        dirs = " and ".join(runtime.setting.spec_dirs)
        yield Finding(
            level,
            f"{runtime.name} does not read the specs in {spec_dir}",
            f"it reads {dirs}, by {runtime.setting.source}",
            "it knows no device of this node",
            f"{configure} --restart --spec-dir {spec_dir}",
        )
    newest = version.newest_spec(runtime.kind.name, runtime.version)
    if newest and spec_version and _number(spec_version) > _number(newest):
        yield Finding(
            level,
            f"{runtime.name} is too old for the spec",
            f"the spec declares version {spec_version}, the runtime knows up to {newest}",
            "it loads none of the devices",
            f"update {runtime.kind.name}",
        )
    if runtime.outdated:
        yield Finding(
            level,
            f"{runtime.name} runs with an older configuration",
            f"{runtime.config} or what it imports was changed after it was started",
            "what the files say of CDI does not hold yet",
            f"systemctl restart {runtime.kind.unit}",
        )


def _runtime(
    kind: Kind, known: Version | None, root: Path, process: Process, options: Options
) -> Runtime:
    path = Path(process.config) if process.config else host.default_config(kind, root)
    try:
        found = host.configuration(kind, path, root, known, options)
        off = isinstance(found, Containerd) and found.without_cri is not None
        changed = max((one.stat().st_mtime for one in found.paths if one.exists()), default=0)
        outdated = bool(process.started) and changed > process.started
        return Runtime(kind, known, str(path), found.setting, "", off, outdated)
    except AmdCdiError as error:
        return Runtime(kind, known, str(path), None, str(error))


def _processes(root: Path, kind: Kind) -> list[Process]:
    """Return the processes of a runtime, one for each main file."""
    found: dict[str, Process] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() != kind.program:
                continue
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            process = Process(_told(words), _started(root, folder))
        except (OSError, ValueError, LookupError):
            continue
        found[process.config] = process
    return list(found.values())


def _told(words: list[str]) -> str:
    """Return the main file that a command line names, empty for none."""
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in FLAGS:
            return value if equals else words[number + 1]
    return ""


def _started(root: Path, folder: Path) -> float:
    """Return when a process was started, in seconds since the epoch (proc_pid_stat(5))."""
    ticks = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
    lines = (root / "proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
