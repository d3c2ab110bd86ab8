"""Names of devices and shares."""

from __future__ import annotations

import pytest

from cdi.errors import PermanentError
from cdi.names import label, share_device
from tests.unit.nodes import cpx, gpu


def test_a_partition_is_named_only_where_there_are_several() -> None:
    assert label(gpu(), gpu().partitions[0]) == "0"
    assert label(cpx(), cpx().partitions[3]) == "0:3"


@pytest.mark.parametrize("name", ["a", "alice", "A-b_c.d9", "x" * 63])
def test_a_share_gets_a_device_of_its_name(name: str) -> None:
    assert share_device(name) == f"share-{name}"


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", ".", "..", "a/b", "../etc", "a b", "a:b", "ä", "a\n", "x" * 64, "a\0"]
)
def test_a_name_that_no_device_may_have(name: str) -> None:
    with pytest.raises(PermanentError, match="a share's name"):
        share_device(name)
