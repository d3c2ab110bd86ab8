"""The text of a spec against what YAML and JSON readers make of it."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cdi.spec import spectext
from cdi.spec.edits import Spec

TRICKY = [
    "1e3",
    "08",
    "0o17",
    "yes",
    "no",
    "null",
    "~",
    "",
    " a",
    "#x",
    "a: b",
    "- a",
    "'",
    '"',
    "\\",
]
TRICKY += [
    "0x1f",
    "1_000",
    "12:30:45",
    "2001-01-01",
    "=",
    "<<",
    "%",
    "@",
    "{}",
    "[]",
    "!x",
    "&x",
    "*x",
]


def spec_of(names: list[str]) -> Spec:
    return {
        "cdiVersion": "0.5.0",
        "kind": "amd.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"env": [f"A={name}"], "hooks": []}} for name in names
        ],
    }


def test_every_string_is_read_as_that_string() -> None:
    # PyYAML reads YAML 1.1, the version with the most surprises.
    spec = spec_of(TRICKY)
    assert yaml.safe_load(spectext.to_yaml(spec)) == spec
    assert json.loads(spectext.to_json(spec)) == spec


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])), min_size=1))
def test_any_printable_text_survives(names: list[str]) -> None:
    spec = spec_of([name for name in names if name.isprintable()] or ["a"])
    assert yaml.safe_load(spectext.to_yaml(spec)) == spec


def test_numbers_stay_numbers() -> None:
    spec: Spec = {
        "cdiVersion": "0.5.0",
        "devices": [
            {"name": "a", "containerEdits": {"hooks": [{"path": "/x", "timeout": 10, "args": []}]}}
        ],
    }
    assert yaml.safe_load(spectext.to_yaml(spec)) == spec


def test_the_heading_says_who_wrote_it() -> None:
    assert spectext.encode(spec_of(["a"]), "yaml").startswith(b"# Written by amd-cdi")


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_same_spec_gives_the_same_bytes(form: str) -> None:
    assert spectext.encode(spec_of(TRICKY), form) == spectext.encode(spec_of(TRICKY), form)
