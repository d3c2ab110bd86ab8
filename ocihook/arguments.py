"""The hook's command line: what to hold the container to, and how.

Parsed by hand, because argparse costs more to import than all of the hook.
"""

from __future__ import annotations

from ocihook.refusal import Refusal
from ocihook.share import HINT, Share, parse_gpu

POLICIES = ("any", "dmem", "library", "none")
FLAG = "--allow-extra-devices"
VALUED = ("--share", "--require", "--library", "--values", "--deadline", "--sysroot")
USAGE = (
    "run [--share NAME --gpu FIELDS ... [--require any|dmem|library|none] [--library FILE] "
    "[--values FILE] [--allow-extra-devices]] [--deadline SECONDS] [--sysroot DIR]"
)


class Arguments:
    """The command line, read and checked."""

    __slots__ = ("allow_extra_devices", "deadline", "require", "share", "sysroot")

    def __init__(self) -> None:
        self.share: Share | None = None
        """None: look into the container's configuration for a share."""
        self.require = "any"
        """What must hold the container to its memory."""
        self.allow_extra_devices = False
        """Whether the container may have AMD GPUs beyond its share."""
        self.deadline = 5.0
        """Seconds after which the hook refuses by itself."""
        self.sysroot = ""
        """Folder before /proc, /sys, /var and /run; empty for the machine's own."""


def parse(argv: list[str]) -> Arguments:
    """Return the arguments of a command line without the program's name; raises Refusal."""
    if argv[:1] != ["run"]:
        raise Refusal(f"`amd-oci-hook {USAGE}`", repr(argv[:1])[:80], node_hint=HINT)
    values, gpus = _split(argv[1:])
    arguments = Arguments()
    arguments.deadline = _seconds(values.pop("--deadline", "5"))
    arguments.sysroot = values.pop("--sysroot", "").rstrip("/")
    if "--share" in values:
        share = Share(_name(values["--share"]), [parse_gpu(text) for text in gpus])
        share.library = _file(values, "--library")
        share.values = _file(values, "--values")
        arguments.share = share
        arguments.require = _policy(values.get("--require", "any"))
        arguments.allow_extra_devices = FLAG in values
    elif values or gpus:
        raise Refusal("--share NAME beside the other options", "no --share", node_hint=HINT)
    return arguments


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the value of each option, and of ``--gpu``, which may be repeated, each one."""
    values: dict[str, str] = {}
    gpus = []
    rest = iter(words)
    for option in rest:
        if option in values or option not in {"--gpu", FLAG, *VALUED}:
            raise Refusal(f"`amd-oci-hook {USAGE}`", f"{option[:80]!r} there", node_hint=HINT)
        value = "" if option == FLAG else next(rest, None)
        if value is None:
            raise Refusal("a value for each option", f"none for {option}", node_hint=HINT)
        if option == "--gpu":
            gpus.append(value)
        else:
            values[option] = value
    return values, gpus


def _name(text: str) -> str:
    if not text or len(text) > 253 or not text.isprintable():
        raise Refusal("--share with a device name of CDI", repr(text[:80]), node_hint=HINT)
    return text


def _file(values: dict[str, str], option: str) -> str | None:
    path = values.get(option)
    if path is not None and not path.startswith("/"):
        raise Refusal(f"{option} with an absolute path", repr(path[:80]), node_hint=HINT)
    return path


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise Refusal(f"--require {'|'.join(POLICIES)}", repr(text[:80]), node_hint=HINT)
    return text


def _seconds(text: str) -> float:
    number = text.replace(".", "", 1)
    if not (number.isascii() and number.isdecimal() and 0 < float(text) <= 3600):
        raise Refusal("--deadline in seconds, above 0", repr(text[:80]), node_hint=HINT)
    return float(text)
