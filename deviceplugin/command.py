"""``amd-device-plugin``: puts the parts together and runs them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial

from cdi.errors import AmdCdiError
from cdi.files import LOCK_SECONDS
from cdi.state.paths import Paths
from cdi.state.store import missing
from deviceplugin import cluster, devices, health, log, malloc
from deviceplugin.allocate import Hami
from deviceplugin.cluster import Cluster
from deviceplugin.events import Events
from deviceplugin.health import Health
from deviceplugin.inventory import Allocator, Inventory, Resource, State
from deviceplugin.kubelet import Kubelet
from deviceplugin.options import Options, parse
from deviceplugin.pods import Pods, PodWatch
from deviceplugin.publisher import Publisher
from deviceplugin.reconcile import Reconciler
from deviceplugin.reservations import Reservations
from deviceplugin.retries import Retries
from deviceplugin.runtime import Runtime
from deviceplugin.whole import WholeGpus

START_SECONDS = 10.0
"""How long the API server may take before kubelet is served from the ledger alone."""

STOP_SECONDS = 2.0
"""How long each thing that is left to tell the API server may keep this process from stopping."""


def main() -> None:
    """Run until told to stop: exit status 0, 1 if it could not start, 2 if used wrongly."""
    options = parse(sys.argv[1:], os.environ)
    malloc.limit_arenas()
    log.configure(options.log_format, options.log_level)
    stopping = threading.Event()
    try:
        run(options, cluster.connect(), stopping, _on_signals)
    except AmdCdiError as error:
        log.log.error("%s", error)
        status = 1
    except Exception as error:  # noqa: BLE001 -- a user never sees a traceback
        log.log.error("unexpected %s: %s", type(error).__name__, error)
        log.log.debug("it came from here", exc_info=True)
        status = 1
    else:
        status = 0
    sys.stderr.flush()
    # Threads that wait for the API server or for kubelet have nothing to finish.
    os._exit(status)


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def run(
    options: Options,
    api: Cluster | None,
    stopping: threading.Event,
    on_stop: Callable[[Callable[[], None]], None],
) -> None:
    """Serve kubelet until stopped; ``on_stop`` is given what stops it. Raises AmdCdiError."""
    paths = Paths(options.sysroot, options.spec_dir, options.state_dir, options.usage_dir)
    node = health.read_node(options.sysroot)
    # Nobody but HAMi shares GPUs between pods.
    split_count = options.split_count if api is not None else 1
    units = devices.units(node, split_count, options.device_memory_scaling)
    reservations = Reservations(paths, node, options.settings)
    inventory = Inventory(options.resource_naming_strategy, options.allocator_policy)
    inventory.become(State(units))
    if node.gpus:
        for warning in missing(reservations.refresh(node, LOCK_SECONDS), paths):
            log.log.warning("%s", warning)
    retries, releases, chores = Retries(), Retries(), Retries()
    events = Events(api, retries, options.node_name)
    runtime = Runtime(options.runtime_sockets, options.spec_dir)
    allocator: Allocator = WholeGpus(reservations, inventory, runtime)
    loops: list[Callable[[], None]] = [retries.run, releases.run, chores.run]
    on_stopping: list[Callable[[], None]] = [stopping.set]
    on_stopped: list[Callable[[], object]] = [partial(releases.wait_until_done, STOP_SECONDS)]
    on_change: list[Callable[[], None]] = []
    reconciled = threading.Event()
    if api is None:
        log.log.info("no cluster is configured: GPUs are served whole")
        reconciled.set()
    else:
        turn = threading.Lock()
        pods = Pods()
        reconciler = Reconciler(
            reservations,
            inventory,
            api,
            pods,
            chores,
            retries,
            events,
            turn,
            options.node_name,
            reconciled,
        )
        publisher = Publisher(api, options.node_name, inventory)
        allocator = Hami(
            reservations,
            inventory,
            runtime,
            api,
            options.node_name,
            pods,
            retries,
            releases,
            events,
            turn,
            options.device_memory_scaling,
        )
        watch = PodWatch(api, options.node_name, pods, reconciler)
        loops += [watch.run, partial(publisher.run, stopping)]
        on_change += [publisher.due.set, reconciler.again]
        on_stopping.append(watch.stop)
        on_stopped.append(partial(publisher.withdraw, STOP_SECONDS))
    kubelet = Kubelet(options.kubelet_dir, lambda name: Resource(name, inventory, allocator))
    on_stopping.append(kubelet.stop)

    def changed() -> None:
        kubelet.offer(inventory.resources)
        _call(on_change)

    look = Health(
        reservations,
        inventory,
        events,
        split_count,
        options.device_memory_scaling,
        options.pulse,
        changed,
    )
    look.look(LOCK_SECONDS)
    loops.append(partial(look.run, stopping))
    for loop in loops:
        threading.Thread(target=loop, daemon=True).start()

    on_stop(partial(_call, on_stopping))
    if not reconciled.wait(START_SECONDS):
        log.log.warning(
            "the pods of this node are not known yet: kubelet is served from the ledger"
        )
    kubelet.offer(inventory.resources)
    malloc.trim()
    log.log.info(
        "serving %d GPUs or partitions of node %s in %s",
        len(units),
        options.node_name,
        options.kubelet_dir,
    )
    kubelet.run()
    _call(on_stopped)


def _call(functions: Iterable[Callable[[], object]]) -> None:
    for function in functions:
        function()
