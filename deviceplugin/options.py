"""The command line of ``amd-device-plugin``; each option can be given by environment as well."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from cdi.plan import options as spec_options
from cdi.version import __version__
from deviceplugin import log
from deviceplugin.devices import Naming
from deviceplugin.preferred import Policy
from deviceplugin.runtime import SOCKETS

KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
PULSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line comes to."""

    split_count: int | None
    allocator_policy: Policy
    resource_naming_strategy: Naming
    device_memory_scaling: float
    pulse: float
    node_name: str
    kubelet_dir: Path
    runtime_sockets: tuple[Path, ...]
    sysroot: Path
    spec_dir: Path
    state_dir: Path
    usage_dir: Path
    settings: dict[str, str]
    """Options of the spec that were given."""
    log_format: log.Format
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Return the options; exits with status 2 and a reason if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="amd-device-plugin",
        description="Serves AMD GPUs and shares of them to kubelet.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    of_environment: list[str] = []
    for name, (text, settings) in OPTIONS.items():
        variable = VARIABLES.get(name) or f"AMD_CDI_{name.replace('-', '_').upper()}"
        word = None if "choices" in settings else name.rpartition("-")[2].upper()
        parser.add_argument(
            f"--{name}", help=f"{text} [{variable}]", metavar=word, default=None, **settings
        )
        # The spellings that HAMi's plugin takes.
        underscored = name.replace("-", "_")
        others = {f"-{name}", f"-{underscored}", f"--{underscored}"} - {f"--{name}"}
        parser.add_argument(
            *sorted(others), dest=underscored, help=argparse.SUPPRESS, default=None, **settings
        )
        if environment.get(variable):
            of_environment += [f"--{name}", environment[variable]]
    given = vars(parser.parse_args([*of_environment, *arguments]))
    sysroot = (given["sysroot"] or Path("/")).absolute()
    kept = ("hook_path", "library_path", "require")
    return Options(
        split_count=given["split_count"],
        allocator_policy=given["allocator_policy"] or "besteffort",
        resource_naming_strategy=given["resource_naming_strategy"] or "single",
        device_memory_scaling=given["device_memory_scaling"] or 1.0,
        pulse=PULSE_SECONDS if given["pulse"] is None else given["pulse"],
        node_name=given["node_name"] or socket.gethostname().lower(),
        kubelet_dir=(given["kubelet_dir"] or KUBELET_DIR).absolute(),
        runtime_sockets=(given["runtime_socket"],) if given["runtime_socket"] else SOCKETS,
        sysroot=sysroot,
        spec_dir=(given["spec_dir"] or sysroot / "etc/cdi").absolute(),
        state_dir=(given["state_dir"] or sysroot / "var/lib/amd-cdi").absolute(),
        usage_dir=(given["usage_dir"] or sysroot / "run/amd-cdi/usage").absolute(),
        settings={name: given[name] for name in kept if given[name] is not None},
        log_format=given["log_format"] or "text",
        log_level=given["log_level"] or "info",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= 1000):
        raise argparse.ArgumentTypeError(f"a number from 1 to 1000 was expected, found {text!r}")
    return int(text)


def _scale(text: str) -> float:
    return _number(text, 1.0, 1000.0)


def _seconds(text: str) -> float:
    return _number(text, 0.0, 3600.0)


def _number(text: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(
            f"a number from {least:g} to {most:g} was expected, found {text!r}"
        )
    return number


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "split-count": (
        "Pods that may share a GPU or partition; by default 10 a GPU, 2 one of gfx12, and 1 a "
        "partition.",
        {"type": _count},
    ),
    "allocator-policy": (
        "Which devices kubelet should prefer: close and full ones (besteffort, the default, or "
        "binpack), or free ones (spread).",
        {"choices": get_args(Policy)},
    ),
    "resource-naming-strategy": (
        "Count all as amd.com/gpu (single, the default), or partitions by their modes, such as "
        "amd.com/cpx_nps4 (mixed).",
        {"choices": get_args(Naming)},
    ),
    "device-memory-scaling": (
        "Offer this many times the VRAM; above 1, HIP may spill into system memory.",
        {"type": _scale},
    ),
    "pulse": (
        f"Seconds from one look at the GPUs to the next; by default {PULSE_SECONDS:g}, and 0 to "
        "look no more.",
        {"type": _seconds},
    ),
    "node-name": ("Name of this node in the cluster; by default the host's name.", {}),
    "kubelet-dir": (f"Kubelet's directory of plugins; by default {KUBELET_DIR}.", {"type": Path}),
    "runtime-socket": (
        "Socket of containerd, which is asked whether CDI is on; by default the first that is "
        f"there of {', '.join(map(str, SOCKETS))}.",
        {"type": Path},
    ),
    "spec-dir": ("Directory of CDI specs; by default /etc/cdi.", {"type": Path}),
    "state-dir": (
        "Directory of the ledger and the shares' values; by default /var/lib/amd-cdi.",
        {"type": Path},
    ),
    "usage-dir": (
        "Directory of the usage regions; by default /run/amd-cdi/usage.",
        {"type": Path},
    ),
    "sysroot": (
        "Read /sys and /dev below this directory; other directories lie below it by default.",
        {"type": Path},
    ),
    "hook-path": ("The OCI hook on the host.", {}),
    "library-path": ("libamvgpu.so on the host.", {}),
    "require": (
        "Enforcement of memory without which no share starts.",
        {"choices": get_args(spec_options.Policy)},
    ),
    "log-format": ("Lines for people, or JSON.", {"choices": get_args(log.Format)}),
    "log-level": ("What is not less important is logged.", {"choices": log.LEVELS}),
}
"""What each option means, and how argparse reads it."""

VARIABLES = {"node-name": "NODE_NAME"}
"""Variables that are not called by the option's name."""
