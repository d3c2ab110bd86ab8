"""The places of a node that a command works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cdi.errors import PermanentError
from cdi.spec import renderer
from cdi.state import usage


@dataclass(frozen=True, slots=True)
class Paths:
    """The places of a node that a command works on."""

    sysroot: Path
    spec_dir: Path
    state_dir: Path
    usage_dir: Path

    def __post_init__(self) -> None:
        for path in (self.state_dir, self.usage_dir):
            # Containers mount files from there, and YAML readers change what is not printable.
            if not str(path).isprintable():
                raise PermanentError(
                    f"a path of printable characters was expected, found {str(path)!r}",
                    "choose another directory",
                )
        try:
            same = self.state_dir.samefile(self.spec_dir)
        except OSError:
            same = self.state_dir.resolve() == self.spec_dir.resolve()
        if same:
            raise PermanentError(
                f"{self.spec_dir} is both the state and the spec directory, where runtimes would "
                "read the ledger as a spec",
                "give another --state-dir",
            )

    @property
    def values_dir(self) -> Path:
        """Where the values files of shares lie."""
        return self.state_dir / "shares"

    @property
    def host_paths(self) -> renderer.HostPaths:
        """The places that containers mount, as the host calls them: the sysroot is its root."""
        usage_dir = usage.bounded(self.usage_dir)
        return renderer.HostPaths(
            self._on_host(self.values_dir), self._on_host(usage_dir) if usage_dir else None
        )

    def _on_host(self, path: Path) -> Path:
        return Path("/") / (
            path.relative_to(self.sysroot) if path.is_relative_to(self.sysroot) else path
        )
