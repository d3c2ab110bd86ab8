"""What the container will start with: ``config.json`` of its bundle (OCI runtime spec)."""

from __future__ import annotations

import os.path

from ocihook import jsontext
from ocihook.files import read_file
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

LIMIT = 16 * 1024 * 1024
HINT = "the container runtime writes it: look at the runtime's own log"

BINDS = {"bind", "rbind"}


class Mount:
    """One entry of ``mounts``."""

    __slots__ = ("destination", "kind", "options", "source")

    def __init__(self, destination: str, kind: str, source: str, options: list[str]) -> None:
        self.destination = destination
        """Absolute normal path in the container."""
        self.kind = kind
        """``bind`` for bind mounts of either form, otherwise the type of the filesystem."""
        self.source = source
        """Absolute path on the host for a bind mount."""
        self.options = options


class Device:
    """One entry of ``linux.devices``."""

    __slots__ = ("kind", "major", "minor", "path")

    def __init__(self, path: str, kind: str, major: int, minor: int) -> None:
        self.path = path
        self.kind = kind
        self.major = major
        self.minor = minor


class Rule:
    """One entry of ``linux.resources.devices``; None stands for any number."""

    __slots__ = ("access", "allow", "kind", "major", "minor")

    def __init__(
        self, *, allow: bool, kind: str, major: int | None, minor: int | None, access: str
    ) -> None:
        self.allow = allow
        self.kind = kind
        self.major = major
        self.minor = minor
        self.access = access


class Container:
    """The parts of a container's configuration that decide whether it can be held to a share."""

    __slots__ = (
        "arguments",
        "capabilities",
        "cwd",
        "devices",
        "environment",
        "hooks",
        "mounts",
        "root",
        "rules",
        "where",
    )

    def __init__(self, config: object, bundle: str) -> None:
        """Read the parsed ``config.json`` of the bundle; raises Refusal where it is malformed."""
        self.where = f"{bundle}/config.json"
        top = self._value(config, dict, "the top level")
        process = self._value(top.get("process"), dict, "process")
        root = self._value(top.get("root"), dict, "root")
        linux = self._part(top, "linux")
        resources = self._part(linux, "resources")
        capabilities = self._part(process, "capabilities")
        self.environment = self._environment(process.get("env"))
        """The environment as it will be: of a name that is given twice, the last."""
        self.arguments = self._texts(process.get("args"), "process.args")
        self.cwd = self._value(process.get("cwd") or "/", str, "process.cwd")
        self.root = os.path.join(bundle, self._value(root.get("path"), str, "root.path"))
        """Root filesystem, as a path on the host."""
        self.capabilities = set(self._texts(capabilities.get("bounding"), "bounding"))
        """Capabilities that a process of the container can have at most."""
        self.mounts = [self._mount(entry, bundle) for entry in self._list(top.get("mounts"))]
        self.devices = [self._device(entry) for entry in self._list(linux.get("devices"))]
        self.rules = [self._rule(entry) for entry in self._list(resources.get("devices"))]
        self.hooks = self._part(top, "hooks")

    def mount_of(self, path: str) -> Mount | None:
        """Return the mount that a container path lies on; None for the root filesystem."""
        found = None
        for mount in self.mounts:
            if path == mount.destination or path.startswith(mount.destination.rstrip("/") + "/"):
                found = mount
        return found

    def _environment(self, entries: object) -> dict[str, str]:
        pairs = {}
        for entry in self._texts(entries, "process.env"):
            name, _, value = entry.partition("=")
            pairs[name] = value
        return pairs

    def _mount(self, entry: object, bundle: str) -> Mount:
        fields = self._value(entry, dict, "mounts")
        options = self._texts(fields.get("options"), "mounts.options")
        kind = self._value(fields.get("type") or "", str, "mounts.type")
        source = self._value(fields.get("source") or "", str, "mounts.source")
        destination = self._value(fields.get("destination"), str, "mounts.destination")
        if kind in BINDS or BINDS & set(options):
            kind = "bind"
            source = os.path.join(bundle, source)
        return Mount(_absolute(destination), kind, source, options)

    def _device(self, entry: object) -> Device:
        fields = self._value(entry, dict, "linux.devices")
        return Device(
            self._value(fields.get("path"), str, "linux.devices.path"),
            self._value(fields.get("type"), str, "linux.devices.type"),
            self._value(fields.get("major") or 0, int, "linux.devices.major"),
            self._value(fields.get("minor") or 0, int, "linux.devices.minor"),
        )

    def _rule(self, entry: object) -> Rule:
        fields = self._value(entry, dict, "linux.resources.devices")
        return Rule(
            allow=self._value(fields.get("allow"), bool, "linux.resources.devices.allow"),
            kind=self._value(fields.get("type") or "a", str, "linux.resources.devices.type"),
            major=self._wildcard(fields.get("major")),
            minor=self._wildcard(fields.get("minor")),
            access=self._value(fields.get("access") or "rwm", str, "devices.access"),
        )

    def _wildcard(self, value: object) -> int | None:
        number = self._value(-1 if value is None else value, int, "linux.resources.devices")
        return None if number < 0 else number

    def _list(self, value: object) -> list[object]:
        return self._value([] if value is None else value, list, "a list of the configuration")

    def _texts(self, value: object, what: str) -> list[str]:
        return [self._value(entry, str, what) for entry in self._list(value)]

    def _part(self, parent: dict[str, object], name: str) -> dict[str, object]:
        value = parent.get(name)
        return self._value({} if value is None else value, dict, name)

    def _value(self, value: object, kind: type[T], what: str) -> T:
        if isinstance(value, str) and "\0" in value:
            # crun cuts there: of two variables, `HSA_CU_MASK\0` would take the mask away.
            raise Refusal(f"{what} without NUL in {self.where}", repr(value[:80]), node_hint=HINT)
        # A bool is an int to Python, and no number to JSON.
        if isinstance(value, kind) and (kind is not int or not isinstance(value, bool)):
            return value
        wanted, found = jsontext.WORDS[kind], jsontext.kind_of(value)
        raise Refusal(f"{what} as {wanted} in {self.where}", found, node_hint=HINT)


def read(bundle: str) -> Container:
    """Return the container that the bundle's ``config.json`` describes; raises Refusal."""
    path = f"{bundle}/config.json"
    try:
        data = read_file(path, LIMIT)
    except OSError as error:
        raise Refusal(f"to read {path}", error.strerror or str(error), node_hint=HINT) from error
    return Container(jsontext.parse(data, path), bundle)


def _absolute(path: str) -> str:
    """Return a container path in normal form; a relative one is relative to ``/``."""
    return "/" + os.path.normpath("/" + path).lstrip("/")
