"""An API server that fails in every way, and what holds nevertheless.

The parts run as in the plugin, over real HTTP and with the real client; only their deadlines are
shorter, so that many cases are tried.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdi.errors import AmdCdiError, PermanentError, TemporaryError
from cdi.files import lock
from cdi.node import topology
from cdi.state.paths import Paths
from cdi.state.store import LOCK_FILE
from deviceplugin import allocate, bookings, devices, nodelock, pods, retries
from deviceplugin.allocate import Hami
from deviceplugin.events import Events
from deviceplugin.inventory import Inventory, State
from deviceplugin.pods import Pods, PodWatch
from deviceplugin.publisher import Publisher
from deviceplugin.reconcile import Reconciler
from deviceplugin.reservations import Reservations
from deviceplugin.retries import Retries
from deviceplugin.runtime import Runtime
from tests.plugin.api_server import NO_FAULT, ApiServer, Fault, Request
from tests.plugin.scene import Scene, annotation, await_that, client, lay
from tests.plugin.scheduler import NODE, Ask, bind, registered


@dataclass
class Rig:
    """The plugin's parts without kubelet."""

    root: Path
    server: ApiServer
    hami: Hami
    inventory: Inventory
    reconciler: Reconciler
    retries: Retries
    chores: Retries
    watch: PodWatch

    @property
    def scene(self) -> Scene:
        return Scene(self.root, None, self.server)  # type: ignore[arg-type]


def build(root: Path, server: ApiServer) -> Rig:
    node = topology.read_node(root)
    paths = Paths(root, root / "etc/cdi", root / "var/lib/amd-cdi", root / "run/usage")
    reservations = Reservations(paths, node, {})
    reservations.refresh(node)
    inventory = Inventory("single", "besteffort")
    inventory.become(State(devices.units(node, None)))
    cluster = client(server)
    work, chores, known, turn = Retries(), Retries(), Pods(), threading.Lock()
    events = Events(cluster, work, NODE)
    reconciler = Reconciler(
        reservations, inventory, cluster, known, chores, work, events, turn, NODE
    )
    hami = Hami(
        reservations,
        inventory,
        Runtime((), root),
        cluster,
        NODE,
        known,
        work,
        work,
        events,
        turn,
        1.0,
    )
    watch = PodWatch(cluster, NODE, known, reconciler)
    for loop in (work.run, chores.run, watch.run):
        threading.Thread(target=loop, daemon=True).start()
    return Rig(root, server, hami, inventory, reconciler, work, chores, watch)


@contextmanager
def rig(root: Path, name: str = "rx7900xtx") -> Iterator[Rig]:
    lay(root, name)
    server = ApiServer().start()
    server.add_node(NODE)
    it = build(root, server)
    try:
        Publisher(it.hami.cluster, NODE, it.inventory).publish()
        assert it.reconciler.done.wait(10)
        yield it
    finally:
        it.watch.stop()
        server.stop()


def admit(it: Rig, document: Any, gpus: int = 1, given: int = 0) -> str | AmdCdiError:
    """Allocate as kubelet does: a pod that does not get its devices fails.

    ``given`` is the number of its containers that got theirs before.
    """
    began = time.monotonic()
    try:
        (name,) = it.hami.allocate([f"id-{number}" for number in range(gpus)])
    except AmdCdiError as error:
        metadata = document["metadata"]
        # No more is left in ledger and spec than other containers of the pod were given.
        left = {name for name in it.scene.shares if metadata["uid"] in name}
        assert left == it.scene.devices.keys() & left
        assert len(left) == given
        it.server.change_pod(
            metadata["namespace"], metadata["name"], {"status": {"phase": "Failed"}}
        )
        return error
    finally:
        assert time.monotonic() - began < 10
    return name


def come_to_rest(it: Rig) -> None:
    it.server.fault = lambda request: NO_FAULT
    assert it.retries.wait_until_done(20)
    assert it.chores.wait_until_done(20)


