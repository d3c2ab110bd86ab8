"""What the device plugin costs, with 640 shares living on 64 partitions.

Run as ``python -m tests.bench.plugin``. The plugin is a process of its own, as it is installed;
kubelet's side and the API server are in this one. A share is durable before kubelet has its
answer, so the disk counts: see ``--directory``. A loop of so many steps, measured in turns with the
Allocates, tells how fast the machine was meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdi import cumask
from cdi.node import sample, topology
from tests.bench.report import Figure, show
from tests.plugin.api_server import ApiServer
from tests.plugin.kubelet_side import KubeletSide
from tests.plugin.scheduler import NODE, Ask, bind, pod, registered

PER_PARTITION = 10
CORES = 10
"""Per cent of a partition's 38 CUs: 3 CUs, so that 10 shares fit and 8 CUs are free."""

ALLOCATES = 300
IDLE_SECONDS = 20.0


@contextmanager
def running(root: Path, kubelet: KubeletSide, server: ApiServer) -> Iterator[tuple[int, Path]]:
    """Run the plugin until left; yield its process id and its log once it is registered."""
    config = root / "kubeconfig"
    config.write_text(server.kubeconfig)
    arguments = [
        f"--sysroot={root}",
        f"--runtime-socket={root}/containerd.sock",
        f"--kubelet-dir={kubelet.directory}",
        f"--split-count={PER_PARTITION + 2}",
        f"--node-name={NODE}",
    ]
    code = "from deviceplugin.command import main; main()"
    log = root / "plugin.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "KUBECONFIG": str(config)},
            stderr=file,
        )
    try:
        kubelet.await_devices(seconds=60)
        while "hami.io/node-amd-register" not in server.annotations(NODE):
            time.sleep(0.01)
        yield process.pid, log
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def bounded(directory: Path) -> Iterator[None]:
    """Mount what usage regions lie on, where this user may: without it shares have none."""
    directory.mkdir(parents=True)
    if os.geteuid():
        yield
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def reconciled(log: Path) -> float:
    """Return the seconds that bringing ledger and pods together took."""
    until = time.monotonic() + 60
    while not (told := re.search(r"agree on 640 shares, in ([0-9.]+) s", log.read_text())):
        assert time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.1)
    return float(told[1])


def fill(server: ApiServer, root: Path) -> None:
    """Let 640 pods have shares, as their annotations tell."""
    node = topology.read_node(root)
    for gpu in node.gpus:
        for partition in gpu.partitions:
            unit = f"GPU-{gpu.unique_id:016x}-{partition.index}"
            for number in range(PER_PARTITION):
                slot = f"{unit},{gpu.product},512,3:;"
                document = pod(f"full-{gpu.index}-{partition.index}-{number}", [Ask()])
                document["status"]["phase"] = "Running"
                document["metadata"]["annotations"] = {
                    "hami.io/vgpu-node": NODE,
                    "hami.io/bind-phase": "success",
                    "hami.io/amd-devices-to-allocate": ";",
                    "hami.io/amd-devices-allocated": slot,
                    "hami.io/amd-cu-allocated": (
                        f'{{"{unit}":"{cumask.format_cus(cumask.span(3 * number, 3))}"}}'
                    ),
                }
                server.add_pod(document)


def allocate(
    server: ApiServer, kubelet: KubeletSide, devices: list[Any], number: int
) -> tuple[float, int]:
    """Allocate a share and give it back; return seconds and API round trips."""
    device = devices[number % len(devices)]
    name = f"new-{number}"
    document = bind(server, name, [Ask(cores=CORES, memory=512)], [[device]])
    mark = len(server.requests)
    began = time.perf_counter()
    answer = kubelet.allocate(["any"])
    took = time.perf_counter() - began
    while "hami.io/mutex.lock" in server.annotations(NODE):
        time.sleep(0.001)
    trips = len(server.count(mark))
    assert answer.cdi_devices[0].name.endswith(f"{document['metadata']['uid']}.main")
    server.delete_pod("default", name)
    return took, trips


