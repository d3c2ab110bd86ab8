"""The CDI specs of a directory, as a runtime reads them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cdi.errors import AmdCdiError, PermanentError
from cdi.files import names_in, os_error, read_bounded
from cdi.plan import names
from cdi.spec.edits import ContainerEdits, Device, Spec, merge

MAX_BYTES = 32 << 20
"""Far above a spec of 5,000 shares (about 7 MiB); parsing more would take minutes."""

MAX_NODES = 1 << 20
"""Of a document with aliases, written out; a few lines of them can stand for billions."""

TAG = "tag:yaml.org,2002:"

BOOLEANS = {
    spelling: truth
    for truth, words in (("true", "y yes on true"), ("false", "n no off false"))
    for word in words.split()
    for spelling in (word, word.capitalize(), word.upper())
}
"""What runtimes take for one, and the spelling they give it."""

INTEGER = r"[-+]?(0|0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|[1-9][0-9]*)"
OCTAL = r"^([-+]?0)(?=[0-7])"
FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"


@dataclass(frozen=True, slots=True)
class Entry:
    """A spec and the file it stands in."""

    path: Path
    spec: Spec

    @property
    def devices(self) -> dict[str, Device]:
        """The devices by qualified name, ``<kind>=<name>``."""
        return {f"{self.spec['kind']}={dev['name']}": dev for dev in self.spec["devices"]}


def files_in(directory: Path) -> frozenset[str]:
    """Return the names of all that lies in a spec directory; none if it is missing."""
    try:
        return frozenset(names_in(directory))
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise os_error("read the spec directory", directory, error) from error


def paths_in(directory: Path, files: Iterable[str] | None = None) -> list[Path]:
    """Return the files that a runtime reads as specs, of these names or of all, in their order.

    Runtimes do not look into directories, whatever these are called.
    """
    found = files_in(directory) if files is None else files
    paths = [directory / name for name in sorted(found) if name.endswith((".yaml", ".json"))]
    return [path for path in paths if path.is_symlink() or not path.is_dir()]


def parse(path: Path) -> Any:
    """Return the document of a file, which may be YAML or JSON whatever it is called.

    Raises PermanentError for what is neither, and for duplicate keys, which runtimes refuse.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise os_error("read", path, error) from error
    try:
        return _parse(data)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PermanentError(
            f"{path} is neither YAML nor JSON: {reason[:300]}",
            "correct it, or move it away",
        ) from error


def load(path: Path) -> Entry:
    """Return the spec of a file; raises PermanentError if it has not the shape of one."""
    document = parse(path)
    if not (
        isinstance(document, dict)
        and isinstance(document.get("kind"), str)
        and isinstance(document.get("devices"), list)
        and all(
            isinstance(device, dict)
            and isinstance(device.get("name"), str)
            and isinstance(device.get("containerEdits"), dict)
            for device in document["devices"]
        )
    ):
        raise PermanentError(
            f"{path} is no CDI spec: a mapping with kind, devices, and a name and containerEdits "
            "in each was expected",
            f"see: amd-cdi validate {path}",
        )
    return Entry(path, cast("Spec", document))


def load_present(paths: Iterable[Path]) -> list[Entry]:
    """Return the specs of files, but of those that are gone since they were listed.

    Raises PermanentError if another one cannot be read.
    """
    entries = []
    for path in paths:
        try:
            entries.append(load(path))
        except PermanentError:
            # A link that leads nowhere is there.
            if os.path.lexists(path):
                raise
    return entries


