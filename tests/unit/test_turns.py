"""Shares whose containers never run at once may have the same CUs, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdi.errors import PermanentError
from cdi.node import sample, topology
from cdi.node.gpu import Node
from cdi.plan import planner
from cdi.plan.amount import Amount
from cdi.plan.options import Options
from cdi.plan.share import Share
from cdi.spec import renderer
from cdi.state import ledger
from cdi.state.ledger import Ledger

HOST = renderer.HostPaths(Path("/values"), None)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    root = tmp_path_factory.mktemp("mi300x")
    sample.expand("mi300x", root)
    return topology.read_node(root)


def plan(
    node: Node, name: str, cus: int, living: tuple[Share, ...], before: tuple[str, ...] = ()
) -> Share:
    want = planner.Want(node.gpus[0], node.gpus[0].partitions[0], Amount(cus, percent=False))
    return planner.plan(name, [want], living, 4, before)


def test_an_init_container_may_have_what_the_containers_after_it_have(node: Node) -> None:
    # A MI300X has 304 CUs, so two shares of 200 fit only one after the other.
    init = plan(node, "pod-1.init", 200, (), ("pod-1.main",))
    main = plan(node, "pod-1.main", 200, (init,))
    assert init.slices[0].cus & main.slices[0].cus
    devices = renderer.render(node, (init, main), Options(), HOST)
    assert {init.name, main.name} <= {device["name"] for device in devices.devices}
    assert devices.warnings == ()


def test_another_container_may_not(node: Node) -> None:
    init = plan(node, "pod-1.init", 200, (), ("pod-1.main",))
    with pytest.raises(PermanentError, match="200 CUs were asked for, and 104 of 304 are free"):
        plan(node, "pod-2.main", 200, (init,))
    sidecar = plan(node, "pod-1.sidecar", 104, (init,))
    assert not init.slices[0].cus & sidecar.slices[0].cus


def test_turns_are_kept_in_the_ledger(node: Node) -> None:
    init = plan(node, "pod-1.init", 8, (), ("pod-1.main", "pod-1.other"))
    kept = Ledger((init,))
    assert ledger.decode(ledger.encode(kept)) == kept


def test_an_overlap_without_turns_is_left_out_and_named(node: Node) -> None:
    one, two = plan(node, "one", 8, ()), plan(node, "two", 8, ())
    rendering = renderer.render(node, (one, two), Options(), HOST)
    assert "two" not in {device["name"] for device in rendering.devices}
    assert "CU 0-7" in rendering.warnings[0]
    assert "belongs to share 'one' as well" in rendering.warnings[0]
