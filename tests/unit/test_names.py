"""Names of devices and shares."""

from __future__ import annotations

import pytest

from cdi.errors import PermanentError
from cdi.plan.names import is_pod_spec, is_share, label, share_device, spec_file
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


@pytest.mark.parametrize(
    "name",
    ["share-a", "0-1of4", "0:3-12of16", "8eff74b5-0000-1000-801b-b56457addd1b-1of2", "pod-u.c"],
)
def test_names_of_shares(name: str) -> None:
    assert is_share(name)


@pytest.mark.parametrize(
    "name", ["", "0", "all", "thesis.odt", "1of2", "a-of", "a-1of", "a-xof2", "share-", "share-a/b"]
)
def test_names_of_other_things(name: str) -> None:
    assert not is_share(name)


@pytest.mark.parametrize("main", ["amd.com-gpu.yaml", "gpus.json"])
def test_a_pods_share_has_a_file_of_its_own(main: str) -> None:
    stem, _, suffix = main.rpartition(".")
    assert spec_file(main, "pod-u.c") == f"{stem}_pod-u.c.{suffix}"
    assert spec_file(main, "share-a") == spec_file(main, "0-1of2") == main
    assert is_pod_spec(main, f"{stem}_pod-u.c.{suffix}")


@pytest.mark.parametrize(
    "name",
    [
        "amd.com-gpu.yaml",
        "amd.com-gpu_share-a.yaml",
        "amd.com-gpu_pod-u.c.json",
        "amd.com-gpu_pod-u/c.yaml",
        "amd.com-gpu-pod-u.c.yaml",
        "other_pod-u.c.yaml",
        "pod-u.c",
        "pod-u.c.yaml",
        "amd.com-gpu_pod-.yaml",
    ],
)
def test_files_of_others(name: str) -> None:
    assert not is_pod_spec("amd.com-gpu.yaml", name)