def in_order(it: Rig) -> bool:
    """Whether ledger, spec and the annotations of the pods that live say the same."""
    shares = it.scene.shares
    alive = [pods.parse(one) for one in it.server.pods()]
    alive = [pod for pod in alive if not pod.ended]
    if {name for name in it.scene.devices if name.startswith("pod-")} != set(shares):
        return False
    if {pods.pod_uid(name) for name in shares} - {pod.uid for pod in alive}:
        return False
    units = it.inventory.state.units
    return all(
        (pod.cu_allocated or "{}") == bookings.held_cus(pod.uid, shares.values(), units)
        for pod in alive
    )


def overlaps(it: Rig) -> list[tuple[str, str]]:
    shares = list(it.scene.shares.values())
    return [
        (one.name, other.name)
        for position, one in enumerate(shares)
        for other in shares[:position]
        for a in one.slices
        for b in other.slices
        if (a.pci, a.partition) == (b.pci, b.partition) and a.cus & b.cus
        if not one.takes_turns_with(other)
    ]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("WORK_SECONDS", 0.6),
        ("FIND_SECONDS", 0.4),
        ("READ_BACK_SECONDS", 0.2),
        ("CLEAN_SECONDS", 0.3),
    ):
        monkeypatch.setattr(allocate, name, seconds)
    monkeypatch.setattr(retries, "LONGEST_SECONDS", 0.3)
    monkeypatch.setattr(pods, "RETRY_SECONDS", (0.05, 0.2))


def only(method: str, part: str, fault: Fault, times: int = 1) -> Any:
    """Return a function that gives so many matching requests a fault."""
    left = [times]

    def decide(request: Request) -> Fault:
        if request.method == method and part in request.path and not request.watch and left[0]:
            left[0] -= 1
            return fault
        return NO_FAULT

    return decide


ONCE = [
    Fault(status=500),
    Fault(status=429, retry_after=1),
    Fault(status=503),
    Fault(reset_before=True),
    Fault(reset_after=True),
    Fault(delay=0.5),
]


@pytest.mark.parametrize("fault", ONCE, ids=str)
@pytest.mark.parametrize(
    ("method", "part"),
    [("GET", "/nodes/"), ("GET", "/pods/"), ("PATCH", "/pods/"), ("PATCH", "/nodes/")],
)
def test_one_fault_is_overcome(tmp_path: Path, fault: Fault, method: str, part: str) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        it.server.fault = only(method, part, fault)
        name = admit(it, document)
        assert name == f"pod-{document['metadata']['uid']}.main"
        come_to_rest(it)
        assert annotation(it.server.pod("default", "one"), "hami.io/bind-phase") == "success"
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        assert in_order(it)


def test_a_conflict_is_read_again(tmp_path: Path) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])

        def heartbeat(request: Request) -> Fault:
            # The node changes each time before the lock is released, three times.
            if request.method == "PATCH" and "/nodes/" in request.path and it.server.beats < 3:
                it.server.beats += 1
                it.server.annotate_node(NODE, {"beat": str(it.server.beats)})
            return NO_FAULT

        it.server.beats = 0
        it.server.fault = heartbeat
        assert isinstance(admit(it, document), str)
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        assert it.server.beats == 3


def test_an_outage_after_the_patch_was_applied(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])

        def decide(request: Request) -> Fault:
            if request.method == "PATCH":
                it.server.down = True
                return Fault(reset_after=True)
            return Fault(reset_before=it.server.down)

        it.server.down = False
        it.server.fault = decide
        error = admit(it, document)
        assert isinstance(error, TemporaryError)
        come_to_rest(it)
        await_that(lambda: in_order(it))
        # Kubelet was told that it failed, so that is what HAMi hears in the end.
        assert not it.scene.shares
        assert annotation(it.server.pod("default", "one"), "hami.io/bind-phase") == "failed"
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))


def test_real_deadlines_keep_to_ten_seconds(tmp_path: Path) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        it.server.fault = lambda request: Fault(
            delay=4 if request.method == "PATCH" else 0, reset_before=request.method == "PATCH"
        )
        assert isinstance(admit(it, document), TemporaryError)
        come_to_rest(it)
        assert annotation(it.server.pod("default", "one"), "hami.io/bind-phase") == "failed"
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))


def test_a_ledger_that_another_process_locks_is_waited_for_and_given_up(tmp_path: Path) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        with lock(tmp_path / "var/lib/amd-cdi", name=LOCK_FILE):
            error = admit(it, document)
        assert isinstance(error, TemporaryError)
        assert "another process has held the lock" in error.message
        assert annotation(it.server.pod("default", "one"), "hami.io/bind-phase") == "failed"
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        after = bind(it.server, "two", [Ask(cores=25, memory=1024)])
        assert isinstance(admit(it, after), str)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            error = admit(it, document)
        assert isinstance(error, TemporaryError)
        assert "No space left on device" in error.message
        failed = it.server.pod("default", "one")
        assert annotation(failed, "hami.io/bind-phase") == "failed"
        # It was not told of CUs that it never got.
        assert annotation(failed, "hami.io/amd-cu-allocated") is None
        waits = "hami.io/amd-devices-to-allocate"
        assert annotation(failed, waits) == document["metadata"]["annotations"][waits]
        come_to_rest(it)
        assert in_order(it)
        after = bind(it.server, "two", [Ask(cores=25, memory=1024)])
        assert isinstance(admit(it, after), str)


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_outage_longer_than_the_lock_leaves_it_to_expire(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodelock, "EXPIRE_SECONDS", 1.0)
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        it.server.fault = lambda request: Fault(reset_before=True)
        assert isinstance(admit(it, document), TemporaryError)
        time.sleep(1.5)
        come_to_rest(it)
        # The scheduler finds it stale and takes it for the next pod.
        after = bind(it.server, "two", [Ask(cores=25, memory=1024)])
        lock = it.server.annotations(NODE)["hami.io/mutex.lock"]
        assert admit(it, after) == f"pod-{after['metadata']['uid']}.main"
        assert lock.endswith(",two")
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))


def crashed(it: Rig, *, told: bool) -> Rig:
    """Let the process die before or after it has told the pod; return the one after it."""
    patch = it.hami.cluster.patch_pod

    def crash(*arguments: Any) -> None:
        if told:
            patch(*arguments)
        raise KeyboardInterrupt

    it.hami.cluster.patch_pod = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        it.hami.allocate(["any"])
    assert not it.scene.shares
    it.watch.stop()
    it.server.break_watches()
    again = build(it.root, it.server)
    assert again.reconciler.done.wait(10)
    return again


def test_a_crash_amid_an_allocation_is_cleared_up(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        again = crashed(it, told=False)
        # Kubelet has not heard of it, and the next process finds a slot that still waits.
        assert not again.scene.shares
        assert it.server.annotations(NODE)["hami.io/mutex.lock"].endswith(",one")
        it.server.change_pod("default", "one", {"status": {"phase": "Failed"}})
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        await_that(
            lambda: annotation(it.server.pod("default", "one"), "hami.io/bind-phase") == "failed"
        )
        assert document
        again.watch.stop()


def test_a_crash_after_the_pod_was_told_is_cleared_up(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        again = crashed(it, told=True)
        # The next process believes the pod, until kubelet fails it for want of an answer.
        assert list(again.scene.shares) == [f"pod-{document['metadata']['uid']}.main"]
        assert list(again.scene.shares) == [name for name in again.scene.devices if "pod-" in name]
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        it.server.change_pod("default", "one", {"status": {"phase": "Failed"}})
        await_that(lambda: not again.scene.shares)
        again.watch.stop()


@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "booked anew"])
def test_what_the_watch_has_not_told_yet_is_found_out(
    tmp_path: Path, short: None, anew: bool
) -> None:
    with rig(tmp_path) as it:
        first = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        await_that(lambda: it.hami.pods.named("default", "one") is not None)
        known = it.hami.pods.named("default", "one")
        assert known is not None
        it.watch.stop()
        it.server.break_watches()
        if anew:
            it.server.delete_pod("default", "one")
            it.server.annotate_node(NODE, {"hami.io/mutex.lock": None})
            document = bind(it.server, "one", [Ask(cores=50, memory=1024)])
        else:
            waits = "hami.io/amd-devices-to-allocate"
            slots = str(annotation(first, waits)).replace(",24:", ",48:")
            patch = {"metadata": {"annotations": {waits: slots}}}
            document = it.server.change_pod("default", "one", patch)
        it.hami.pods.remove(document["metadata"]["uid"])
        it.hami.pods.put(known)
        name = admit(it, document)
        assert name == f"pod-{document['metadata']['uid']}.main"
        assert list(it.scene.shares) == [name]
        # 50 % of 96 CUs. The watch told of 25.
        assert it.scene.shares[name].slices[0].cus.bit_count() == 48
        assert annotation(it.server.pod("default", "one"), "hami.io/bind-phase") == "success"


