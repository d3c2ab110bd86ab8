"""Limits and counters follow ROCr's order of agents, which ROCR_VISIBLE_DEVICES makes.

GPUs are told apart by what the library has no part in: the stand-in's account of each GPU, and the
PCI address that HIP tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.libamvgpu.runtime import (
    HSA_OUT_OF_RESOURCES,
    MIB,
    OUT_OF_MEMORY,
    Driver,
    Runtime,
    Share,
)

POOL = "hsa_amd_memory_pool_allocate"
NO_DEVICE = 100  # hipErrorNoDevice
GPUS = 3
LIMITS = (256 * MIB, 512 * MIB, 768 * MIB)
SLACK = 40 * MIB
FIRST, SECOND, THIRD = (f"GPU-00000000fa4e000{i}" for i in (2, 3, 4))  # the stand-in's


@dataclass(frozen=True)
class Order:
    """`agents` are the GPUs of the machine that ROCr shows, in its order; `ordinals` what HIP
    makes of them: its device i is agent ordinals[i]."""

    rocr: str | None
    agents: tuple[int, ...]
    hip: str | None = None
    ordinals: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        chosen = {"ROCR_VISIBLE_DEVICES": self.rocr, "HIP_VISIBLE_DEVICES": self.hip}
        return {"STANDIN_GPUS": str(GPUS), **{k: v for k, v in chosen.items() if v is not None}}

    def devices(self) -> tuple[int, ...]:
        return self.ordinals if self.hip else tuple(range(len(self.agents)))


ORDERS = (
    Order(None, (0, 1, 2)),
    Order("1,0", (1, 0)),
    Order("2,0,1", (2, 0, 1)),
    Order("2", (2,)),
    Order(f"{THIRD},{FIRST}", (2, 0)),
    Order(f"{SECOND},0", (1, 0)),
    Order("1,0", (1, 0), hip="1,0", ordinals=(1, 0)),
    Order("2,0,1", (2, 0, 1), hip="1", ordinals=(1,)),
    Order(f"{THIRD},{FIRST}", (2, 0), hip="1,0", ordinals=(1, 0)),
)


def name(order: Order) -> str:
    return f"{order.rocr}/{order.hip}"


def held(share: Share, order: Order) -> dict[int, tuple[int, int]]:
    """By agent: bytes in the library's counter, and of its GPU in the stand-in's account."""
    return {
        agent: (share.counted(agent), share.allocated(gpu))
        for agent, gpu in enumerate(order.agents)
    }


def grown(share: Share, order: Order, before: dict[int, tuple[int, int]], agent: int) -> None:
    """The counter of `agent` and the account of its GPU have grown alike, the others not at all."""
    after = held(share, order)
    assert after[agent][1] - before[agent][1] >= 32 * MIB
    assert after[agent][0] - before[agent][0] == after[agent][1] - before[agent][1]
    assert {**after, agent: before[agent]} == before


@pytest.mark.parametrize("order", ORDERS, ids=name)
def test_limits_belong_to_agents(order: Order, hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, *LIMITS)
    driver = start(hip, share, **order.environment())
    assert driver.numbers("count") == [0, len(order.devices())]
    for ordinal, agent in reversed(list(enumerate(order.devices()))):
        limit = LIMITS[agent]
        assert driver.numbers(f"device {ordinal}") == [0]
        assert driver.ask("address") == ["0", f"0000:{0x83 + order.agents[agent]:02x}:00.0"]
        code, free, total, device_total, properties = driver.numbers("info")
        assert (code, total, device_total, properties) == (0, limit, limit, limit)
        assert free == limit - share.counted(agent)
        before = held(share, order)
        assert driver.take("hipMalloc", 32 * MIB)[0] == 0
        grown(share, order, before, agent)
        before = held(share, order)
        assert driver.take("hipMallocFromPoolAsync", 32 * MIB)[0] == 0
        grown(share, order, before, agent)
        # Managed memory is in no pool of a GPU: HIP's ordinal alone tells whose it is.
        before = held(share, order)
        assert driver.take("hipMallocManaged", 32 * MIB)[0] == 0
        after = held(share, order)
        assert after == {**before, agent: (before[agent][0] + 32 * MIB, before[agent][1])}
        assert driver.numbers("info")[1] == limit - share.counted(agent)
        for entry in ("hipMalloc", "hipMallocManaged"):
            assert driver.take(entry, limit - 32 * MIB)[0] == OUT_OF_MEMORY
    for agent, gpu in enumerate(order.agents):
        assert share.counted(agent) >= share.allocated(gpu)
        assert share.counted(agent) <= LIMITS[agent]
    for hidden in set(range(GPUS)) - set(order.agents):
        assert share.allocated(hidden) == 0


@pytest.mark.parametrize("order", [order for order in ORDERS if not order.hip], ids=name)
def test_programs_of_rocr(order: Order, trixie: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, *LIMITS)
    driver = start(trixie, share, **order.environment())
    for agent in range(len(order.agents)):
        driver.ask(f"device {agent}")
        before = held(share, order)
        assert driver.take(POOL, 32 * MIB)[0] == 0
        grown(share, order, before, agent)
        assert driver.numbers("hsa")[1] == LIMITS[agent]
        assert driver.take(POOL, LIMITS[agent])[0] == HSA_OUT_OF_RESOURCES


# What ROCr makes of a list, by its source (amd_filter_device.cpp): what it cannot read ends it.
LISTS = {
    " 2 , 0 ": (2, 0),
    "0x2,00": (2, 0),
    THIRD.upper(): (2,),
    f"{THIRD.lower()},1": (2, 1),
    "GPU-00000000FA4E0003,2": (1, 2),
    "GPU-": (),  # too short
    "GPU-00000000FA4E": (),  # the beginning of every one
    "1,1,0": (1,),
    "1,3,0": (1,),
    "1,-1,0": (1,),
    "1,gpu-5,0": (1,),
    "1,2x,0": (1,),
    "1,0,2,1": (1, 0, 2),  # more entries than GPUs: not looked at
    "": (),
}


@pytest.mark.parametrize("text", LISTS)
def test_lists(text: str, trixie: Runtime, library, tmp_path, start) -> None:
    """The stand-in reads them as ROCr does, and the limits follow."""
    share = Share.make(tmp_path, library, *LIMITS)
    driver: Driver = start(trixie, share, **Order(text, ()).environment())
    agents = LISTS[text]
    assert driver.numbers("count") == ([0, len(agents)] if agents else [NO_DEVICE, 0])
    for agent, gpu in enumerate(agents):
        driver.ask(f"device {agent}")
        assert driver.ask("address") == ["0", f"0000:{0x83 + gpu:02x}:00.0"]
        assert driver.numbers("info")[2] == LIMITS[agent]


# HIP 5.2 asks no agent, and its managed memory is refused (test_limits.py).
@pytest.mark.applies(when=lambda hip, **_: hip != "bookworm")
def test_partitions_in_another_order(hip: Runtime, library, tmp_path, start) -> None:
    """At one PCI address: which agent HIP asks for its memory tells which it is."""
    share = Share.make(tmp_path, library, *LIMITS)
    order = Order("2,0,1", (2, 0, 1), hip="2,0", ordinals=(2, 0))
    driver = start(hip, share, STANDIN_PARTITIONS="1", **order.environment())
    for ordinal, agent in enumerate(order.ordinals):
        driver.ask(f"device {ordinal}")
        assert driver.numbers("info")[2] == LIMITS[agent]
        before = held(share, order)
        assert driver.take("hipMalloc", 32 * MIB)[0] == 0
        grown(share, order, before, agent)
        before = held(share, order)
        assert driver.take("hipMallocManaged", 32 * MIB)[0] == 0
        assert share.counted(agent) == before[agent][0] + 32 * MIB
