"""Shares found on a node again, or refused."""

from __future__ import annotations

import pytest

from cdi.cumask import span
from cdi.errors import PermanentError
from cdi.node.gpu import Gpu
from cdi.plan.share import Share, Slice, resolve
from tests.unit.nodes import GIB, MI300X, cpx, gpu, partition, share, slice_of


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


def test_no_memory_of_a_gpu_that_has_none_is_a_share() -> None:
    bare = gpu(partitions=(partition(vram_bytes=0),))
    assert resolved(slice_of(bare, span(0, 8), 0), bare) == ""


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
