"""CRI-O and Podman: a main file, drop-in files beside it, and the last that says something counts.

Neither has a switch for CDI. Versions from before CDI run the hook from a folder of hooks instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi.errors import PermanentError
from cdi.runtime import tomltext
from cdi.runtime.change import OWN, Change, drop_in, read
from cdi.runtime.document import MISSING, value_at
from cdi.runtime.document import Path as Keys
from cdi.runtime.setting import Setting
from cdi.runtime.version import SPEC_DIRS, Version, shown

DROP_IN = "zz-amd-cdi.conf"
"""Sorted behind what others call theirs, as the last file counts."""


@dataclass(frozen=True, slots=True)
class Family:
    """What sets the two apart."""

    program: str
    key: Keys
    """Where the spec directories stand."""
    since: Version
    """The first version with CDI."""
    listed_since: Version
    """The first version that is told its spec directories."""
    default: tuple[str, ...]
    """The spec directories of a version that can be told others, if it is not."""


CRIO = Family("crio", ("crio", "runtime", "cdi_spec_dirs"), (1, 24, 0), (1, 24, 0), SPEC_DIRS)
PODMAN = Family("podman", ("engine", "cdi_spec_dirs"), (4, 0, 0), (5, 1, 0), ("/etc/cdi",))


@dataclass(frozen=True, slots=True)
class Layers:
    """The configuration of CRI-O or Podman, the file that counts least first, without ours."""

    family: Family
    files: tuple[tuple[Path, dict[str, Any]], ...]
    own: Path
    """Our drop-in file."""
    text: str | None
    """What it holds now."""
    hook: Change
    """The hook for every container, which stands in for CDI where there is none."""
    version: Version | None

    @classmethod
    def read(
        cls, family: Family, mains: Sequence[Path], hook: Change, version: Version | None
    ) -> Layers:
        """Read what lies at these main files; our drop-in belongs to the last of them.

        Raises PermanentError for what the runtime would not read either.
        """
        own = _folder(mains[-1]) / DROP_IN
        paths = [one for main in mains for one in (main, *sorted(_folder(main).glob("*.conf")))]
        texts = [(one, read(one)) for one in paths if one != own]
        files = [(one, tomltext.parse(text, str(one))) for one, text in texts if text is not None]
        return cls(family, tuple(files), own, read(own), hook, version)

    @property
    def has_cdi(self) -> bool:
        """Whether the version, if it is known, has CDI."""
        return self.version is None or self.version >= self.family.since

    @property
    def paths(self) -> list[Path]:
        """The files that it is read from."""
        return [*[path for path, _ in self.files], self.own]

    @property
    def setting(self) -> Setting:
        """What the runtime does with CDI names."""
        own = [(self.own, tomltext.parse(self.text, str(self.own)))] if self.text else []
        return self._setting([*self.files, *own])

    def changes(self, spec_dir: str) -> list[Change]:
        """Return what lets containers have the devices of the specs in a directory."""
        if not self.has_cdi:
            return [*drop_in(self.own, self.text, None), *_made([self.hook])]
        before = self._setting(self.files)
        text = None
        if spec_dir not in before.spec_dirs:
            if self.version is not None and self.version < self.family.listed_since:
                raise PermanentError(
                    f"{self.family.program} {shown(self.version)} reads specs from "
                    f"{' and '.join(before.spec_dirs)} alone, and not from {spec_dir}",
                    "let amd-cdi write them there",
                )
            *tables, key = self.family.key
            dirs = json.dumps([*before.spec_dirs, spec_dir])
            text = f"{OWN}[{'.'.join(tables)}]\n{key} = {dirs}\n"
        return drop_in(self.own, self.text, text)

    def removal(self) -> list[Change]:
        """Return what takes away what ``changes`` brought."""
        gone = Change(self.hook.path, self.hook.before, None)
        ours = gone.before == self.hook.after
        return [*drop_in(self.own, self.text, None), *_made([gone] if ours else [])]

    def _setting(self, files: Sequence[tuple[Path, dict[str, Any]]]) -> Setting:
        if self.version is not None and self.version < self.family.listed_since:
            return Setting(self.has_cdi, SPEC_DIRS, "its default")
        dirs, source = self.family.default, "its default"
        for path, document in files:
            told = value_at(document, self.family.key)
            if told is MISSING:
                continue
            if not isinstance(told, list):
                raise PermanentError(
                    f"{path}: expected {'.'.join(self.family.key)} to be a list, found {told!r}",
                    "correct it first",
                )
            # Podman's lists may end with a table that says whether they add to the ones before.
            adds = any(isinstance(one, dict) and one.get("append") for one in told)
            names = tuple(one for one in told if isinstance(one, str))
            dirs, source = ((*dirs, *names) if adds else names), str(path)
        return Setting(self.has_cdi, dirs, source)


def _folder(main: Path) -> Path:
    """Return the folder of the drop-in files of a main file."""
    return main.with_name(f"{main.name}.d")


def _made(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.before != change.after]