def rest(root: Path) -> None:
    """Wait until what was given back before is out of the reservations."""
    ledger = root / "var/lib/amd-cdi/ledger.json"
    until = time.monotonic() + 5
    while ledger.read_bytes().count(b'"name"') > 640 and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.02)


def spin() -> float:
    """Return the seconds of a loop of 100,000 steps, for comparison."""
    began = time.perf_counter()
    for _ in range(100_000):
        pass
    return time.perf_counter() - began


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    told = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(told[1]) / 1024 if told else 0.0


def processor(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(folder: Path, allocates: int = ALLOCATES, more: int = 0) -> list[Figure]:
    """Measure the plugin on a node that is laid out in a folder."""
    root = folder / "plugin"
    root.mkdir()
    sample.expand("mi300x-cpx", root)
    kubelet = KubeletSide(root / "kubelet")
    server = ApiServer().start()
    server.bookmark_seconds = 60
    server.add_node(NODE)
    fill(server, root)
    found = []
    try:
        with bounded(root / "run/amd-cdi/usage"):
            kubelet.start()
            with running(root, kubelet, server) as (_, log):
                found.append(Figure("adopt 640 shares of a lost ledger", reconciled(log), "s"))
            kubelet.start()
            with running(root, kubelet, server) as (pid, log):
                found.append(Figure("reconcile 640 shares at start", reconciled(log), "s", 2.0))
                found += _calls(root, kubelet, server, pid, allocates)
                found += _size(kubelet, server, pid, more)
    finally:
        kubelet.stop()
        server.stop()
    return found


def _calls(
    root: Path, kubelet: KubeletSide, server: ApiServer, pid: int, allocates: int
) -> list[Figure]:
    devices = registered(server)
    for number in range(20):
        allocate(server, kubelet, devices, number)
    times, loops, trips = [], [], 0
    used = processor(pid)
    for number in range(allocates):
        rest(root)
        took, count = allocate(server, kubelet, devices, 100 + number)
        times.append(1000 * took)
        trips = max(trips, count)
        loops.append(1000 * spin())
    used = processor(pid) - used
    times.sort()
    half, loop = times[len(times) // 2], statistics.median(loops)
    return [
        Figure("Allocate, median", half, "ms", 30),
        Figure("Allocate, 99 of 100", times[len(times) * 99 // 100], "ms", 80),
        Figure("Allocate, median, by loops of 100,000 steps", half / loop, "x"),
        Figure("a loop of 100,000 steps, median", loop, "ms"),
        Figure("processor time of giving and taking back", 1000 * used / allocates, "ms"),
        Figure("API round trips, at most", trips, "", 4),
    ]


def _size(kubelet: KubeletSide, server: ApiServer, pid: int, more: int) -> list[Figure]:
    devices = registered(server)
    found = [Figure("resident memory", resident(pid), "MiB", 80)]
    for number in range(more):
        allocate(server, kubelet, devices, 100_000 + number)
        if number % 500 == 499:
            del server.requests[:]
            server.store.compact()
        if number + 1 in {more // 2, more}:
            memory = resident(pid)
            found.append(Figure(f"resident memory after {number + 1} more", memory, "MiB", 80))
    used = processor(pid)
    time.sleep(IDLE_SECONDS)
    idle = 100 * (processor(pid) - used) / IDLE_SECONDS
    return [*found, Figure("idle, of one processor", idle, "%", 0.5)]


def main() -> int:
    """Print the figures; exit status 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocates", type=int, default=ALLOCATES)
    parser.add_argument("--more", type=int, default=0, help="further ones, to see memory grow")
    parser.add_argument("--directory", default=None, help="where the node's files lie")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        kept = show("Device plugin", figures(Path(folder), given.allocates, given.more))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
