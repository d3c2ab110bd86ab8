"""What ``generate`` decides and every later rendering of the spec keeps to."""

from __future__ import annotations

from dataclasses import dataclass

from cdi.errors import PermanentError

SPEC_FILE = "amd.com-gpu.yaml"
HOOK_PATH = "/usr/local/lib/amd-cdi/amd-oci-hook"
LIBRARY_PATH = "/usr/local/lib/amd-cdi/libamvgpu.so"

STRATEGIES = ("index", "uuid", "pci")
FORMATS = ("yaml", "json")
STAGES = ("prestart", "createRuntime")
POLICIES = ("any", "dmem", "library", "none")
CONFLICTS = ("omit", "fail")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the spec; the ledger keeps those of the last ``generate``."""

    file: str = SPEC_FILE
    """Name of the spec in the spec directory."""
    format: str = "yaml"
    strategies: tuple[str, ...] = ("index", "uuid")
    """What whole GPUs are named by, in this order."""
    split: int = 0
    """Number of equal shares offered of every GPU; 0 for none."""
    on_conflict: str = "omit"
    """What to do with names that another spec in the directory has: leave out, or fail."""
    hook_path: str = HOOK_PATH
    hook_stage: str = "prestart"
    require: str = "any"
    """Which enforcement of memory the hook insists on."""
    library_path: str = LIBRARY_PATH

    def __post_init__(self) -> None:
        for name, legal, expected in (
            ("file", _is_file_name(self.file), "a file name in .yaml or .json"),
            ("format", self.format in FORMATS, f"one of {', '.join(FORMATS)}"),
            (
                "strategies",
                self.strategies and set(self.strategies) <= set(STRATEGIES),
                f"some of {', '.join(STRATEGIES)}",
            ),
            ("split", type(self.split) is int and self.split >= 0, "a number of shares"),
            ("on_conflict", self.on_conflict in CONFLICTS, f"one of {', '.join(CONFLICTS)}"),
            ("hook_path", _is_path(self.hook_path), "an absolute path of printable characters"),
            ("hook_stage", self.hook_stage in STAGES, f"one of {', '.join(STAGES)}"),
            ("require", self.require in POLICIES, f"one of {', '.join(POLICIES)}"),
            (
                "library_path",
                _is_path(self.library_path),
                "an absolute path of printable characters",
            ),
        ):
            if not legal:
                raise PermanentError(
                    f"the option {name} must be {expected}, found {getattr(self, name)!r}"
                )


def _is_file_name(name: object) -> bool:
    """Whether a runtime reads a file of this name: it looks at no other suffixes."""
    return isinstance(name, str) and name.endswith((".yaml", ".json")) and "/" not in name


def _is_path(path: object) -> bool:
    return isinstance(path, str) and path.startswith("/") and path.isprintable()
