"""Many commands at once, and commands that are killed: nothing is lost and nothing half."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import yaml

from cdi.spec import registry
from cdi.state import ledger
from cdi.state.store import LOCK_FILE
from tests.cli.conftest import MakeHost
from tests.cli.host import Host, Result

KILLS = 60


def offered(host: Host) -> set[str]:
    document = yaml.load(host.spec_file.read_bytes(), yaml.CSafeLoader)
    return {device["name"] for device in document["devices"]}


def booked(host: Host) -> dict[str, str]:
    """Return the CU list of each share, and check that no two overlap."""
    shares = ledger.load(host.state_dir).shares
    taken: dict[str, int] = {}
    for share in shares:
        for part in share.slices:
            assert not taken.get(part.pci, 0) & part.cus, share.name
            taken[part.pci] = taken.get(part.pci, 0) | part.cus
    return {share["name"]: share["slices"][0]["cus"] for share in host.ledger()["shares"]}


def test_64_commands_at_once_lose_nothing(on: MakeHost) -> None:
    host = on("mi300x")
    names = [f"n{number}" for number in range(56)]

    def create(name: str) -> Result:
        # 38 atoms a GPU: seven shares of five of them on each of the eight.
        gpu = str(names.index(name) % 8)
        return host.share(
            "create", name, "--gpu", gpu, "--cus", "40", "--memory", "25GiB", "--json"
        )

    with ThreadPoolExecutor(64) as pool:
        shares = [pool.submit(create, name) for name in names]
        generates = [pool.submit(host.generate) for _ in range(8)]
        results = [future.result() for future in (*shares, *generates)]
    assert [result.err for result in results if result.status] == []
    assert set(booked(host)) == {f"share-{name}" for name in names}
    told = {result.json["device"]: result.json["slices"] for result in results[:56]}
    for share in host.ledger()["shares"]:
        assert told[f"amd.com/gpu={share['name']}"] == share["slices"]
    assert offered(host) >= set(booked(host))
    assert host.run("diff").done()
    assert {path.name for path in host.spec_dir.iterdir()} == {"amd.com-gpu.yaml", LOCK_FILE}
    assert {path.stem for path in (host.state_dir / "shares").iterdir()} == set(booked(host))


def test_the_last_place_goes_to_one_of_many(radeons: Host) -> None:
    with ThreadPoolExecutor(12) as pool:
        results = list(
            pool.map(
                lambda name: radeons.share("create", name, "--gpu", "0", "--cus", "40"),
                [f"n{number}" for number in range(12)],
            )
        )
    # 100 % of memory each: whoever was first has it all.
    assert sorted(result.status for result in results) == [0] + [1] * 11
    assert len(booked(radeons)) == 1
    assert all("is free" in result.err for result in results if result.status)


def test_killed_commands_leave_the_old_or_the_new(radeons: Host) -> None:
    radeons.generate().done()
    began = time.monotonic()
    radeons.share("create", "first", "--gpu", "0", "--cus", "2", "--memory", "1MiB").done()
    takes = time.monotonic() - began
    chance = random.Random(7)
    names = {"first"}
    died = 0
    for number in range(KILLS):
        before = set(booked(radeons))
        if number % 3 == 2 and names:
            victim = min(names)
            process = radeons.start("share", "remove", victim)
            after = before - {f"share-{victim}"}
        else:
            victim = f"n{number}"
            gpu = str(number % 2)
            process = radeons.start(
                "share", "create", victim, "--gpu", gpu, "--cus", "2", "--memory", "1MiB"
            )
            after = before | {f"share-{victim}"}
        died += kill_within(process, chance.uniform(0.2, 1.1) * takes)
        now = set(booked(radeons))
        assert now in (before, after)
        names = {name.removeprefix("share-") for name in now}
        # The spec is whole, and says what the ledger said before or says now.
        (entry,) = [registry.load(path) for path in registry.paths_in(radeons.spec_dir)]
        shares = {name.rpartition("=")[2] for name in entry.devices if "=share-" in name}
        assert shares in (before, after)
    assert died > KILLS // 3, "the kills came too late to prove anything"
    radeons.generate().done()
    assert {name for name in offered(radeons) if name.startswith("share-")} == set(booked(radeons))
    assert {path.name for path in radeons.spec_dir.iterdir()} == {"amd.com-gpu.yaml", LOCK_FILE}
    assert {path.stem for path in (radeons.state_dir / "shares").iterdir()} == set(booked(radeons))
    assert radeons.run("validate").done()


def kill_within(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kill a process after a time; say whether it had not ended by then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL
