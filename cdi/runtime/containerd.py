"""containerd's ``config.toml`` and the files that it imports.

Up to 1.7 CDI is off by default, and a plugin's section in an imported file takes the place of the
whole section of the main file: so the value goes into the section that counts. From 2.0 on CDI is
on by default and sections are merged value by value: so a file of our own says it, where one is
imported. Version 4 of the file, of containerd 2.3, moves what is the server's, and leaves the
section of CRI as version 3 has it.

ctr and nerdctl ask for CDI devices by themselves and read none of this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cdi.errors import PermanentError
from cdi.runtime import tomltext
from cdi.runtime.change import OWN, Change, Edited, Values, backup_of, drop_in, read
from cdi.runtime.document import MISSING, value_at
from cdi.runtime.setting import Setting
from cdi.runtime.version import SPEC_DIRS, Version, shown

SECTIONS = {
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
"""The plugin that injects CDI devices, by version of the file."""

CRI = {"cri", *SECTIONS.values()}
DROP_IN = "zz-amd-cdi.toml"
"""Sorted behind what others call theirs, as the last file counts."""

SINCE = (1, 7, 0)
MERGES = (2, 0, 0)
MAX_FILES = 256


@dataclass(frozen=True, slots=True)
class Containerd:
    """The configuration of a containerd: the main file first, then what is imported."""

    files: tuple[Edited, ...]
    version: Version | None

    @classmethod
    def read(cls, path: Path, version: Version | None) -> Containerd:
        """Read it; raises PermanentError for what containerd would not read either."""
        files: dict[Path, Edited] = {}
        pending = [path]
        while pending and len(files) < MAX_FILES:
            place = pending.pop(0)
            if place in files:
                continue
            edited = Edited(place, read(place), backup_of(place), tomltext.parse, tomltext.edit)
            if edited.text is None and place != path:
                raise PermanentError(
                    f"{path} imports {place}, which is missing", "correct it first"
                )
            files[place] = edited
            for pattern in _imports(edited):
                pending += _matches(place, pattern)
        found = cls(tuple(files.values()), version)
        found._require_versions()
        return found

    @property
    def main(self) -> Edited:
        """The file that imports the others."""
        return self.files[0]

    @property
    def paths(self) -> list[Path]:
        """The files that it is read from."""
        return [file.path for file in self.files]

    @property
    def without_cri(self) -> Path | None:
        """The file that turns CRI off, if one does."""
        for file in self.files:
            off = value_at(_document(file), ("disabled_plugins",))
            if isinstance(off, list) and CRI & set(map(str, off)):
                return file.path
        return None

    @property
    def setting(self) -> Setting:
        """What CRI does with CDI names when containerd is started with this."""
        merged: dict[str, Any] = {}
        source = "its default"
        for file, section in self._sections():
            merged = {**merged, **section} if self._merges else section
            if "enable_cdi" in section or not self._merges:
                source = str(file.path)
        on = merged.get("enable_cdi", self._merges)
        dirs = merged.get("cdi_spec_dirs", SPEC_DIRS)
        if not isinstance(on, bool) or not isinstance(dirs, list | tuple):
            raise PermanentError(
                f"expected enable_cdi to be true or false and cdi_spec_dirs a list in {source}, "
                f"found {on!r} and {dirs!r}",
                "correct it first",
            )
        return Setting(on and not self._too_old, tuple(map(str, dirs)), source)

    def changes(self, spec_dir: str) -> list[Change]:
        """Return what lets pods have the devices of the specs in a directory."""
        if self._too_old:
            raise PermanentError(
                f"expected containerd 1.7 or later, found {shown(self.version)}, which has no CDI",
                "update it",
            )
        self._require_cri()
        cleared = self._without_ours()
        before = cleared.setting
        wanted: dict[str, object] = {}
        if not before.on:
            wanted["enable_cdi"] = True
        if spec_dir not in before.spec_dirs:
            wanted["cdi_spec_dirs"] = [*before.spec_dirs, spec_dir]
        own = self._drop_in_path()
        text = _drop_in(cleared.main_version, wanted) if own and wanted else None
        changes = self._drop_in(text)
        target = None if own or not wanted else cleared._deciding()
        for file in self.files:
            section = SECTIONS[file_version(file, self.main)]
            values: Values = {}
            if file.path == target:
                values = {("plugins", section, key): value for key, value in wanted.items()}
                if cleared.main.text is None:
                    values = {("version",): 2, **values}
            changes += file.changes(values, _keys(section))
        self._require_effect(changes, spec_dir)
        return changes

    def removal(self) -> list[Change]:
        """Return what takes away what ``changes`` brought."""
        changes = self._drop_in(None)
        for file in self.files:
            changes += file.changes({}, _keys(SECTIONS[file_version(file, self.main)]))
        return changes

    @property
    def main_version(self) -> int:
        """The version of the main file's format."""
        return file_version(self.main, self.main)

    @property
    def _too_old(self) -> bool:
        return self.version is not None and self.version < SINCE

    @property
    def _merges(self) -> bool:
        """Whether it is a containerd 2: one of unknown version is if its file says so."""
        return self.main_version > 2 if self.version is None else self.version >= MERGES

    def _sections(self) -> list[tuple[Edited, dict[str, Any]]]:
        """Return what each file says of CRI, if anything, in the order in which it counts."""
        found = []
        for file in self.files:
            document = _document(file)
            newest = file_version(file, self.main)
            section: dict[str, Any] = {}
            for name in dict.fromkeys(SECTIONS[version] for version in range(2, newest + 1)):
                part = value_at(document, ("plugins", name))
                section |= part if isinstance(part, dict) else {}
            if section or value_at(document, ("plugins", SECTIONS[newest])) is not MISSING:
                found.append((file, section))
        return found

    def _deciding(self) -> Path:
        """Return the file whose section counts: the last one that has it, or the main file."""
        sections = self._sections()
        return sections[-1][0].path if sections else self.main.path

    def _drop_in_path(self) -> Path | None:
        """Return where a file of our own is imported from and merged; None if nowhere."""
        if not self._merges:
            return None
        for pattern in _imports(self.main):
            path = self.main.path.parent / pattern
            if fnmatchcase(DROP_IN, path.name):
                return path.with_name(DROP_IN)
        return None

    def _drop_in(self, text: str | None) -> list[Change]:
        path = self._drop_in_path()
        return drop_in(path, read(path), text) if path else []

    def _without_ours(self) -> Containerd:
        return self._after(self.removal())

    def _after(self, changes: Sequence[Change]) -> Containerd:
        """Return the configuration when these changes are made."""
        texts = {change.path: change.after for change in changes}
        files = [
            replace(file, text=texts.get(file.path, file.text))
            for file in self.files
            if file is self.main or texts.get(file.path, file.text) is not None
        ]
        known = {file.path for file in files}
        own = self._drop_in_path()
        if own and own not in known and texts.get(own) is not None:
            files.append(Edited(own, texts[own], None, tomltext.parse, tomltext.edit))
            files[1:] = sorted(files[1:], key=lambda file: file.path)
        return replace(self, files=tuple(files))

    def _require_effect(self, changes: Sequence[Change], spec_dir: str) -> None:
        after = self._after(changes).setting
        if not after.reads(spec_dir):
            raise PermanentError(
                f"{after.source} has the last word and keeps CDI off or {spec_dir} out",
                "change enable_cdi and cdi_spec_dirs there by hand",
            )

    def _require_cri(self) -> None:
        """Raise PermanentError where CRI, which alone needs this, is turned off."""
        if self.without_cri:
            raise PermanentError(
                f"{self.without_cri} has CRI among disabled_plugins, so Kubernetes cannot use this "
                "containerd, and ctr and nerdctl need no configuration for CDI",
                "take it out there if Kubernetes shall use it",
            )

    def _require_versions(self) -> None:
        for file in self.files:
            version = file_version(file, self.main)
            if version not in SECTIONS:
                raise PermanentError(
                    f"expected version {' or '.join(map(str, SECTIONS))} of the configuration in "
                    f"{file.path}, found {version}",
                    "see: containerd config migrate",
                )


def file_version(file: Edited, main: Edited) -> int:
    """Return the version of a file's format; what is not there is new, and can have any."""
    if file.text is None:
        return 2 if file is main else file_version(main, main)
    version = _document(file).get("version", 1)
    return version if isinstance(version, int) else 0


def _document(file: Edited) -> dict[str, Any]:
    return tomltext.parse(file.text or "", str(file.path))


def _imports(file: Edited) -> list[str]:
    found = _document(file).get("imports", [])
    return [str(name) for name in found] if isinstance(found, list) else []


def _matches(file: Path, pattern: str) -> list[Path]:
    """Return the files that an import names, in the order in which containerd reads them."""
    path = Path(os.path.normpath(file.parent / pattern))
    if "*" not in pattern:
        return [path]
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _keys(section: str) -> tuple[tuple[str, ...], ...]:
    return ("version",), ("plugins", section, "enable_cdi"), ("plugins", section, "cdi_spec_dirs")


def _drop_in(version: int, wanted: dict[str, object]) -> str:
    """Return a file of our own; its version must not be above that of the main file."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in wanted.items()]
    return f'{OWN}version = {version}\n\n[plugins."{SECTIONS[version]}"]\n{"".join(lines)}'
