"""Options that several commands share, and what they come to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cdi.errors import PermanentError
from cdi.files import os_error
from cdi.plan import options
from cdi.state.paths import Paths

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is said before a command or after it: on which node it works, and how it answers."""

    sysroot: Path = Path("/")
    sample: str = ""
    spec_dir: tuple[Path, ...] = ()
    state_dir: Path | None = None
    usage_dir: Path | None = None
    as_json: bool = False

    @property
    def root(self) -> Path:
        """The sysroot that a command reads from; a sample node is laid out when first used."""
        if self.sample and self.sysroot != Path("/"):
            raise typer.BadParameter("give --sample or --sysroot, not both")
        chosen = _sample_root(self.sample) if self.sample else self.sysroot.absolute()
        if not chosen.is_dir():
            raise PermanentError(f"the sysroot {chosen} is not a directory", "check --sysroot")
        return chosen

    @property
    def paths(self) -> Paths:
        """The places that a command writes to."""
        base = self.root
        if len(self.spec_dir) > 1:
            found = ", ".join(map(str, self.spec_dir))
            raise typer.BadParameter(f"one --spec-dir is written to, found {found}")
        with usage():
            return Paths(
                base,
                (self.spec_dir[0] if self.spec_dir else base / "etc/cdi").absolute(),
                (self.state_dir or base / "var/lib/amd-cdi").absolute(),
                (self.usage_dir or base / "run/amd-cdi/usage").absolute(),
            )

    @property
    def spec_dirs(self) -> list[Path]:
        """The directories that runtimes read specs from, the one that wins last."""
        base = self.root
        return list(self.spec_dir) or [base / "etc/cdi", base / "var/run/cdi"]


def keep(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Keep an option of ``Settings``: what is given after the command wins over what is before."""
    source = ctx.get_parameter_source(str(param.name))
    if ctx.parent is None or (source and source.name == "COMMANDLINE"):
        value = tuple(value or ()) if param.name == "spec_dir" else value
        ctx.obj = replace(ctx.obj or Settings(), **{str(param.name): value})
    return value


Sysroot = Annotated[
    Path,
    typer.Option(
        envvar="AMD_CDI_SYSROOT",
        callback=keep,
        help="Read /sys below this directory. The other directories lie below it by default.",
    ),
]
Sample = Annotated[
    str,
    typer.Option(
        envvar="AMD_CDI_SAMPLE",
        callback=keep,
        help="Use a bundled sample node instead of this machine: "
        "mi300x, mi300x-cpx, mi300a, mi210, rx7900xtx, strix-halo or mixed.",
    ),
]
SpecDir = Annotated[
    list[Path] | None,
    typer.Option(
        envvar="AMD_CDI_SPEC_DIR",
        callback=keep,
        help="Directory of CDI specs. Commands that only read take several, and the last wins.",
        show_default="/etc/cdi, and /var/run/cdi where specs are only read",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="AMD_CDI_STATE_DIR",
        callback=keep,
        help="Directory of the ledger and the shares' values.",
        show_default="/var/lib/amd-cdi",
    ),
]
UsageDir = Annotated[
    Path | None,
    typer.Option(
        envvar="AMD_CDI_USAGE_DIR",
        callback=keep,
        help="Directory of the usage regions; used if it is a filesystem of its own.",
        show_default="/run/amd-cdi/usage",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", envvar="AMD_CDI_JSON", callback=keep, help="Print JSON.")
]
HookPath = Annotated[
    str | None,
    typer.Option(
        envvar="AMD_CDI_HOOK_PATH",
        help="The OCI hook on the host, for all shares of this node.",
        show_default="as it is",
    ),
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
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", envvar="AMD_CDI_DRY_RUN", help="Write nothing; say what would be."),
]


@contextmanager
def usage() -> Iterator[None]:
    """Let an error of what was typed, which no machine would take, be one of usage."""
    try:
        yield
    except PermanentError as error:
        raise typer.BadParameter(str(error)) from error


def parsed_by(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an option's value whose errors are errors of usage."""

    def parser(text: str) -> T:
        with usage():
            return parse(text)

    return parser


def _sample_root(name: str) -> Path:
    """Return the sysroot of a sample node, which stays, so that its shares do as well."""
    from cdi.node import sample

    if name not in sample.names():
        raise typer.BadParameter(f"--sample is one of {', '.join(sample.names())}, found {name!r}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = cache / "amd-cdi" / f"sample-{sample.edition()}" / name
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
