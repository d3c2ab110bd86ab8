"""Docker's ``daemon.json``.

It has no drop-in files. CDI came with version 25, where ``features.cdi`` turns it on; from 28.2 on
it is on unless that is false.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cdi.errors import PermanentError
from cdi.runtime import jsontext
from cdi.runtime.change import Change, Edited, Values, backup_of, read
from cdi.runtime.document import MISSING, value_at
from cdi.runtime.setting import Setting
from cdi.runtime.version import SPEC_DIRS, Version, shown

FEATURE = ("features", "cdi")
DIRS = ("cdi-spec-dirs",)
SINCE = (25, 0, 0)
ON_BY_DEFAULT = (28, 2, 0)


@dataclass(frozen=True, slots=True)
class Docker:
    """The configuration of a docker daemon."""

    file: Edited
    version: Version | None

    @classmethod
    def read(cls, path: Path, version: Version | None) -> Docker:
        """Read it; raises PermanentError for one that the daemon would not read either."""
        edited = Edited(path, read(path), backup_of(path), jsontext.parse, jsontext.edit)
        for key, kind in ((("features",), dict), (FEATURE, bool), (DIRS, list)):
            value = value_at(jsontext.parse(edited.text or "", str(path)), key)
            if value is not MISSING and not isinstance(value, kind):
                raise PermanentError(
                    f"{path}: expected {'.'.join(key)} to be a {kind.__name__}, found {value!r}",
                    "correct it first",
                )
        return cls(edited, version)

    @property
    def paths(self) -> list[Path]:
        """The files that it is read from."""
        return [self.file.path]

    @property
    def setting(self) -> Setting:
        """What the daemon does with CDI names when it is started with this."""
        document = jsontext.parse(self.file.text or "", str(self.file.path))
        told = value_at(document, FEATURE)
        dirs = value_at(document, DIRS)
        default = self.version is not None and self.version >= ON_BY_DEFAULT
        found = tuple(map(str, SPEC_DIRS if dirs is MISSING else dirs))
        on = (default if told is MISSING else told) and found != ("",)
        where = "its default" if told is MISSING else str(self.file.path)
        return Setting(on and not self._too_old, found, where)

    def changes(self, spec_dir: str) -> list[Change]:
        """Return what lets containers have the devices of the specs in a directory."""
        if self._too_old:
            raise PermanentError(
                f"expected Docker 25 or later, found {shown(self.version)}, which has no CDI",
                "update it, or use podman or nerdctl",
            )
        before = self._unset()
        values: dict[tuple[str, ...], object] = {}
        if not before.on:
            values[FEATURE] = True
        if spec_dir not in before.spec_dirs:
            values[DIRS] = [name for name in (*before.spec_dirs, spec_dir) if name]
        return self._edits(values)

    def removal(self) -> list[Change]:
        """Return what takes away what ``changes`` brought."""
        return self._edits({})

    @property
    def _too_old(self) -> bool:
        return self.version is not None and self.version < SINCE

    def _unset(self) -> Setting:
        """Return the setting without what was written before."""
        text = self.file.text
        for change in self.removal():
            if change.path == self.file.path:
                text = change.after
        return Docker(
            Edited(self.file.path, text, None, self.file.parse, self.file.edit), self.version
        ).setting

    def _edits(self, values: Values) -> list[Change]:
        return self.file.changes(values, (FEATURE, DIRS))
