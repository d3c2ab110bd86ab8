"""Shares found on a node again, or refused."""

from __future__ import annotations

import pytest

from cdi.cumask import span
from cdi.errors import PermanentError
from cdi.node.gpu import Gpu
from cdi.plan.share import Share, Slice, resolve
from tests.unit.nodes import GIB, MI300X, cpx, gpu, partition, radeon, share, slice_of


def resolved(slice_: Slice, *gpus: Gpu) -> str:
    try:
        resolve(share("share-a", slice_), {gpu.pci: gpu for gpu in gpus})
    except PermanentError as error:
        return str(error)
    return ""


def test_a_share_is_found_by_what_survives_a_reboot() -> None:
    slice_ = slice_of(gpu(), span(0, 8), GIB)
    after = gpu(index=5, partitions=(partition(kfd_node=9, render_minor=140, card_minor=7),))
    (grant,) = resolve(share("share-a", slice_), {MI300X: after})
    assert (grant.partition.render_minor, grant.cus, grant.memory) == (140, span(0, 8), GIB)


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (gpu(pci="0000:06:00.0"), "none there"),
        (gpu(unique_id=0x1FC4A2D07BE93865), "1fc4a2d07be93865"),
        (cpx(), "mode cpx with 8"),
        (gpu(partitions=(partition(cus=6, xccs=1),)), "CU 6-7 is beyond"),
    ],
)
def test_another_gpu_in_its_place_is_refused(now: Gpu, found: str) -> None:
    message = resolved(slice_of(gpu(), span(0, 8), GIB), now)
    assert MI300X in message
    assert found in message
    assert "remove the share" in message


def test_a_partition_of_another_mode_is_refused_even_if_its_cus_are_legal() -> None:
    # 38 CUs of a CPX partition are 19 whole atoms in QPX, where they mean something else.
    quarters = tuple(
        partition(index=index, kfd_node=2 + index, cus=76, xccs=2) for index in range(4)
    )
    message = resolved(
        slice_of(cpx(), span(0, 38), GIB, index=3), gpu(compute_mode="qpx", partitions=quarters)
    )
    assert "mode cpx with a partition 3, found mode qpx with 4" in message


def test_a_mask_that_would_open_the_gpu_is_refused() -> None:
    assert "0-3" in resolved(slice_of(gpu(), span(0, 4), GIB), gpu())


@pytest.mark.parametrize("cus", [span(0, 8), span(0, 304)])
def test_no_memory_of_a_gpu_that_has_some_is_refused(cus: int) -> None:
    # No limit would be set, and the hook told of none.
    assert "the share says none" in resolved(slice_of(gpu(), cus, 0), gpu())


UNKNOWN = {
    "how many CUs it has": {"cus": 0},
    "how much memory it has": {"memory_bytes": 0},
    "which of its CUs can only be granted together": {"gfx_target_version": 0},
}


@pytest.mark.parametrize(("what", "changes"), UNKNOWN.items())
def test_a_share_that_was_made_when_more_was_known_is_refused(
    what: str, changes: dict[str, int]
) -> None:
    now = gpu(partitions=(partition(**changes),))
    message = resolved(slice_of(gpu(), span(0, 8), GIB), now)
    assert "can only be had whole and alone" in message
    assert what in message


@pytest.mark.parametrize("changes", [{"cus": 0}, {"memory_bytes": 0}])
def test_what_was_all_of_a_gpu_is_not_taken_for_it_when_less_is_known(
    changes: dict[str, int],
) -> None:
    now = gpu(partitions=(partition(**changes),))
    for memory in (GIB, 192 * GIB):
        assert "whole and alone" in resolved(slice_of(gpu(), span(0, 304), memory), now)


def test_all_of_a_gpu_of_which_little_is_known_is_a_share() -> None:
    bare = gpu(partitions=(partition(cus=0, memory_bytes=0),))
    assert resolved(slice_of(bare, 0, 0), bare) == ""
    # It has no part that is known to be its own once more is known.
    assert "it names no CU" in resolved(slice_of(bare, 0, 0), gpu())


def test_beside_a_gpu_that_is_held_to_a_part_all_must_be_known() -> None:
    bare = gpu(partitions=(partition(cus=0, memory_bytes=0),))
    slices = (slice_of(bare, 0, 0), slice_of(radeon(), span(0, 2), GIB))
    with pytest.raises(PermanentError, match="whole and alone"):
        resolve(share("share-a", *slices), {one.pci: one for one in (bare, radeon())})
    scaled = Share("share-a", (slice_of(bare, 0, 0),), oversubscribed=True)
    with pytest.raises(PermanentError, match="whole and alone"):
        resolve(scaled, {MI300X: bare})


def test_more_memory_than_there_is_is_refused_unless_booked_so() -> None:
    slice_ = slice_of(gpu(), span(0, 8), 2 << 40)
    assert f"{2 << 40} bytes of memory were booked" in resolved(slice_, gpu())
    scaled = Share("share-a", (slice_,), oversubscribed=True)
    assert resolve(scaled, {MI300X: gpu()})[0].memory == 2 << 40


def test_all_of_a_gpu_needs_no_mask_even_if_a_rest_fills_no_atom() -> None:
    odd = gpu(partitions=(partition(cus=303),))
    (grant,) = resolve(share("a", slice_of(odd, span(0, 303), 192 * GIB)), {MI300X: odd})
    assert grant.whole
    assert "302" in resolved(slice_of(odd, span(0, 303), 191 * GIB), odd)
