"""Where on a node an installation is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cdi.install.release import CURRENT, Prefix
from cdi.install.units import Units
from cdi.plan.options import HOOK_FILE, LIBRARY_FILE, PREFIX
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths

UNITS = PurePosixPath("/etc/systemd/system")
LOGS = PurePosixPath("/var/log/amd-cdi")
HOOKS = PurePosixPath("/usr/share/containers/oci/hooks.d/amd-cdi.json")
OTHER_SPECS = PurePosixPath("/var/run/cdi")


@dataclass(frozen=True, slots=True)
class Places:
    """Where on a node an installation is: ``prefix`` as the node calls it, paths as we do."""

    paths: Paths
    prefix: PurePosixPath

    @property
    def live(self) -> bool:
        """Whether it is this very machine, and not the tree of another."""
        return self.paths.sysroot == Path("/")

    @property
    def releases(self) -> Prefix:
        """The versions below the prefix."""
        return Prefix(self.here(self.prefix))

    @property
    def hook(self) -> str:
        """What specs call the hook."""
        return str(self.prefix / CURRENT / HOOK_FILE)

    @property
    def library(self) -> str:
        """What specs call the library."""
        return str(self.prefix / CURRENT / LIBRARY_FILE)

    @property
    def units(self) -> Path:
        """Where an administrator's units are."""
        return self.here(UNITS)

    @property
    def logs(self) -> Path:
        """Where the hook writes its log."""
        return self.here(LOGS)

    @property
    def hooks(self) -> Path:
        """Where runtimes are told of the hook that look for no CDI."""
        return self.here(HOOKS)

    @property
    def spec_dirs(self) -> tuple[Path, ...]:
        """Where specs may name a version."""
        return self.paths.spec_dir, self.here(OTHER_SPECS), self.hooks.parent

    def systemd(self, command: str) -> Units:
        """Return the units of this node, which run this command."""
        usage = self.paths.usage_dir
        below = usage.is_relative_to(self.paths.sysroot)
        relative = usage.relative_to(self.paths.sysroot) if below else usage
        return Units(command, PurePosixPath("/", relative))

    def here(self, path: PurePosixPath) -> Path:
        """Return where a path of the node lies."""
        return self.paths.sysroot / path.relative_to("/")


def prefix_of(ledger: Ledger) -> PurePosixPath:
    """Return where the installation is whose hook the shares have, or else the usual place."""
    hook = PurePosixPath(ledger.options.hook_path)
    laid = hook.name == HOOK_FILE and hook.parent.name == CURRENT
    return hook.parent.parent if laid else PurePosixPath(PREFIX)
