"""The ledger: what is written is read, and what is damaged is never taken for empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdi.cumask import span
from cdi.errors import PermanentError
from cdi.plan.options import Options
from cdi.plan.share import Share
from cdi.state import ledger
from cdi.state.ledger import Ledger
from tests.unit.nodes import GIB, cpx, gpu, share, slice_of

FULL = Ledger(
    (
        share(
            "share-a",
            slice_of(gpu(), span(0, 8) | span(16, 8), GIB),
            slice_of(cpx(), span(3, 4), 5, index=3),
        ),
        Share("share-b", (slice_of(gpu(), span(24, 8), GIB),), oversubscribed=True),
    ),
    Options(split=4, strategies=("pci",), format="json", file="x.json"),
)


def test_what_is_written_is_read() -> None:
    assert ledger.decode(ledger.encode(FULL)) == FULL


def test_the_document_is_one_that_people_can_read() -> None:
    document = json.loads(ledger.encode(FULL))
    assert document["version"] == 1
    assert document["shares"][0] == {
        "name": "share-a",
        "slices": [
            {
                "gpu": "0000:05:00.0",
                "partition": 0,
                "mode": "spx",
                "unique_id": "8e1bb56457addd1b",
                "cus": "0-7,16-23",
                "memory": GIB,
            },
            {
                "gpu": "0000:05:00.0",
                "partition": 3,
                "mode": "cpx",
                "unique_id": "8e1bb56457addd1b",
                "cus": "3-6",
                "memory": 5,
            },
        ],
    }


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    assert ledger.load(tmp_path) == Ledger()


def test_shares_are_kept_in_order_of_name() -> None:
    names = ("share-c", "share-a", "share-b")
    full = Ledger()
    for name in names:
        full = full.with_share(share(name, slice_of(gpu(), span(0, 8), GIB)))
    assert [one.name for one in full.shares] == ["share-a", "share-b", "share-c"]
    assert [one.name for one in full.without_share("share-b").shares] == ["share-a", "share-c"]


def test_removing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(PermanentError, match="no share 'share-z'"):
        FULL.without_share("share-z")


def broken(**changes: Any) -> bytes:
    return json.dumps(json.loads(ledger.encode(FULL)) | changes).encode()


SLICE = json.loads(ledger.encode(FULL))["shares"][0]["slices"][0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\x00",
        b"[" * 100000,
        ledger.encode(FULL)[:-20],
        broken(version=2),
        broken(version="1"),
        broken(shares={}),
        broken(shares=None),
        broken(shares=[1]),
        broken(shares=[{"name": "share-a"}]),
        broken(shares=[{"name": 1, "slices": []}]),
        broken(shares=[{"name": "share-a", "slices": []}]),
        broken(shares=[{"name": "a/../b", "slices": [SLICE]}]),
        broken(shares=[{"name": "x" * 300, "slices": [SLICE]}]),
        broken(shares=[{"name": "share-a", "slices": [SLICE]}] * 2),
        broken(options={}),
        broken(options={"unknown": 1}),
        broken(options=None),
        broken(options={"split": "4"}),
        broken(options={"strategies": ["none"]}),
        broken(options={"strategies": 5}),
        broken(options={"file": "../x.yaml"}),
        broken(options={"hook_path": 5}),
    ]
    + [
        broken(shares=[{"name": "share-a", "slices": [SLICE | {key: value}]}])
        for key, value in [
            ("gpu", 5),
            ("gpu", None),
            ("partition", "0"),
            ("partition", True),
            ("partition", -1),
            ("mode", 1),
            ("unique_id", 5),
            ("unique_id", "xyz"),
            ("unique_id", "-1"),
            ("cus", 5),
            ("cus", "0-"),
            ("cus", ""),
            ("cus", "0-99999999"),
            ("memory", "1"),
            ("memory", 1.5),
            ("memory", -1),
            ("memory", 1 << 70),
        ]
    ],
)
def test_a_damaged_ledger_says_how_to_restore_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger.json"
    path.write_bytes(data)
    (tmp_path / "ledger.json.previous").touch()
    if data == broken(options={}):
        assert ledger.load(tmp_path).options == Options()
        return
    with pytest.raises(PermanentError) as caught:
        ledger.load(tmp_path)
    assert f"the ledger {path} is damaged" in str(caught.value)
    assert f"cp {path}.previous {path}" in str(caught.value)
    assert path.read_bytes() == data


def test_a_first_ledger_has_none_before_it(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_bytes(b"{")
    with pytest.raises(PermanentError, match=r"there is no ledger\.json\.previous"):
        ledger.load(tmp_path)