def load_node(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the spec of a node's GPUs and those of pods' shares beside it.

    And why some of them cannot be read, none of which is that there is none.
    """
    found = [name for name in files_in(path.parent) if names.is_pod_spec(path.name, name)]
    pods = paths_in(path.parent, found)
    return _load([path, *pods] if path.exists() else pods)


def load_all(directories: Iterable[Path]) -> tuple[list[Entry], list[str]]:
    """Return the specs of directories, the ones that win last, and why others cannot be read.

    Runtimes skip those.
    """
    entries, skipped = _load([path for directory in directories for path in paths_in(directory)])
    return entries, [f"runtimes skip a spec: {error}" for error in skipped]


def _load(paths: Iterable[Path]) -> tuple[list[Entry], list[str]]:
    entries = []
    errors = []
    for path in paths:
        try:
            entries.append(load(path))
        except AmdCdiError as error:
            errors.append(str(error))
    return entries, errors


def rivals(entries: Sequence[Entry]) -> dict[Path, list[str]]:
    """Return, by file, a line for each other file of its directory that has devices of its names.

    Runtimes use neither of two devices of one name.
    """
    holders: dict[tuple[Path, str], list[Path]] = {}
    for entry in entries:
        for name in entry.devices:
            holders.setdefault((entry.path.parent, name), []).append(entry.path)
    found: dict[Path, list[str]] = {}
    for entry in entries:
        common: dict[Path, list[str]] = {}
        for name in entry.devices:
            for other in holders[entry.path.parent, name]:
                if other != entry.path:
                    common.setdefault(other, []).append(name)
        if common:
            found[entry.path] = [
                f"{other} has the devices {', '.join(names)} as well, and runtimes use neither"
                for other, names in common.items()
            ]
    return found


def find(entries: Sequence[Entry], qualified: str) -> tuple[Entry, Device]:
    """Return the device of a qualified name.

    Raises PermanentError if there is none, or if two files of one directory have it: runtimes
    drop both.
    """
    holders = [entry for entry in entries if qualified in entry.devices]
    if not holders:
        raise PermanentError(f"no CDI device {qualified!r}", "see: amd-cdi list")
    rivals = [entry for entry in holders if entry.path.parent == holders[-1].path.parent]
    if len(rivals) > 1:
        raise PermanentError(
            f"{qualified!r} stands in {' and '.join(str(entry.path) for entry in rivals)}, so "
            "runtimes use neither",
            "remove one of the two",
        )
    return holders[-1], holders[-1].devices[qualified]


def edits_for(entries: Sequence[Entry], qualified: Sequence[str]) -> ContainerEdits:
    """Return what a container gets that asks for these devices.

    The edits of a spec come once, before those of its devices.
    """
    parts: list[ContainerEdits] = []
    seen: list[Path] = []
    for name in qualified:
        entry, device = find(entries, name)
        if entry.path not in seen:
            seen.append(entry.path)
            parts.append(entry.spec.get("containerEdits", {}))
        parts.append(device["containerEdits"])
    return merge(parts)


def _parse(data: bytes) -> Any:
    """Parse bytes; every error becomes a ValueError or RecursionError."""
    if data.lstrip()[:1] == b"{":
        try:
            document = json.loads(data, object_pairs_hook=_unique)
        except json.JSONDecodeError:
            pass  # YAML's flow style starts the same way.
        else:
            if b"\\u" in data:
                # Raises ValueError for half a character, which is none to YAML either.
                json.dumps(document, ensure_ascii=False).encode()
            return document
    return _parse_yaml(data)


def _parse_yaml(data: bytes) -> Any:
    # Imported here, as it costs more than all else a command does that never meets a YAML file.
    import yaml

    class Loader(yaml.CSafeLoader):
        """libyaml's safe loader, which takes the last of duplicate keys if it is not told."""

        def construct_mapping(
            self,
            node: yaml.MappingNode,
            deep: bool = False,  # noqa: FBT001, FBT002 -- PyYAML's signature
        ) -> dict[Hashable, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            _no_duplicates(keys)
            self.flatten_mapping(node)
            node.value = [
                (key, name(part) if key.value == "name" else part) for key, part in node.value
            ]
            return super().construct_mapping(node, deep)

    def name(node: yaml.Node) -> yaml.Node:
        """Return a name as a string, also where people leave out the quotes."""
        if not isinstance(node, yaml.ScalarNode) or node.tag == f"{TAG}null":
            return node
        if node.tag == f"{TAG}str" and node.style:
            return node
        return yaml.ScalarNode(f"{TAG}str", unquoted(node.value), node.start_mark, node.end_mark)

    loader = Loader(data)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if b"&" in data and _size(node, {}) > MAX_NODES:
            raise ValueError(f"its aliases stand for more than {MAX_NODES} values")
        return loader.construct_document(node)
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        # PyYAML's constructors raise the latter three for a value that is not of its tag's type.
        raise ValueError(str(error)) from error
    finally:
        loader.dispose()


def unquoted(text: str) -> str:
    """Return the string that runtimes make of one without quotes, which is not null.

    Their reader takes it by its own rules for a number or a boolean, and those have one spelling.
    PyYAML has other rules: it takes 1:3 for 63 and 0000:05:00.0 for 300.
    """
    if text in BOOLEANS:
        return BOOLEANS[text]
    number = text if text.startswith(".") else text.replace("_", "")
    if re.fullmatch(INTEGER, number):
        return str(int(re.sub(OCTAL, r"\1o", number), 0))
    if re.fullmatch(FLOAT, number) and math.isfinite(float(number)):
        return f"{float(number):g}"
    return text


def _size(node: Any, sizes: dict[int, int]) -> int:
    """Return how many values a YAML node stands for, what its aliases name counted each time.

    Raises ValueError for a node that contains itself.
    """
    known = sizes.get(id(node))
    if known == 0:
        raise ValueError("an alias names what it is a part of")
    if known is None:
        sizes[id(node)] = 0
        parts = node.value if isinstance(node.value, list) else ()
        known = 1 + sum(
            sum(_size(each, sizes) for each in part)
            if isinstance(part, tuple)
            else _size(part, sizes)
            for part in parts
        )
        sizes[id(node)] = known
    return known


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _no_duplicates([key for key, _ in pairs])
    return dict(pairs)


def _no_duplicates(keys: list[str]) -> None:
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
