"""What ``generate`` decides and every later rendering of the spec keeps to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cdi.errors import PermanentError

SPEC_FILE = "amd.com-gpu.yaml"
PREFIX = "/opt/amd-cdi"
"""Where ``amd-cdi install`` puts all that is not configuration or state."""

HOOK_FILE = "amd-oci-hook"
LIBRARY_FILE = "libamvgpu.so"
HOOK_PATH = f"{PREFIX}/current/{HOOK_FILE}"
LIBRARY_PATH = f"{PREFIX}/current/{LIBRARY_FILE}"

Format = Literal["yaml", "json"]
Conflict = Literal["omit", "fail"]
Stage = Literal["prestart", "createRuntime"]
Policy = Literal["any", "dmem", "library", "none"]

STRATEGIES = ("index", "uuid", "pci")
"""What a GPU can be named by."""


def strategy(text: str) -> str:
    """Return the device name strategy of this name; raises PermanentError if there is none."""
    if text not in STRATEGIES:
        raise PermanentError(
            f"{text!r} is not one of {', '.join(STRATEGIES)}",
            "give the option once for each",
        )
    return text


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the spec; the ledger keeps those of the last ``generate``."""

    file: str = SPEC_FILE
    """Name of the spec in the spec directory."""
    format: Format = "yaml"
    strategies: tuple[str, ...] = ("index", "uuid")
    """What whole GPUs are named by, in this order."""
    split: int = 0
    """Number of equal shares offered of every GPU; 0 for none."""
    on_conflict: Conflict = "omit"
    """What to do with names that another spec in the directory has: leave out, or fail."""
    hook_path: str = HOOK_PATH
    hook_stage: Stage = "prestart"
    require: Policy = "any"
    """Which enforcement of memory the hook insists on."""
    allow_extra_devices: bool = False
    """Whether containers with a share may have other GPUs as well, as privileged ones do."""
    library_path: str = LIBRARY_PATH

    def __post_init__(self) -> None:
        for name, legal, expected in (
            ("file", _is_file_name(self.file), "a file name in .yaml or .json"),
            ("format", *_choice(self.format, Format)),
            (
                "strategies",
                type(self.strategies) is tuple
                and self.strategies
                and set(self.strategies) <= set(STRATEGIES),
                f"some of {', '.join(STRATEGIES)}",
            ),
            ("split", type(self.split) is int and self.split >= 0, "a number of shares"),
            ("on_conflict", *_choice(self.on_conflict, Conflict)),
            ("hook_path", _is_path(self.hook_path), "an absolute path of printable characters"),
            ("hook_stage", *_choice(self.hook_stage, Stage)),
            ("require", *_choice(self.require, Policy)),
            ("allow_extra_devices", type(self.allow_extra_devices) is bool, "true or false"),
            (
                "library_path",
                _is_path(self.library_path),
                "an absolute path of printable characters",
            ),
        ):
            if not legal:
                raise PermanentError(
                    f"the option {name.replace('_', '-')} must be {expected}, "
                    f"found {getattr(self, name)!r}"
                )


def _is_file_name(name: object) -> bool:
    """Whether a runtime reads a file of this name: it looks at no other suffixes."""
    return (
        isinstance(name, str)
        and name.endswith((".yaml", ".json"))
        and name.isprintable()
        and "/" not in name
    )


def _choice(value: object, choices: object) -> tuple[bool, str]:
    """Whether a value is one of a literal type's, and what that is in words."""
    return value in get_args(choices), f"one of {', '.join(get_args(choices))}"


def _is_path(path: object) -> bool:
    return isinstance(path, str) and path.startswith("/") and path.isprintable()
