"""What the node offers, and what HAMi's scheduler reads of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdi.node import sample, topology
from cdi.node.gpu import Node
from deviceplugin import devices, registration
from deviceplugin.devices import Unit
from deviceplugin.health import next_state
from deviceplugin.inventory import State


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Node:
    root = tmp_path_factory.mktemp("mixed")
    sample.expand("mixed", root)
    return topology.read_node(root)


def by_name(units: tuple[Unit, ...]) -> dict[str, Unit]:
    return {f"{unit.gpu.pci}:{unit.partition.index}": unit for unit in units}


def test_ids_shares_and_modes(mixed: Node) -> None:
    units = by_name(devices.units(mixed, None))
    whole, part = units["0000:05:00.0:0"], units["0000:27:00.0:7"]
    gfx12, apu = units["0000:83:00.0:0"], units["0000:c4:00.0:0"]
    # UUIDs from serial and device id, as facts of AMD SMI have it.
    assert whole.id == "8eff74a1-0000-1000-801b-b56457addd1b"
    assert part.id == "GPU-1fc4a2d07be93865-7#cpx"
    assert apu.id == "PCI-0000-c4-00.0"
    assert (whole.shares, part.shares, gfx12.shares, apu.shares) == (10, 1, 2, 10)
    assert part.device_ids == ("0000:27:00.0:7:cpx#0",)
    assert gfx12.device_ids == ("0000:83:00.0#0", "0000:83:00.0#1")
    assert not {",", ":", ";"} & set("".join(unit.id for unit in units.values()))


def test_a_split_count_is_for_all(mixed: Node) -> None:
    units = by_name(devices.units(mixed, 4))
    assert {unit.shares for unit in units.values()} == {4}
    part = units["0000:27:00.0:7"]
    assert part.id == "GPU-1fc4a2d07be93865-7"
    assert registration.entry(part, healthy=True).get("mode") is None


def test_resources_by_naming(mixed: Node) -> None:
    units = devices.units(mixed, None)
    assert {unit.resource("single") for unit in units} == {"amd.com/gpu"}
    assert {unit.resource("mixed") for unit in units} == {"amd.com/gpu", "amd.com/cpx_nps1"}


def test_empty_fields_are_left_out_as_go_does(mixed: Node) -> None:
    units = by_name(devices.units(mixed, None))
    apu = registration.entry(units["0000:c4:00.0:0"], healthy=False)
    # No NUMA node, not healthy: none of these keys. The memory is what HIP is offered.
    assert apu == {
        "id": "PCI-0000-c4-00.0",
        "index": 22,
        "count": 10,
        "devmem": 32768,
        "devcore": 16,
        "type": apu["type"],
        "devicevendor": "amd",
        "custominfo": {"pciBDF": "0000:c4:00.0", "cuPerWGP": 2, "computeQueues": 8},
    }


def less_known(node: Node, **changes: int) -> tuple[Unit, ...]:
    """The units of a node whose first GPU has less known of it."""
    first = node.gpus[0]
    partition = replace(first.partitions[0], **changes)  # type: ignore[arg-type]
    return devices.units(Node((replace(first, partitions=(partition,)), *node.gpus[1:])), None)


@pytest.mark.parametrize("changes", [{"cus": 0}, {"memory_bytes": 0}])
def test_what_cannot_be_booked_is_kubelet_s_alone(mixed: Node, changes: dict[str, int]) -> None:
    units = less_known(mixed, **changes)
    first = units[0]
    # One pod has it, and it is whole.
    assert first.device_ids == ("0000:05:00.0#0",)
    registered = json.loads(registration.encode(units, ()))
    assert [entry["id"] for entry in registered] == [unit.id for unit in units[1:]]


def test_a_gpu_of_no_known_atom_is_booked_with_all_its_cus(mixed: Node) -> None:
    units = less_known(mixed, gfx_target_version=0)
    entry = registration.entry(units[0], healthy=True)
    # The scheduler rounds a pod's CUs up to multiples of this, at most devcore.
    assert (entry["count"], entry["devcore"], entry["custominfo"]["cuPerWGP"]) == (1, 304, 304)


def test_an_unknown_mode_names_no_resource(mixed: Node) -> None:
    gpu = replace(mixed.gpus[1], compute_mode="unknown")
    assert {unit.resource("mixed") for unit in devices.units(Node((gpu,)), None)} == {"amd.com/gpu"}


def test_the_keys_are_in_the_order_of_the_scheduler_s_structure(mixed: Node) -> None:
    text = registration.encode(devices.units(mixed, None), ())
    order = ["id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health",
             "devicevendor", "custominfo"]  # fmt: skip
    for entry in json.loads(text):
        assert list(entry) == [key for key in order if key in entry]
    assert ", " not in text
    assert '": ' not in text


def test_a_product_with_separators_cannot_break_the_pod_s_lists(mixed: Node) -> None:
    gpu = replace(mixed.gpus[0], product="Radeon: PRO, W7900; 48GB")
    unit = Unit(gpu, gpu.partitions[0], 10, 1.0)
    assert registration.entry(unit, healthy=True)["type"] == "Radeon  PRO  W7900  48GB"


def test_the_memory_of_an_apu_is_what_hip_is_offered(tmp_path: Path) -> None:
    sample.expand("strix-halo", tmp_path)
    (unit,) = devices.units(topology.read_node(tmp_path), None)
    entry = registration.entry(unit, healthy=True)
    assert (entry["devmem"], entry["devcore"], entry["count"]) == (98304, 40, 10)


def test_scaled_memory(mixed: Node) -> None:
    unit = by_name(devices.units(mixed, None, 1.5))["0000:83:00.0:0"]
    # 17095983104 bytes are 16304 MiB.
    assert unit.memory_mib == 24456


def test_a_gpu_that_is_gone_stays_known_and_one_in_another_mode_does_not(mixed: Node) -> None:
    units = devices.units(mixed, None)
    before = State(units)
    without = tuple(unit for unit in units if unit.gpu.pci != "0000:27:00.0")
    gone = next_state(before, without, {})
    assert len(gone.missing) == 8
    back = next_state(gone, units, {})
    assert back.missing == ()
    gpu = next(unit.gpu for unit in units if unit.gpu.pci == "0000:27:00.0")
    spx = replace(gpu, compute_mode="spx", partitions=gpu.partitions[:1])
    other = next_state(gone, (*without, Unit(spx, spx.partitions[0], 10, 1.0)), {})
    assert other.missing == ()
