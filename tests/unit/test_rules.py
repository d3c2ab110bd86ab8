"""Rules that the reference implementation enforces, each broken once."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from cdi.spec import validation
from tests.captures import shared

GOOD: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "amd.com/gpu",
    "containerEdits": {"deviceNodes": [{"path": "/dev/kfd", "permissions": "rw"}]},
    "devices": [
        {
            "name": "0",
            "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [{"path": "/dev/dri/renderD128", "type": "c", "permissions": "rw"}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}],
                "hooks": [{"hookName": "prestart", "path": "/bin/true", "timeout": 1}],
            },
        }
    ],
}


def found(path: str, value: object) -> list[str]:
    """Return the findings after setting a value; an undefined value removes the key."""
    spec = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place: Any = spec
    for parent in parents:
        place = place[int(parent)] if parent.isdigit() else place.setdefault(parent, {})
    if value is ...:
        del place[last]
    elif last == "+":
        place.append(value)
    else:
        place[int(last) if last.isdigit() else last] = value
    return list(validation.findings(spec))


def test_a_good_spec_has_no_findings() -> None:
    assert list(validation.findings(GOOD)) == []


EDITS = "devices.0.containerEdits"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("cdiVersion", "0.2.0", ["cdiVersion", "0.2.0"]),
        ("cdiVersion", "1.2.0", ["cdiVersion", "1.2.0"]),
        ("cdiVersion", "vv0.5.0", ["cdiVersion"]),
        ("cdiVersion", "0.4.0", ["cdiVersion", "0.5.0", "digit"]),
        ("cdiVersion", ..., ["cdiVersion"]),
        ("kind", "amd.com", ["kind", "<vendor>/<class>"]),
        ("kind", "1amd.com/gpu", ["vendor", "1amd.com"]),
        ("kind", "amd.com-/gpu", ["vendor", "end"]),
        ("kind", "amd!com/gpu", ["vendor"]),
        ("kind", "amd.com/", ["class"]),
        ("kind", "amd.com/gpu/x", ["class"]),
        ("kind", "amd.com/9gpu", ["class"]),
        ("kind", "amd.com/g.pu", ["0.6.0", "dot"]),
        ("kind", 1, ["kind"]),
        ("devices", [], ["devices", "at least one"]),
        ("devices", {}, ["devices"]),
        ("devices.0.name", "", ["name", "empty"]),
        ("devices.0.name", "-a", ["'-a'", "start"]),
        ("devices.0.name", "a:", ["'a:'", "end"]),
        ("devices.0.name", "a/b", ["'a/b'"]),
        ("devices.0.name", "aäb", ["aäb"]),
        ("devices.+", GOOD["devices"][0], ["'0'", "two devices"]),
        ("devices.0.containerEdits", {}, ["'0'", "empty"]),
        ("devices.0.containerEdits", {"env": []}, ["'0'", "empty"]),
        ("devices.0.containerEdits", ..., ["'0'", "containerEdits"]),
        ("devices.0.extra", 1, ["'0'", "extra"]),
        ("extra", 1, ["extra"]),
        ("annotations", {"a": "b"}, ["0.6.0", "annotations"]),
        ("devices.0.annotations", {"a b": "c"}, ["'a b'"]),
        (f"{EDITS}.env.0", "A", ["'0'", "env", "'A'", "NAME=value"]),
        (f"{EDITS}.env.0", "=1", ["'=1'"]),
        (f"{EDITS}.env.0", 1, ["env"]),
        (f"{EDITS}.deviceNodes.0.path", "", ["deviceNodes", "path"]),
        (f"{EDITS}.deviceNodes.0.path", ..., ["deviceNodes", "path"]),
        (f"{EDITS}.deviceNodes.0.type", "x", ["type", "'x'"]),
        (f"{EDITS}.deviceNodes.0.permissions", "rx", ["permissions", "'rx'"]),
        (f"{EDITS}.deviceNodes.0.major", "1", ["major"]),
        (f"{EDITS}.deviceNodes.0.uid", -1, ["uid"]),
        (f"{EDITS}.mounts.0.hostPath", "", ["mounts", "hostPath"]),
        (f"{EDITS}.mounts.0.containerPath", "", ["mounts", "containerPath"]),
        (f"{EDITS}.mounts.0.type", "bind", []),
        (f"{EDITS}.mounts.0.mode", "ro", ["mode"]),
        (f"{EDITS}.hooks.0.hookName", "preStart", ["hookName", "'preStart'"]),
        (f"{EDITS}.hooks.0.path", "", ["hooks", "path"]),
        (f"{EDITS}.hooks.0.timeout", 0, ["timeout", "kills"]),
        (f"{EDITS}.hooks.0.timeout", -1, ["timeout", "kills"]),
        (f"{EDITS}.hooks.0.timeout", "1", ["timeout"]),
        (f"{EDITS}.hooks.0.env", ["A"], ["hooks", "'A'"]),
        (f"{EDITS}.additionalGids", [1], ["0.7.0", "additionalGids"]),
        (f"{EDITS}.intelRdt", {"closID": "a/b"}, ["0.7.0"]),
        (f"{EDITS}.netDevices", [{"hostInterfaceName": "e", "name": "f"}], ["1.1.0"]),
    ],
)
def test_a_broken_rule_is_named_with_its_place(path: str, value: object, words: list[str]) -> None:
    findings = found(path, value)
    if not words:
        assert findings == []
        return
    assert any(all(word in finding for word in words) for finding in findings), findings


@pytest.mark.parametrize("place", ["annotations", "devices.0.annotations"])
def test_annotations_are_bounded_together(place: str) -> None:
    # 256 KiB of keys and values, in bytes: two for an umlaut.
    assert not any("more than" in finding for finding in found(place, {"k": "a" * (2**18 - 1)}))
    halves = {"k": "a" * 2**17, "l": "a" * (2**17 - 1)}
    assert any("262145 bytes, more than" in finding for finding in found(place, halves))
    assert any("bytes, more than" in finding for finding in found(place, {"k": "ä" * 2**17}))


@pytest.mark.parametrize("key", ["Example.COM/Key", "example.com/key", "KEY"])
def test_the_case_of_an_annotations_key_does_not_matter(key: str) -> None:
    assert not any(repr(key) in finding for finding in found("annotations", {key: "v"}))


@pytest.mark.parametrize("document", [None, [], "text", 1, {}, {"devices": [1]}])
def test_any_document_gets_findings(document: object) -> None:
    assert list(validation.findings(document))


def test_what_is_wrong_shows_behind_a_long_value() -> None:
    (finding,) = validation.findings("x" * 5000)
    assert finding.startswith("the spec: 'xxx")
    assert finding.endswith("is not of type 'object'")
    assert len(finding) < 350


def test_our_schema_takes_no_less_than_the_official_one_asks_for() -> None:
    """Whatever the official schema requires or types, ours does as well."""
    import jsonschema
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schemas = {
        name: json.loads(shared(f"cdi-schema/{name}").read_bytes())
        for name in ("schema.json", "defs.json")
    }
    registry: Any = Registry().with_resources(
        (name, Resource(contents=schema, specification=DRAFT7)) for name, schema in schemas.items()
    )
    official = jsonschema.Draft7Validator(schemas["schema.json"], registry=registry)
    assert official.is_valid(GOOD)
    for path, value in [
        ("cdiVersion", ...),
        ("kind", 1),
        ("devices", {}),
        ("devices.0.containerEdits", ...),
        (f"{EDITS}.deviceNodes.0.path", ...),
        (f"{EDITS}.deviceNodes.0.uid", -1),
        (f"{EDITS}.deviceNodes.0.major", "1"),
        (f"{EDITS}.hooks.0.timeout", "1"),
        (f"{EDITS}.mounts.0.options", "ro"),
    ]:
        assert found(path, value), path
