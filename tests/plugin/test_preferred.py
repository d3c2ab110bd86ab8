"""Which devices are handed out together."""

from __future__ import annotations

import itertools
import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdi.node import sample, topology
from deviceplugin import devices, preferred
from deviceplugin.devices import Unit


@pytest.fixture(scope="module")
def node_units(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Unit, ...]]:
    found = {}
    for name in ("mi300x", "mi300x-cpx", "mi210", "mixed"):
        root = tmp_path_factory.mktemp(name)
        sample.expand(name, root)
        found[name] = devices.units(topology.read_node(root), None)
    return found


def ids(units: tuple[Unit, ...]) -> list[str]:
    return [device_id for unit in units for device_id in unit.device_ids]


def gpus(chosen: list[str]) -> list[str]:
    return [device_id[:12] for device_id in chosen]


def test_one_hive_before_two(node_units: dict[str, tuple[Unit, ...]]) -> None:
    # Hive aefd… has 03, 26, 43 and 63; hive fb0e… has 83, a3, c3 and e3 (the sample's README).
    units = node_units["mi210"]
    available = [one for one in ids(units) if not one.startswith("0000:03")]
    chosen = preferred.choose(units, available, [], 4, "besteffort")
    assert sorted(gpus(chosen)) == [f"0000:{bus}:00.0" for bus in ("83", "a3", "c3", "e3")]
    chosen = preferred.choose(units, available, ["0000:26:00.0#4"], 3, "besteffort")
    assert chosen[0] == "0000:26:00.0#4"
    assert sorted(gpus(chosen)) == [f"0000:{bus}:00.0" for bus in ("26", "43", "63")]


def test_one_numa_node_before_two(node_units: dict[str, tuple[Unit, ...]]) -> None:
    units = node_units["mi300x"]
    available = [one for one in ids(units) if not one.startswith(("0000:05", "0000:27"))]
    chosen = preferred.choose(units, available, [], 4, "besteffort")
    assert sorted(gpus(chosen)) == [f"0000:{bus}:00.0" for bus in ("85", "a7", "c7", "e5")]


def test_partitions_of_one_gpu_together(node_units: dict[str, tuple[Unit, ...]]) -> None:
    units = node_units["mi300x-cpx"]
    available = [one for one in ids(units) if ":0:cpx" not in one or one.startswith("0000:c7")]
    chosen = preferred.choose(units, available, [], 8, "besteffort")
    assert set(gpus(chosen)) == {"0000:c7:00.0"}


def test_the_fuller_gpu_first_or_last(node_units: dict[str, tuple[Unit, ...]]) -> None:
    units = node_units["mi300x"]
    available = [
        one
        for one in ids(units)
        if one not in {"0000:47:00.0#0", "0000:47:00.0#1", "0000:65:00.0#5"}
    ]
    for policy in ("besteffort", "binpack"):
        assert preferred.choose(units, available, [], 1, policy) == ["0000:47:00.0#2"]
        two = preferred.choose(units, available, [], 2, policy)
        assert two == ["0000:47:00.0#2", "0000:65:00.0#0"]
    spread = preferred.choose(units, available, [], 7, "spread")
    assert set(gpus(spread)) == set(gpus(available)) - {"0000:47:00.0"}


def test_no_more_than_one_of_each_gpu(node_units: dict[str, tuple[Unit, ...]]) -> None:
    units = node_units["mi300x"]
    for policy in ("besteffort", "spread"):
        chosen = preferred.choose(units, ids(units), [], 12, policy)
        assert sorted(gpus(chosen)) == sorted({unit.gpu.pci for unit in units})
        # What an init container had is taken over, and its GPU gives nothing else.
        must = ["0000:05:00.0#3", "0000:05:00.0#4"]
        chosen = preferred.choose(units, ids(units), must, 4, policy)
        assert chosen[:2] == must
        assert len({*gpus(chosen)}) == 3


def cost(units: tuple[Unit, ...], chosen: tuple[str, ...]) -> int:
    near = preferred._distances(units)
    return sum(near[a[:12]][b[:12]] for a, b in itertools.combinations(chosen, 2))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_as_close_as_the_best_of_all_groups(
    node_units: dict[str, tuple[Unit, ...]], data: st.DataObject
) -> None:
    units = node_units[data.draw(st.sampled_from(["mi300x", "mi210", "mixed"]))]
    firsts = [unit.device_ids[0] for unit in units]
    available = data.draw(st.lists(st.sampled_from(firsts), min_size=1, unique=True))
    size = data.draw(st.integers(1, min(5, len(available))))
    chosen = preferred.choose(units, available, [], size, "besteffort")
    best = min(cost(units, group) for group in itertools.combinations(available, size))
    assert cost(units, tuple(chosen)) == best


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_contract_of_kubelet(
    node_units: dict[str, tuple[Unit, ...]], data: st.DataObject
) -> None:
    units = node_units[data.draw(st.sampled_from(sorted(node_units)))]
    available = data.draw(st.lists(st.sampled_from(ids(units)), min_size=1, unique=True))
    must = data.draw(st.lists(st.sampled_from(available), max_size=4, unique=True))
    size = data.draw(st.integers(len(must), len(available)))
    policy = data.draw(st.sampled_from(["besteffort", "binpack", "spread"]))
    chosen = preferred.choose(units, available, must, size, policy)
    assert len(chosen) == len(set(chosen)) <= size
    assert set(must) <= set(chosen) <= set(available)
    places = {one: unit.place for unit in units for one in unit.device_ids}
    had = {places[one] for one in must}
    others = {places[one] for one in available} - had
    # As many as there are GPUs that have given none, each one once.
    added = [places[one] for one in chosen if one not in must]
    assert len(added) == len(set(added)) == min(size - len(must), len(others))
    assert set(added) <= others


@pytest.mark.parametrize("name", ["mi300x", "mi300x-cpx"])
@pytest.mark.parametrize("policy", ["besteffort", "spread"])
def test_it_takes_no_longer_than_a_few_sorts(
    node_units: dict[str, tuple[Unit, ...]], name: str, policy: str
) -> None:
    units = node_units[name]
    if name == "mi300x-cpx":
        units = tuple(Unit(one.gpu, one.partition, 10, 1.0) for one in units)
    available = ids(units)

    def seconds(size: int) -> float:
        times = []
        for _ in range(5):
            began = time.process_time()
            preferred.choose(units, available, [], size, policy)
            times.append(time.process_time() - began)
        return statistics.median(times)

    # 20 ms are allowed; a tenth of a second of processor time leaves room for a slow machine.
    assert max(map(seconds, (1, 8, 32))) < 0.1
