"""Options that several commands share, and what they come to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from cdi.errors import PermanentError
from cdi.files import os_error
from cdi.plan import options
from cdi.state.paths import Paths
from cdi.version import __version__

T = TypeVar("T")

Sysroot = Annotated[
    Path,
    typer.Option(
        envvar="AMD_CDI_SYSROOT",
        help="Read /sys below this directory. The other directories lie below it by default.",
    ),
]
Sample = Annotated[
    str,
    typer.Option(
        envvar="AMD_CDI_SAMPLE",
        help="Use a bundled sample node instead of this machine: "
        "mi300x, mi300x-cpx, mi210, rx7900xtx or mixed.",
    ),
]
SpecDir = Annotated[
    Path | None,
    typer.Option(
        envvar="AMD_CDI_SPEC_DIR", help="Directory of CDI specs.", show_default="/etc/cdi"
    ),
]
SpecDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--spec-dir",
        envvar="AMD_CDI_SPEC_DIR",
        help="Directory of CDI specs; can be given more than once, and the last wins.",
        show_default="/etc/cdi and /var/run/cdi",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="AMD_CDI_STATE_DIR",
        help="Directory of the ledger and the shares' values.",
        show_default="/var/lib/amd-cdi",
    ),
]
UsageDir = Annotated[
    Path | None,
    typer.Option(
        envvar="AMD_CDI_USAGE_DIR",
        help="Directory of the usage regions; used if it is a filesystem of its own.",
        show_default="/run/amd-cdi/usage",
    ),
]
HookPath = Annotated[
    str, typer.Option(envvar="AMD_CDI_HOOK_PATH", help="The OCI hook on the host.")
]
HookStage = Annotated[
    options.Stage,
    typer.Option(
        envvar="AMD_CDI_HOOK_STAGE",
        help="When the hook runs; both are before the container's own code.",
    ),
]
Require = Annotated[
    options.Policy,
    typer.Option(
        envvar="AMD_CDI_REQUIRE", help="Enforcement of memory without which no share starts."
    ),
]
NodeHookPath = Annotated[
    str | None,
    typer.Option(
        envvar="AMD_CDI_HOOK_PATH",
        help="The OCI hook on the host, of all shares of this node.",
        show_default="as it is",
    ),
]
NodeHookStage = Annotated[
    options.Stage | None,
    typer.Option(
        envvar="AMD_CDI_HOOK_STAGE",
        help="When the hook of all shares of this node runs.",
        show_default="as it is",
    ),
]
NodeRequire = Annotated[
    options.Policy | None,
    typer.Option(
        envvar="AMD_CDI_REQUIRE",
        help="Enforcement of memory without which no share of this node starts.",
        show_default="as it is",
    ),
]
Json = Annotated[bool, typer.Option("--json", envvar="AMD_CDI_JSON", help="Print JSON.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", envvar="AMD_CDI_DRY_RUN", help="Write nothing; say what would be."),
]


def paths(
    sysroot: Path,
    sample: str,
    spec_dir: Path | None,
    state_dir: Path | None,
    usage_dir: Path | None = None,
) -> Paths:
    """Return the places a command works on; a sample node is laid out when it is first used."""
    base = root(sysroot, sample)
    return Paths(
        base,
        (spec_dir or base / "etc/cdi").absolute(),
        (state_dir or base / "var/lib/amd-cdi").absolute(),
        (usage_dir or base / "run/amd-cdi/usage").absolute(),
    )


def spec_dirs(sysroot: Path, sample: str, given: list[Path] | None) -> list[Path]:
    """Return the directories that runtimes read specs from, the one that wins last."""
    base = root(sysroot, sample)
    return given or [base / "etc/cdi", base / "var/run/cdi"]


def parsed_by(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an option's value whose errors are errors of usage."""

    def parser(text: str) -> T:
        try:
            return parse(text)
        except PermanentError as error:
            raise typer.BadParameter(str(error)) from error

    return parser


def root(sysroot: Path, sample: str) -> Path:
    """Return the sysroot that a command reads from."""
    if sample and sysroot != Path("/"):
        raise typer.BadParameter("give --sample or --sysroot, not both")
    chosen = _sample_root(sample) if sample else sysroot.absolute()
    if not chosen.is_dir():
        raise PermanentError(f"the sysroot {chosen} is not a directory", "check --sysroot")
    return chosen


def _sample_root(name: str) -> Path:
    """Return the sysroot of a sample node, which stays, so that its shares do as well."""
    from cdi.node import sample

    if name not in sample.names():
        raise typer.BadParameter(f"--sample is one of {', '.join(sample.names())}, found {name!r}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = cache / "amd-cdi" / f"sample-{__version__}" / name
    if root.is_dir():
        return root
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        # Laid out elsewhere first, so that nobody ever reads half a node.
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=".new-") as new:
            sample.expand(name, Path(new) / name)
            with suppress(FileExistsError, OSError):
                (Path(new) / name).rename(root)
    except OSError as error:
        raise os_error("lay out the sample node in", root, error) from error
    return root