def plain(it: Rig) -> None:
    """Add a pod that waits for one GPU as well, which HAMi did not schedule."""
    container = {"name": "main", "resources": {"limits": {"amd.com/gpu": "1"}}}
    it.server.add_pod(
        {
            "metadata": {"name": "plain", "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [container]},
            "status": {"phase": "Pending"},
        }
    )
    await_that(lambda: it.hami.pods.named("default", "plain") is not None)


def a_unit(it: Rig) -> str:
    return min(devices.by_device_id(it.inventory.state.units))


def test_a_reply_that_stays_lost_gives_no_other_pods_share(tmp_path: Path) -> None:
    with rig(tmp_path) as it:
        plain(it)
        bind(it.server, "one", [Ask(cores=25, memory=1024)])
        await_that(lambda: it.hami.pods.named("default", "one") is not None)
        lost: list[float] = []

        def decide(request: Request) -> Fault:
            # Done, and the reply is lost; until it would have been read back there is no answer.
            if request.method == "PATCH" and not lost:
                lost.append(time.monotonic())
                return Fault(reset_after=True)
            reads = request.method == "GET" and request.path.endswith("/pods/one")
            away = reads and lost and time.monotonic() < lost[0] + allocate.READ_BACK_SECONDS + 0.3
            return Fault(reset_before=bool(away))

        it.server.fault = decide
        with pytest.raises(TemporaryError, match="default/one"):
            it.hami.allocate([a_unit(it)])
        come_to_rest(it)
        assert not it.scene.shares
        failed = it.server.pod("default", "one")
        assert annotation(failed, "hami.io/bind-phase") == "failed"
        assert annotation(failed, "hami.io/amd-cu-allocated") is None


def test_a_disk_that_fails_after_the_pod_was_told_fails_that_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(tmp_path) as it:
        plain(it)
        bind(it.server, "one", [Ask(cores=25, memory=1024)])
        await_that(lambda: it.hami.pods.named("default", "one") is not None)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", read_only)
            with pytest.raises(PermanentError, match=r"default/one: .*Read-only file system"):
                it.hami.allocate([a_unit(it)])
        come_to_rest(it)
        assert not it.scene.shares
        failed = it.server.pod("default", "one")
        assert annotation(failed, "hami.io/bind-phase") == "failed"
        assert annotation(failed, "hami.io/amd-cu-allocated") is None


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), "here")


def test_a_ledger_that_is_removed_meanwhile_gives_nothing_twice(tmp_path: Path) -> None:
    with rig(tmp_path) as it:
        names = [admit(it, bind(it.server, "one", [Ask(cores=40, memory=1024)]))]
        come_to_rest(it)
        (tmp_path / "var/lib/amd-cdi/ledger.json").unlink()
        names.append(admit(it, bind(it.server, "two", [Ask(cores=40, memory=1024)])))
        assert list(it.scene.shares) == sorted(names)
        assert not overlaps(it)
        come_to_rest(it)
        assert in_order(it)


