"""What the device plugin costs, with 640 shares living on 64 partitions.

Run as ``python -m tests.bench.plugin``. The plugin is a process of its own, as it is installed;
kubelet's side and the API server are in this one. Times of Allocate stand beside what the disk
takes to make two small files durable, since each share is durable before kubelet has its answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdi import cumask, sample, topology
from tests.plugin.api_server import ApiServer
from tests.plugin.kubelet_side import KubeletSide
from tests.plugin.scheduler import NODE, Ask, bind, registered

PER_PARTITION = 10
CORES = 10
"""Per cent of a partition's 38 CUs: 3 CUs, so that 10 shares fit and 8 CUs are free."""


@contextmanager
def running(root: Path, kubelet: KubeletSide, server: ApiServer) -> Iterator[int]:
    """Run the plugin until left; yield its process id once it is registered."""
    config = root / "kubeconfig"
    config.write_text(server.kubeconfig)
    arguments = [
        f"--sysroot={root}",
        f"--kubelet-dir={kubelet.directory}",
        f"--split-count={PER_PARTITION + 2}",
        f"--node-name={NODE}",
        "--log-level=info",
    ]
    code = "from deviceplugin.command import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env={**os.environ, "KUBECONFIG": str(config)}
    )
    try:
        kubelet.await_devices(seconds=60)
        while "hami.io/node-amd-register" not in server.annotations(NODE):
            time.sleep(0.01)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def fill(server: ApiServer, root: Path) -> None:
    """Let 640 pods have shares, as their annotations tell."""
    node = topology.read_node(root)
    for gpu in node.gpus:
        for partition in gpu.partitions:
            unit = f"GPU-{gpu.unique_id:016x}-{partition.index}"
            for number in range(PER_PARTITION):
                slot = f"{unit},{gpu.product},512,3:;"
                document = bind_as_done(gpu.index, partition.index, number)
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


def bind_as_done(gpu: int, partition: int, number: int) -> dict[str, Any]:
    from tests.plugin.scheduler import pod

    document = pod(f"full-{gpu}-{partition}-{number}", [Ask()])
    document["status"]["phase"] = "Running"
    return document


def one(server: ApiServer, kubelet: KubeletSide, number: int) -> tuple[float, int]:
    """Allocate a share and give it back; return seconds and API round trips."""
    devices = registered(server)
    device = devices[number % len(devices)]
    document = bind(server, f"new-{number}", [Ask(cores=CORES, memory=512)], [[device]])
    mark = len(server.requests)
    began = time.perf_counter()
    answer = kubelet.allocate(["any"])
    took = time.perf_counter() - began
    trips = len(server.count(mark))
    assert answer.cdi_devices[0].name.endswith(f"{document['metadata']['uid']}.main")
    server.delete_pod("default", f"new-{number}")
    return took, trips


def disk(directory: Path) -> float:
    """Return the median seconds of making a file and its name durable."""
    times = []
    for _ in range(30):
        began = time.perf_counter()
        descriptor = os.open(directory / "new", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)
        os.close(descriptor)
        (directory / "new").rename(directory / "old")
        folder = os.open(directory, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def spin() -> float:
    """Return the milliseconds of a piece of plain Python, for comparison."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100_000):
            pass
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocates", type=int, default=300)
    parser.add_argument("--more", type=int, default=0, help="further ones, for memory")
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--directory", default=None, help="where the node's files lie")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        root = Path(folder)
        sample.expand("mi300x-cpx", root)
        kubelet = KubeletSide(root / "kubelet")
        kubelet.start()
        server = ApiServer().start()
        server.bookmark_seconds = 60
        server.add_node(NODE)
        fill(server, root)
        began = time.perf_counter()
        with running(root, kubelet, server) as pid:
            print(f"start with 640 shares to adopt, until registered: {since(began):.2f} s")
        kubelet.start()
        began = time.perf_counter()
        with running(root, kubelet, server) as pid:
            print(f"start with 640 shares in the ledger, until registered: {since(began):.2f} s")
            measure(given, root, kubelet, server, pid)
        kubelet.stop()
        server.stop()


def measure(
    given: argparse.Namespace, root: Path, kubelet: KubeletSide, server: ApiServer, pid: int
) -> None:
    for number in range(20):
        one(server, kubelet, number)
    times, trips = [], []
    floor = disk(root)
    used = processor(pid)
    for number in range(given.allocates):
        took, count = one(server, kubelet, 100 + number)
        times.append(took * 1000)
        trips.append(count)
        time.sleep(0.03)
    used = (processor(pid) - used) / given.allocates
    times.sort()
    print(
        f"Allocate: p50 {times[len(times) // 2]:.1f} ms, "
        f"p99 {times[len(times) * 99 // 100]:.1f} ms, at most {max(trips)} API round trips; "
        f"processor time {used * 1000:.1f} ms; "
        f"one durable file here: {floor * 1000:.1f} ms; a loop of 100,000 steps: {spin():.1f} ms"
    )
    print(f"resident memory: {resident(pid):.1f} MiB")
    for number in range(given.more):
        one(server, kubelet, 100_000 + number)
        del server.requests[:-10]
        if number % 1000 == 999:
            print(f"resident memory after {number + 1} more: {resident(pid):.1f} MiB")
            server.store.compact()
    used = processor(pid)
    time.sleep(given.idle)
    idle = (processor(pid) - used) / given.idle
    print(f"idle: {idle:.2%} of a core")


def since(began: float) -> float:
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
