"""Edits of other programs' configuration: one value changes, and every other byte stays."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdi.errors import PermanentError
from cdi.runtime import jsontext, tomltext
from cdi.runtime.document import MISSING

CDI = ("features", "cdi")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "features": {\n    "cdi": true\n  }\n}\n'),
        ("{}", '{\n  "features": {\n    "cdi": true\n  }\n}\n'),
        (
            '{\n    "zeta": 1,\n    "alpha": [1,2]\n}\n',
            '{\n    "zeta": 1,\n    "alpha": [1,2],\n'
            '    "features": {\n        "cdi": true\n    }\n}\n',
        ),
        ('{"a": "}"}', '{"a": "}", "features": {"cdi": true}}'),
        (
            '{\n\t"features": {\n\t\t"buildkit": true\n\t}\n}',
            '{\n\t"features": {\n\t\t"buildkit": true,\n\t\t"cdi": true\n\t}\n}',
        ),
        ('{"features": {"cdi" : false}, "n": 1.0}', '{"features": {"cdi" : true}, "n": 1.0}'),
        ('{"features":{}}', '{"features":{"cdi": true}}'),
        ('{"features":{"cdi": true}}', '{"features":{"cdi": true}}'),
    ],
)
def test_json_gets_a_member_where_it_belongs(before: str, after: str) -> None:
    assert jsontext.edit(before, CDI, True) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"features": {"cdi": true}}', '{"features": {}}'),
        ('{"features": {"a": 1, "cdi": true}}', '{"features": {"a": 1}}'),
        ('{"features": {"cdi": true, "a": 1}}', '{"features": {"a": 1}}'),
        ('{"features": {"a": 1}}', '{"features": {"a": 1}}'),
    ],
)
def test_json_loses_a_member_alone(before: str, after: str) -> None:
    assert jsontext.edit(before, CDI, MISSING) == after


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=50)
@given(
    document=st.dictionaries(st.text(), JSON),
    features=st.dictionaries(st.text(), JSON),
    indent=st.sampled_from([None, 0, 2, "\t"]),
    value=st.booleans() | st.just(MISSING),
)
def test_json_keeps_all_else_in_its_order(
    document: dict[str, Any], features: dict[str, Any], indent: int | str | None, value: object
) -> None:
    document["features"] = features
    text = json.dumps(document, indent=indent)
    edited = json.loads(jsontext.edit(text, CDI, value))
    others = [(key, one) for key, one in edited["features"].items() if key != "cdi"]
    assert others == [(key, one) for key, one in features.items() if key != "cdi"]
    assert edited["features"].get("cdi", MISSING) == value
    del edited["features"], document["features"]
    assert list(edited.items()) == list(document.items())


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1, "a": 2}', '{"a": 1} // why', "\ufeff{}"])
def test_what_is_no_json_object_is_said(text: str) -> None:
    with pytest.raises(PermanentError, match=r"^daemon\.json (is not JSON|holds no object)"):
        jsontext.parse(text, "daemon.json")


CRI = ("plugins", "io.containerd.grpc.v1.cri")
ENABLE = (*CRI, "enable_cdi")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "p" # why\n',
            'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'
            '  sandbox_image = "p" # why\n',
        ),
        (
            "[ plugins . 'io.containerd.grpc.v1.cri' ] # CRI\n\tenable_cdi = false # off\n",
            "[ plugins . 'io.containerd.grpc.v1.cri' ] # CRI\n\tenable_cdi = true # off\n",
        ),
        (
            'a = """\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n"""\n'
            '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n',
            'a = """\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n"""\n'
            '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n',
        ),
        (
            "[other]\nenable_cdi = false\n[plugins]\n"
            '"io.containerd.grpc.v1.cri".enable_cdi = false\n',
            "[other]\nenable_cdi = false\n[plugins]\n"
            '"io.containerd.grpc.v1.cri".enable_cdi = true\n',
        ),
        (
            '[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/x"',
            '[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/x"\n'
            '\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n',
        ),
        ("", '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'),
    ],
)
def test_toml_gets_a_value_where_it_belongs(before: str, after: str) -> None:
    assert tomltext.edit(before, ENABLE, True) == after


def test_toml_replaces_a_list_of_several_lines() -> None:
    before = '[crio.runtime]\ndirs = [ # here\n  "/a",\n  "/b", # and here\n]\nother = 1\n'
    after = '[crio.runtime]\ndirs = ["/c"]\nother = 1\n'
    assert tomltext.edit(before, ("crio", "runtime", "dirs"), ["/c"]) == after


def test_a_key_of_the_top_stands_before_the_first_table() -> None:
    assert tomltext.edit("root = 1\n[a]\nb = 1\n", ("version",), 2) == (
        "root = 1\nversion = 2\n[a]\nb = 1\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[features]\ncdi = true\nb = 1 # x\n", "[features]\nb = 1 # x\n"),
        ("[features]\nb = 1\n", "[features]\nb = 1\n"),
    ],
)
def test_toml_loses_a_value_alone(before: str, after: str) -> None:
    assert tomltext.edit(before, CDI, MISSING) == after


def test_toml_loses_an_empty_table() -> None:
    assert tomltext.edit("a = 1\n\n[features]\n", ("features",), MISSING) == "a = 1\n"


def test_what_cannot_be_done_by_a_small_edit_is_refused() -> None:
    text = 'plugins = { "io.containerd.grpc.v1.cri" = { enable_cdi = false } }\n'
    with pytest.raises(PermanentError, match=r"expected a place for `enable_cdi = true` in"):
        tomltext.edit(text, ENABLE, True)


@settings(max_examples=50)
@given(
    before=st.lists(
        st.sampled_from(
            [
                "[plugins]",
                '[plugins."io.containerd.grpc.v1.cri"]',
                "[other] # [plugins]",
                "enable_cdi = false",
                "  enable_cdi=true # true = false",
                "lines = '''\nenable_cdi = false\n'''",
                "",
                "# enable_cdi = true",
                'x = ["[plugins]", "# no comment"]',
            ]
        ),
        max_size=8,
    ),
    value=st.booleans() | st.just(MISSING),
)
def test_toml_says_all_else_as_before(before: list[str], value: object) -> None:
    text = "\n".join(before)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    edited = tomllib.loads(tomltext.edit(text, ENABLE, value))
    section = edited.get("plugins", {}).get(CRI[1], {})
    assert section.pop("enable_cdi", MISSING) == value
    document.get("plugins", {}).get(CRI[1], {}).pop("enable_cdi", None)
    for one in (edited, document):
        if not one.get("plugins", {}).get(CRI[1], True):
            del one["plugins"][CRI[1]]
        if not one.get("plugins", True):
            del one["plugins"]
    assert edited == document
