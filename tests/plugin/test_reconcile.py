"""Ledger, spec and pods are brought together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdi import cumask
from cdi.node import sample, topology
from cdi.plan import planner
from cdi.plan.amount import Amount
from cdi.plan.share import Share
from deviceplugin import bookings, devices, nodelock, pods
from deviceplugin.devices import Unit
from deviceplugin.pods import Container, Pod
from tests.plugin.kubelet_side import KubeletSide
from tests.plugin.scene import await_that, lay, plugin, scene
from tests.plugin.scheduler import NODE, Ask, bind, pod, registered


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> tuple[Unit, ...]:
    root = tmp_path_factory.mktemp("mi300x")
    sample.expand("mi300x", root)
    return devices.units(topology.read_node(root), None)


def a_pod(uid: str, units: tuple[Unit, ...], cus: list[int], told: str, **changes: object) -> Pod:
    slots = "".join(f"{units[0].id},T,1024,{count}:;" for count in cus)
    containers = tuple(Container(f"c{index}", "app", 1) for index in range(len(cus)))
    known = Pod(
        uid=uid,
        namespace="default",
        name=uid,
        resource_version=1,
        created="",
        phase="Running",
        vgpu_node=NODE,
        bind_time="1",
        bind_phase="success",
        to_allocate=";" * len(cus),
        allocated=slots,
        cu_allocated=json.dumps({units[0].id: told}) if told else "",
        containers=containers,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def masks(shares: tuple[Share, ...]) -> dict[str, str]:
    return {share.name: cumask.format_cus(share.slices[0].cus) for share in shares}


def test_shares_come_back_from_annotations(units: tuple[Unit, ...]) -> None:
    known = [
        a_pod("one", units, [80], "0-79"),
        a_pod("two", units, [16, 24], "80-119"),
        a_pod("done", units, [80], "120-199", phase="Succeeded"),
        a_pod("failed", units, [80], "120-199", bind_phase="failed"),
    ]
    shares, useless = bookings.reconciled((), known, units, starting=True)
    assert masks(shares) == {
        "pod-one.c0": "0-79",
        "pod-two.c0": "80-95",
        "pod-two.c1": "96-119",
    }
    assert useless == []
    assert shares[0].slices[0].memory == 1024 << 20


def test_what_the_ledger_knows_stays_and_what_nobody_has_goes(units: tuple[Unit, ...]) -> None:
    slice_ = planner.plan(
        "x", [planner.Want(units[0].gpu, units[0].partition, Amount(8, False))], (), 2
    ).slices
    shares = tuple(
        Share(name, slice_)
        for name in ("pod-gone.main", "pod-one.c0", "share-alice", "pod-ended.c0")
    )
    known = [
        a_pod("one", units, [80], "0-79"),
        a_pod("ended", units, [80], "", phase="Failed"),
    ]
    after, _ = bookings.reconciled(shares, known, units, starting=False)
    assert [share.name for share in after] == ["pod-one.c0", "share-alice"]


def test_an_allocation_that_kubelet_never_got_is_undone_at_start(units: tuple[Unit, ...]) -> None:
    waiting = a_pod("one", units, [8], "", phase="Pending", bind_phase="allocating")
    waiting = replace(waiting, to_allocate=waiting.allocated)
    slice_ = planner.plan(
        "x", [planner.Want(units[0].gpu, units[0].partition, Amount(8, False))], (), 2
    ).slices
    share = Share("pod-one.c0", slice_)
    assert bookings.reconciled((share,), [waiting], units, starting=True)[0] == ()
    assert bookings.reconciled((share,), [waiting], units, starting=False)[0] == (share,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cu_allocated": "nonsense"}, "an object of GPU ids and CU lists was expected"),
        ({"cu_allocated": "[]"}, "an object of GPU ids and CU lists was expected"),
        ({"cu_allocated": '{"x":3}'}, "an object of GPU ids and CU lists was expected"),
        ({"cu_allocated": "{}"}, r"are told \(none\) 0 are no other's"),
        ({"cu_allocated": ""}, r"are told \(none\) 0 are no other's"),
        ({"allocated": "x"}, "slots that each end with"),
        ({"to_allocate": ";;"}, "as many slots to allocate as allocated"),
    ],
)
def test_a_useless_annotation_costs_only_its_own_pod(
    units: tuple[Unit, ...], changes: dict[str, str], reason: str
) -> None:
    broken = a_pod("broken", units, [80], "0-79", **changes)
    good = a_pod("good", units, [80], "80-159")
    shares, useless = bookings.reconciled((), [broken, good], units, starting=True)
    assert masks(shares) == {"pod-good.c0": "80-159"}
    ((whose, error),) = useless
    assert whose is broken
    with pytest.raises(type(error), match=reason):
        raise error


def test_cus_that_another_has_are_not_adopted(units: tuple[Unit, ...]) -> None:
    known = [a_pod("one", units, [80], "0-79"), a_pod("thief", units, [80], "72-151")]
    shares, useless = bookings.reconciled((), known, units, starting=True)
    assert masks(shares) == {"pod-one.c0": "0-79"}
    assert [whose.uid for whose, _ in useless] == ["thief"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_annotations_alone_give_back_what_was_given_out(
    units: tuple[Unit, ...], data: st.DataObject
) -> None:
    """Plan as Allocate does, keep only the annotations, and compare what each pod has."""
    living: list[Share] = []
    known = []
    for number in range(data.draw(st.integers(1, 6))):
        asked = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
        uid = f"p{number}"
        for index, cus in enumerate(asked):
            want = planner.Want(
                units[0].gpu, units[0].partition, Amount(cus, False), Amount(1024 << 20, False)
            )
            if sum(one.slices[0].cus.bit_count() for one in living) + max(8, cus) <= 304:
                living.append(planner.plan(f"pod-{uid}.c{index}", [want], living))
        own = [one for one in living if one.name.startswith(f"pod-{uid}.")]
        told = bookings.held_cus(uid, own, units)
        served = a_pod(uid, units, asked[: len(own)], "", cu_allocated=told)
        if own:
            known.append(served)
        if own and data.draw(st.booleans()):
            known.remove(served)
            living = [one for one in living if one not in own]
    shares, useless = bookings.reconciled((), known, units, starting=True)
    assert useless == []

    def per_pod(found: list[Share]) -> dict[str, int]:
        union: dict[str, int] = {}
        for one in found:
            uid = one.name.partition(".")[0]
            assert not union.get(uid, 0) & one.slices[0].cus
            union[uid] = union.get(uid, 0) | one.slices[0].cus
        return union

    assert per_pod(list(shares)) == per_pod(living)
    assert {one.name: one.slices[0].cus.bit_count() for one in shares} == {
        one.name: one.slices[0].cus.bit_count() for one in living
    }


def test_no_more_is_kept_of_a_pod_than_is_used() -> None:
    document = pod("job", [Ask("warm", kind="init"), Ask("side", kind="sidecar", gpus=0), Ask()])
    document["metadata"]["uid"] = "u"
    known = pods.parse(document)
    assert [(one.name, one.kind, one.gpus) for one in known.containers] == [
        ("warm", "init", 1),
        ("side", "sidecar", 0),
        ("main", "app", 1),
    ]
    assert known.later(known.containers[0]) == ("pod-u.main",)
    assert known.later(known.containers[2]) == ()
    assert "x" * 2000 not in repr(known)
    # Garbage where the API has objects costs nothing.
    assert pods.parse({"metadata": None, "spec": None, "status": None}).uid == ""


def test_a_pod_that_came_while_a_list_was_under_way_is_kept(units: tuple[Unit, ...]) -> None:
    known = pods.Pods()
    early = a_pod("early", units, [8], "")
    late = a_pod("late", units, [8], "", resource_version=6)
    known.put(early)
    known.begin()
    known.put(late)
    known.put(replace(early, resource_version=7, phase="Failed"))
    # The list is of a time before both: it has the one as it was, and not yet the other.
    known.replace([early], 5)
    assert {one.uid: one.phase for one in known.all()} == {"early": "Failed", "late": "Running"}
    known.begin()
    known.replace([], 8)
    assert known.all() == ()


def test_a_pod_that_went_while_all_were_listed_does_not_stay(units: tuple[Unit, ...]) -> None:
    known = pods.Pods()
    known.begin()
    # An allocation put it here; the list, which is of a later time, has it not.
    known.put(a_pod("one", units, [8], "", resource_version=7))
    known.put(a_pod("two", units, [8], "", resource_version=9))
    known.replace([], 8)
    assert [one.uid for one in known.all()] == ["two"]


def test_a_stale_event_does_not_undo_what_is_known(units: tuple[Unit, ...]) -> None:
    known = pods.Pods()
    known.put(a_pod("one", units, [8], "", resource_version=7, phase="Failed"))
    known.put(a_pod("one", units, [8], "", resource_version=3))
    assert [one.phase for one in known.all()] == ["Failed"]


@pytest.mark.parametrize(
    ("text", "namespace", "name"),
    [
        ("2026-01-02T03:04:05Z,ns,pod", "ns", "pod"),
        ("2026-01-02T03:04:05Z", "", ""),
        ("2026-01-02T03:04:05Z,ns", "", ""),
    ],
)
def test_forms_of_the_lock(text: str, namespace: str, name: str) -> None:
    held = nodelock.parse(text)
    assert held == nodelock.Held(text, namespace, name)
    assert nodelock.parse("") is None


def test_a_restart_of_the_plugin_under_the_same_kubelet(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x") as it:
        document = bind(it.server, "job", [Ask(cores=25, memory=1024)])
        uid = document["metadata"]["uid"]
        names = it.kubelet.admit(uid, "main", 1)
        devices_before = it.devices
    server, kubelet = it.server, KubeletSide(tmp_path / "kubelet")
    assert server
    assert devices_before[names[0][12:]]
    kubelet.checkpoint = it.kubelet.checkpoint
    kubelet.start()
    with plugin(tmp_path, kubelet, None):
        kubelet.await_devices()
        # Replayed from the checkpoint, and what it names is still in the spec.
        assert kubelet.admit(uid, "main", 1) == names
        assert it.devices == devices_before
    kubelet.stop()


def test_an_api_that_is_away_at_start_is_no_reason_to_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deviceplugin import command
    from tests.plugin.api_server import NO_FAULT, ApiServer, Fault

    monkeypatch.setattr(command, "START_SECONDS", 0.5)
    lay(tmp_path, "rx7900xtx")
    server = ApiServer().start()
    server.add_node(NODE)
    server.fault = lambda request: Fault(status=503)
    kubelet = KubeletSide(tmp_path / "kubelet")
    kubelet.start()
    with plugin(tmp_path, kubelet, server):
        kubelet.await_devices(seconds=20)
        server.fault = lambda request: NO_FAULT
        await_that(lambda: "hami.io/node-amd-register" in server.annotations(NODE), 20)
        document = bind(server, "job", [Ask(cores=25, memory=1024)])
        assert kubelet.admit(document["metadata"]["uid"], "main", 1)
        assert registered(server)
    kubelet.stop()
    server.stop()


def test_plugins_of_others_are_left_alone(tmp_path: Path) -> None:
    lay(tmp_path, "mixed")
    kubelet = KubeletSide(tmp_path / "kubelet")
    kubelet.start()
    with (
        plugin(tmp_path, kubelet, None, "--resource-naming-strategy=mixed"),
        plugin_of_another_vendor(kubelet),
    ):
        for resource in ("amd.com/gpu", "amd.com/cpx_nps1", "example.com/card"):
            kubelet.await_devices(resource)
        kubelet.start()
        for resource in ("amd.com/gpu", "amd.com/cpx_nps1"):
            kubelet.await_devices(resource)
        assert "example.com/card" not in kubelet.plugins
    kubelet.stop()


def plugin_of_another_vendor(kubelet: KubeletSide):
    """Serve another resource once, as a plugin does that does not notice restarts."""
    from contextlib import contextmanager

    from deviceplugin.inventory import Inventory, Resource, State
    from deviceplugin.kubelet import Endpoint
    from deviceplugin.service import register

    @contextmanager
    def running():
        inventory = Inventory("single", "besteffort")
        inventory.become(State())
        resource = Resource("example.com/card", inventory, lambda ids: [])
        endpoint = Endpoint("example.com/card", resource, kubelet.directory)
        endpoint.serve()
        register(
            str(kubelet.directory / "kubelet.sock"), endpoint.socket.name, "example.com/card", 5
        )
        yield
        endpoint.stop()

    return running()