def test_what_pods_that_are_gone_had_is_not_waited_for(tmp_path: Path) -> None:
    """The scheduler books it as soon as they are gone; here nobody gives it back meanwhile."""
    with rig(tmp_path) as it:
        first = admit(it, bind(it.server, "one", [Ask(cores=75, memory=1024)]))
        it.reconciler.chores = Retries()
        it.server.delete_pod("default", "one")
        await_that(lambda: it.hami.pods.named("default", "one") is None)
        assert first in it.scene.shares
        second = admit(it, bind(it.server, "two", [Ask(cores=75, memory=1024)]))
        assert list(it.scene.shares) == [second]
        assert [name for name in it.scene.devices if "pod-" in name] == [second]
        # What lives is nobody else's all the same.
        third = admit(it, bind(it.server, "three", [Ask(cores=75, memory=1024)]))
        assert isinstance(third, PermanentError)
        assert list(it.scene.shares) == [second]


def test_giving_shares_back_does_not_keep_allocations_from_their_turn(tmp_path: Path) -> None:
    with rig(tmp_path) as it:
        name = admit(it, bind(it.server, "one", [Ask(cores=25, memory=1024)]))
        with lock(it.root / "var/lib/amd-cdi", name=LOCK_FILE):
            it.server.delete_pod("default", "one")
            await_that(it.hami.turn.locked)
            assert it.hami.turn.acquire(timeout=2.5)
            it.hami.turn.release()
            assert name in it.scene.shares
        await_that(lambda: not it.scene.shares)


