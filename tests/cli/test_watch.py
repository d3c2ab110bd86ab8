"""generate --watch: the spec follows GPUs that come, go and are repartitioned."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import MakeHost
from tests.cli.host import Host, finish
from tests.cli.test_pod_specs import POD, give

SECONDS = 20
"""A refresh takes about one; a machine that does much else is waited for."""


@pytest.fixture
def host(own: MakeHost) -> Host:
    return own("rx7900xtx")


@pytest.fixture
def watcher(host: Host) -> Iterator[subprocess.Popen[str]]:
    process = host.start("generate", "--watch", "--device-name-strategy", "index")
    yield process
    process.kill()
    process.communicate()


def names(host: Host) -> list[str]:
    try:
        document = yaml.safe_load(host.spec_file.read_bytes())
    except FileNotFoundError:
        return []
    return [device["name"] for device in document["devices"]]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the spec did not follow"
        time.sleep(0.05)


def gpu_folder(host: Host, pci: str) -> Path:
    return host.sysroot / "sys/bus/pci/drivers/amdgpu" / pci


def change_generation(host: Host, number: int) -> None:
    path = host.sysroot / "sys/class/kfd/kfd/topology/generation_id"
    path.write_text(f"{number}\n")


def test_a_gpu_goes_and_comes_back(host: Host, watcher: subprocess.Popen[str]) -> None:
    eventually(lambda: names(host) == ["0", "1", "all"])
    link = gpu_folder(host, "0000:43:00.0")
    target = link.readlink()
    link.unlink()
    change_generation(host, 100)
    eventually(lambda: names(host) == ["0", "all"])
    link.symlink_to(target)
    change_generation(host, 101)
    eventually(lambda: names(host) == ["0", "1", "all"])
    watcher.send_signal(signal.SIGTERM)
    result = finish(watcher)
    assert result.status == 0
    assert result.out.count("wrote") == 3
    assert names(host) == ["0", "1", "all"]
    assert {path.name for path in host.spec_dir.iterdir()} == {host.spec_file.name, ".amd-cdi.lock"}


def test_a_share_waits_for_its_gpu(host: Host, watcher: subprocess.Popen[str]) -> None:
    eventually(lambda: names(host) != [])
    host.share("create", "x", "--gpu", "1", "--cores", "50", "--memory", "1GiB").done()
    assert "share-x" in names(host)
    link = gpu_folder(host, "0000:43:00.0")
    target = link.readlink()
    link.unlink()
    eventually(lambda: names(host) == ["0", "all"])
    assert [share["name"] for share in host.ledger()["shares"]] == ["share-x"]
    link.symlink_to(target)
    eventually(lambda: names(host) == ["0", "1", "share-x", "all"])
    watcher.send_signal(signal.SIGINT)
    result = finish(watcher)
    assert result.status == 130
    assert "Traceback" not in result.err
    assert "left out: share 'share-x': GPU 0000:43:00.0" in result.err


def test_all_gpus_gone_leaves_the_last_spec(host: Host, watcher: subprocess.Popen[str]) -> None:
    eventually(lambda: names(host) != [])
    before = host.spec_file.read_bytes()
    driver = gpu_folder(host, "")
    driver.rename(driver.with_name("gone"))
    time.sleep(2)
    assert watcher.poll() is None
    assert host.spec_file.read_bytes() == before
    driver.with_name("gone").rename(driver)
    host.spec_file.unlink()
    # Whoever removes the spec gets it back.
    eventually(host.spec_file.exists)
    watcher.terminate()
    assert "expected the amdgpu driver" in finish(watcher).err


def test_repartitioning(own: MakeHost) -> None:
    host = own("mixed")
    process = host.start("generate", "--watch", "--device-name-strategy", "index")
    try:
        eventually(lambda: "1:7" in names(host))
        put_into_spx(host)
        eventually(lambda: "1:7" not in names(host) and "1" in names(host))
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def other_bytes(path: Path) -> None:
    """Change a file in place, and neither its size nor when it was changed last."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        file.write(b"~")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def another_file(path: Path) -> None:
    path.with_name("theirs").write_bytes(path.read_bytes().replace(b"0", b"1"))
    path.with_name("theirs").rename(path)


def link(path: Path) -> None:
    target = path.rename(path.parent.parent / "theirs")
    path.symlink_to(target)


@pytest.mark.parametrize(
    "harm",
    [
        other_bytes,
        another_file,
        link,
        Path.unlink,
        lambda path: os.truncate(path, 10),
        lambda path: path.chmod(0o600),
    ],
    ids=["other bytes", "another file", "a link", "gone", "cut off", "closed to others"],
)
def test_whatever_is_done_to_a_file_is_put_right(
    host: Host, watcher: subprocess.Popen[str], harm: Callable[[Path], object]
) -> None:
    eventually(lambda: names(host) != [])
    host.share("create", "x", "--gpu", "1", "--cores", "50", "--memory", "1GiB").done()
    give(host, POD)
    pods_spec = host.spec_dir / f"amd.com-gpu_{POD}.yaml"
    files = (f"{POD}.conf", f"{POD}.args", "share-x.conf")
    values = [host.state_dir / "shares" / file for file in files]
    paths = [host.spec_file, pods_spec, *values]
    right = {path: path.read_bytes() for path in paths}

    def are_right() -> bool:
        return all(
            path.is_file()
            and not path.is_symlink()
            and path.stat().st_mode & 0o777 == 0o644
            and path.read_bytes() == right[path]
            for path in paths
        )

    # At rest and apart, as one that is seen has all looked at.
    time.sleep(3)
    for some in (values, [host.spec_file], [pods_spec]):
        for path in some:
            harm(path)
        eventually(are_right)
    assert watcher.poll() is None


def put_into_spx(host: Host) -> None:
    """Give the second GPU one partition: its KFD node takes the place of the eight."""
    nodes = host.sysroot / "sys/class/kfd/kfd/topology/nodes"
    # Bus 0x27, device 0: the function bits number the partitions.
    members = [node for node in nodes.iterdir() if _location(node) >> 3 == 0x2700 >> 3]
    assert len(members) == 8
    first, *rest = sorted(members, key=lambda node: int(node.name))
    for node in rest:
        shutil.rmtree(node)
    text = (first / "properties").read_text()
    for before, after in (("simd_count 152", "simd_count 1216"), ("num_xcc 1", "num_xcc 8")):
        assert f"{before}\n" in text
        text = text.replace(f"{before}\n", f"{after}\n")
    (first / "properties").write_text(text)
    folder = gpu_folder(host, "0000:27:00.0")
    (folder / "current_compute_partition").write_text("SPX\n")
    change_generation(host, 102)


def _location(node: Path) -> int:
    lines = (node / "properties").read_text().splitlines()
    return int(dict(line.split() for line in lines)["location_id"])
