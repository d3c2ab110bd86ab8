"""What sets two specs apart."""

from __future__ import annotations

from cdi.spec import difference
from cdi.spec.edits import Spec


def spec_of(**devices: str) -> Spec:
    return {
        "cdiVersion": "0.5.0",
        "kind": "amd.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"env": [f"A={value}"]}}
            for name, value in devices.items()
        ],
    }


def test_added_removed_and_changed() -> None:
    found = difference.compare(spec_of(a="1", b="1", c="1"), spec_of(c="1", b="2", d="1"))
    assert (found.added, found.removed, found.changed) == (("d",), ("a",), ("b",))
    assert found.lines == ["+ d", "- a", "~ b"]


def test_the_same_is_no_difference() -> None:
    assert not difference.compare(spec_of(a="1"), spec_of(a="1"))


def test_without_an_old_device_everything_is_new() -> None:
    assert difference.compare(spec_of(), spec_of(a="1")).added == ("a",)


def test_what_all_devices_get_counts() -> None:
    old = spec_of(a="1") | {"cdiVersion": "0.3.0"}
    assert difference.compare(old, spec_of(a="1")).lines == ["~ (cdiVersion of all devices)"]  # type: ignore[arg-type]