def test_a_crash_before_the_lock_is_released_is_cleared_up(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        it.hami.releases = Retries()  # Nobody runs them, as in a process that died.
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        name = admit(it, document)
        it.watch.stop()
        it.server.break_watches()
        assert it.server.annotations(NODE)["hami.io/mutex.lock"].endswith(",one")
        again = build(it.root, it.server)
        await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
        assert name in again.scene.shares
        again.watch.stop()


def test_the_lock_of_a_pod_that_is_being_bound_is_left_alone(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        it.watch.stop()
        it.server.break_watches()
        bind(it.server, "one", [Ask(cores=25, memory=1024)])
        again = build(it.root, it.server)
        assert again.reconciler.done.wait(10)
        assert again.retries.wait_until_done(10)
        assert it.server.annotations(NODE)["hami.io/mutex.lock"].endswith(",one")
        again.watch.stop()


def test_the_lock_of_a_later_pod_is_not_released_for_an_earlier_one(
    tmp_path: Path, short: None
) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "set-0", [Ask(cores=25, memory=1024)])
        it.server.fault = only("PATCH", "/", Fault(reset_before=True), 1000)
        assert isinstance(admit(it, document), TemporaryError)
        it.server.delete_pod("default", "set-0")
        bind(
            it.server,
            "set-0",
            [Ask(cores=25, memory=1024)],
            lock_text="2030-01-01T00:00:00Z,default,set-0",
        )
        come_to_rest(it)
        assert it.server.annotations(NODE)["hami.io/mutex.lock"].startswith("2030")
        assert annotation(it.server.pod("default", "set-0"), "hami.io/bind-phase") == "allocating"


def test_the_watch_comes_back(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        for number in range(600):
            document = bind(it.server, f"crowd-{number}", [Ask(cores=1, memory=16)], lock=False)
            it.server.change_pod(
                "default",
                f"crowd-{number}",
                {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}},
            )
        it.server.store.compact()
        # 410, and a list in three chunks whose second page fails once.
        it.server.fault = only("GET", "/api/v1/pods", Fault(status=500))
        it.server.break_watches()
        document = bind(it.server, "late", [Ask(cores=25, memory=1024)], lock=False)
        await_that(lambda: len(it.hami.pods.all()) == 601)
        it.server.fault = lambda request: NO_FAULT
        assert admit(it, document) == f"pod-{document['metadata']['uid']}.main"
        it.server.break_watches()
        it.server.delete_pod("default", "late")
        await_that(lambda: not it.scene.shares)


def test_a_pod_deleted_while_nothing_was_followed_is_noticed(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        document = bind(it.server, "one", [Ask(cores=25, memory=1024)])
        assert isinstance(admit(it, document), str)
        it.server.fault = lambda request: Fault(status=503 if request.watch else 0)
        it.server.break_watches()
        it.server.delete_pod("default", "one")
        it.server.store.compact()
        time.sleep(0.3)
        assert len(it.scene.shares) == 1
        it.server.fault = lambda request: NO_FAULT
        await_that(lambda: not it.scene.shares)


def test_a_slow_watch_does_not_cost_a_share(tmp_path: Path, short: None) -> None:
    with rig(tmp_path) as it:
        it.server.watch_delay = 0.2
        names = []
        for number in range(5):
            document = bind(it.server, f"pod-{number}", [Ask(cores=15, memory=1024)])
            names.append(admit(it, document))
        it.server.store.compact()
        it.server.break_watches()
        time.sleep(1)
        assert sorted(names) == sorted(it.scene.shares)
        it.server.watch_delay = 0.0


FAULTS = st.sampled_from(
    [
        NO_FAULT,
        NO_FAULT,
        NO_FAULT,
        Fault(status=500),
        Fault(status=429, retry_after=1),
        Fault(reset_before=True),
        Fault(reset_after=True),
        Fault(delay=0.05),
        Fault(delay=0.7),
    ]
)
STEPS = st.one_of(
    st.tuples(
        st.just("pod"), st.integers(1, 100), st.integers(1, 2), st.lists(FAULTS, max_size=14)
    ),
    st.tuples(st.just("end"), st.integers(0, 9), st.booleans(), st.lists(FAULTS, max_size=4)),
    st.tuples(st.just("restart"), st.just(0), st.just(0), st.just([])),
    st.tuples(st.just("compact"), st.just(0), st.just(0), st.just([])),
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
def test_whatever_the_faults_ledger_specs_and_pods_agree_at_rest(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        with rig(tmp_path_factory.mktemp("rig")) as it:
            given_out: dict[str, Any] = {}
            for number, step in enumerate(steps):
                play(it, number, step, given_out)
                assert not overlaps(it)
            come_to_rest(it)
            await_that(
                lambda: (
                    it.retries.wait_until_done(5) and it.chores.wait_until_done(5) and in_order(it)
                )
            )
            await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
            assert not overlaps(it)
            assert {name for name, pod in given_out.items() if it.server.pod(*pod)} >= set(
                it.scene.shares
            )


def play(it: Rig, number: int, step: Any, given_out: dict[str, Any]) -> None:
    kind, amount, extra, faults = step
    queue = list(faults)
    it.server.fault = lambda request: queue.pop(0) if queue and not request.watch else NO_FAULT
    if kind == "pod":
        if "hami.io/mutex.lock" in it.server.annotations(NODE):
            # The scheduler waits until the lock is released.
            decide = it.server.fault
            come_to_rest(it)
            await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
            it.server.fault = decide
        gpus = registered(it.server)[:extra]
        kinds = (["init"], ["sidecar"], ["init", "sidecar"], [])[amount % 4]
        asks = [
            Ask(f"c{position}", kind=kind, gpus=extra, cores=amount, memory=512)
            for position, kind in enumerate([*kinds, "app"])
        ]
        document = bind(it.server, f"pod-{number}", asks, [gpus] * len(asks))
        for position, ask in enumerate(asks):
            name = admit(it, document, extra, position)
            if isinstance(name, AmdCdiError):
                # Without a fault there is no other reason than that it does not fit.
                assert faults or isinstance(name, PermanentError)
                break
            assert name == f"pod-{document['metadata']['uid']}.{ask.name}"
            assert name in it.scene.shares
            given_out[name] = ("default", f"pod-{number}")
    elif kind == "end":
        living = [one for one in it.server.pods() if one["status"]["phase"] == "Pending"]
        if living:
            metadata = living[amount % len(living)]["metadata"]
            place = (metadata["namespace"], metadata["name"])
            if extra:
                it.server.delete_pod(*place)
            else:
                it.server.change_pod(*place, {"status": {"phase": "Succeeded"}})
    elif kind == "compact":
        it.server.store.compact()
        it.server.break_watches()
    else:
        it.watch.stop()
        it.server.break_watches()
        it.retries.wait_until_done(10)
        vars(it).update(vars(build(it.root, it.server)))
        assert it.reconciler.done.wait(10)
