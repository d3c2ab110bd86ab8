"""Reading config.json: what is not as the OCI runtime spec says is refused, never skipped."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from ocihook import bundle, jsontext
from ocihook.bundle import Container
from ocihook.refusal import Refusal
from tests.ocihook_scene import Scene

if TYPE_CHECKING:
    from pathlib import Path


def read(text: str, tmp_path: Path) -> Container:
    (tmp_path / "config.json").write_text(text)
    return bundle.read(str(tmp_path))


MINIMAL = '{"process": {"env": ["A=1"], "args": ["sh"]}, "root": {"path": "rootfs"}}'


def test_last_of_duplicates_wins(tmp_path: Path) -> None:
    # runc 1.1.5 and crun 1.8.1 both start a process with A=3 then.
    found = read(MINIMAL.replace('"A=1"', '"A=1", "B=2", "A=3", "C=x=y", "D"'), tmp_path)
    assert found.environment == {"A": "3", "B": "2", "C": "x=y", "D": ""}


@pytest.mark.parametrize(
    "entry", ["HSA_CU_MASK\\u0000", "HSA_CU_MASK\\u0000x=1", "HSA_CU_MASK=0:0-303\\u0000;"]
)
def test_nul_that_cuts_a_variable(tmp_path: Path, entry: str) -> None:
    # runc 1.1.5 refuses it; crun 1.8.1 starts without the mask, or with the part before the NUL.
    with pytest.raises(Refusal, match=r"process\.env without NUL in"):
        read(MINIMAL.replace('"A=1"', f'"HSA_CU_MASK=0:0-3", "{entry}"'), tmp_path)


@pytest.mark.parametrize("field", ["destination", "source", "options"])
def test_nul_that_cuts_a_path(tmp_path: Path, field: str) -> None:
    scene = Scene(tmp_path)
    value = "/usr\0/x"
    scene.config["mounts"][2][field] = [value] if field == "options" else value
    scene.lay()
    with pytest.raises(Refusal, match="without NUL in"):
        bundle.read(str(scene.bundle))


@pytest.mark.parametrize(("path", "root"), [("rootfs", "{}/rootfs"), ("/var/x", "/var/x")])
def test_root_is_relative_to_the_bundle(tmp_path: Path, path: str, root: str) -> None:
    found = read(MINIMAL.replace("rootfs", path), tmp_path)
    assert found.root == root.format(tmp_path)


def test_absent_parts_are_empty(tmp_path: Path) -> None:
    found = read(MINIMAL, tmp_path)
    assert (found.mounts, found.devices, found.rules, found.cwd) == ([], [], [], "/")


@pytest.mark.parametrize(
    ("path", "destination"),
    [
        ("/usr/local/vgpu/share.conf", "/usr/local/vgpu"),
        ("/usr/local/x", "/usr"),
        ("/usr", "/usr"),
        ("/user", None),
        ("/opt/a/b", "/opt"),  # mounted after /opt/a, so over it
    ],
)
def test_mount_that_shows_a_path(tmp_path: Path, path: str, destination: str | None) -> None:
    scene = Scene(tmp_path)
    scene.config["mounts"] = [
        {"destination": d, "type": "bind", "source": "/s", "options": ["bind"]}
        for d in ("/usr/", "usr/local/vgpu", "/opt/a", "/opt")
    ]
    mount = Container(scene.config, "/b").mount_of(path)
    assert (mount and mount.destination) == destination


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ([], "an array"), ("x", "a string"), (1, "a number"), (1.5, "a number"),
        (True, "a boolean"), (None, "null"),
    ],
)  # fmt: skip
def test_types_are_called_what_json_calls_them(tmp_path: Path, value: object, word: str) -> None:
    with pytest.raises(Refusal, match=f"process as an object in .*, found {word};"):
        Container({"process": value}, "/b")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("process",), None),
        (("process",), []),
        (("process", "env"), "A=1"),
        (("process", "env"), [1]),
        (("process", "args"), {"0": "sh"}),
        (("process", "cwd"), 1),
        (("root",), None),
        (("root", "path"), None),
        (("root", "path"), 5),
        (("mounts",), {}),
        (("mounts",), ["x"]),
        (("mounts",), [{"source": "/x"}]),
        (("mounts",), [{"destination": "/x", "options": "ro"}]),
        (("linux",), []),
        (("linux", "devices"), [{"path": "/dev/x", "type": "c", "major": "1", "minor": 2}]),
        (("linux", "devices"), [{"type": "c", "major": 1, "minor": 2}]),
        (("linux", "resources", "devices"), [{"access": "rwm"}]),
        (("linux", "resources", "devices"), [{"allow": "true"}]),
        (("linux", "resources", "devices"), [{"allow": True, "major": "226"}]),
        (("hooks",), []),
    ],
)
def test_malformed_parts_are_refused(tmp_path: Path, where: tuple[str, ...], value: object) -> None:
    config = Scene(tmp_path).config
    part = config
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    with pytest.raises(Refusal, match=r"config\.json"):
        Container(config, str(tmp_path))


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="No such file"):
        bundle.read(str(tmp_path))


def test_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(Refusal, match="a regular file"):
        bundle.read(str(tmp_path))


def test_size_is_bounded(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(bundle.LIMIT + 1)
    with pytest.raises(Refusal, match="at most 16777216 bytes"):
        bundle.read(str(tmp_path))


@pytest.mark.parametrize(
    "text",
    ["0", "-1.5e3", '"\\u00e9\\/"', "[]", " [1,\n{}] ", '{"a":{"b":[null,true]}}', "1e999", "NaN"],
)
def test_json_is_read_as_the_package_reads_it(text: str) -> None:
    assert repr(jsontext.parse(text.encode(), "x")) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "{'a':1}", "1 2", '"\x01"', "nul", "\ufeff1"]
)
def test_what_the_package_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of the package's errors
        json.loads(text)
    with pytest.raises(Refusal, match="JSON in x"):
        jsontext.parse(text.encode(), "x")


def test_json_without_the_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsontext, "Context", None)
    assert jsontext.parse(b'{"a": [1]}', "x") == {"a": [1]}
