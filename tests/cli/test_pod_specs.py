"""The shares of pods, which stand in specs of their own, as the commands of the node see them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from cdi.node import topology
from cdi.plan import planner
from cdi.plan.amount import MIB, Amount
from cdi.state import store
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.state.store import LOCK_FILE
from tests import specs
from tests.cli.conftest import MakeHost
from tests.cli.host import Host
from tests.cli.test_killed import killed

POD = "pod-6f1c.main"
OTHER = "pod-6f1c.side"


def give(host: Host, *names: str) -> None:
    """Give pods shares of 4 CUs and 1 MiB of GPU 0, as the device plugin does."""
    node = topology.read_node(host.sysroot)
    gpu = node.gpus[0]
    want = planner.Want(
        gpu, gpu.partitions[0], Amount(4, percent=False), Amount(MIB, percent=False)
    )

    def add(ledger: Ledger) -> Ledger:
        for name in names:
            ledger = ledger.with_share(planner.plan(name, [want], ledger.shares))
        return ledger

    paths = Paths(host.sysroot, host.spec_dir, host.state_dir, host.folder / "usage")
    store.update(paths, node, add)


def files(host: Host) -> set[str]:
    return {path.name for path in host.spec_dir.iterdir()} - {LOCK_FILE}


@pytest.fixture
def host(radeons: Host) -> Host:
    """Two shares of pods beside one of a user."""
    radeons.share("create", "mine", "--gpu", "1", "--cores", "25", "--memory", "1GiB").done()
    give(radeons, POD, OTHER)
    return radeons


def test_a_pods_share_stands_alone(host: Host) -> None:
    # As CDI's library calls transient specs: <vendor>-<class>_<id>.
    assert files(host) == {
        "amd.com-gpu.yaml",
        f"amd.com-gpu_{POD}.yaml",
        f"amd.com-gpu_{OTHER}.yaml",
    }
    assert {name.rpartition("=")[2] for name in host.run("list", "--json").done().json} >= {
        POD,
        OTHER,
        "share-mine",
    }
    edits = specs.devices(host.spec_dir)[POD]
    assert "HSA_CU_MASK=0:0-3" in edits["env"]
    assert "HIP_DEVICE_MEMORY_LIMIT_0=1048576" in edits["env"]
    assert host.run("validate").done()
    before = host.spec_file.read_bytes()
    give(host, "pod-2.main")
    assert host.spec_file.read_bytes() == before


def test_commands_see_all_specs_as_one(host: Host) -> None:
    assert "up to date" in host.run("diff").done().out
    assert "up to date" in host.generate("--dry-run").done().out
    assert not host.generate("--json").done().json["changed"]
    (host.spec_dir / f"amd.com-gpu_{POD}.yaml").unlink()
    assert f"+ {POD}" in host.run("diff").failed(status=1).out
    assert host.generate("--json").done().json["changed"]
    assert "up to date" in host.run("diff").done().out
    copy = host.folder / "copy/all.json"
    copy.parent.mkdir()
    host.generate("--output", copy).done()
    assert specs.devices(copy.parent) == specs.devices(host.spec_dir)
    (copy.parent / "out.yaml").write_text(host.generate("--output", "-").done().out)
    copy.unlink()
    assert specs.devices(copy.parent) == specs.devices(host.spec_dir)


def test_a_spec_that_cannot_be_read_hides_no_other(host: Host) -> None:
    broken = host.spec_dir / f"amd.com-gpu_{POD}.yaml"
    broken.write_text("half")
    told, *lines = host.run("diff").failed(status=1).out.splitlines()
    assert str(broken) in told
    assert lines == [f"+ {POD}"]
    host.generate().done()
    left = host.spec_dir / "amd.com-gpu_pod-gone.main.yaml"
    left.write_text("half")
    told, *lines = host.run("diff").failed(status=1).out.splitlines()
    assert str(left) in told
    assert not lines
    host.generate().done()
    assert "up to date" in host.run("diff").done().out
    host.spec_file.unlink()
    told, *lines = host.run("diff").failed(status=1).out.splitlines()
    assert told == f"{host.spec_file}:"
    assert {"+ 0", "+ 1", "+ all", "+ share-mine"} <= set(lines)
    assert f"+ {POD}" not in lines


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--format", "json"),
            {"amd.com-gpu.json", *(f"amd.com-gpu_{p}.json" for p in (POD, OTHER))},
        ),
        (("--output", "{}/amd.yaml"), {"amd.yaml", f"amd_{POD}.yaml", f"amd_{OTHER}.yaml"}),
    ],
    ids=["format", "name"],
)
def test_they_follow_the_spec_of_the_gpus(
    host: Host, arguments: tuple[str, ...], expected: set[str]
) -> None:
    before = specs.devices(host.spec_dir)
    host.generate(*(word.format(host.spec_dir) for word in arguments)).done()
    assert files(host) == expected
    assert specs.devices(host.spec_dir) == before


def test_what_is_called_so_and_nobody_needs_goes(host: Host) -> None:
    for name in ("amd.com-gpu_pod-gone.main.yaml", ".amd.com-gpu_pod-gone.main.yaml.new"):
        (host.spec_dir / name).write_text("half")
    others = {"amd.com-gpu_pods.txt", "amd.com-gpu_other.json"}
    for name in others:
        (host.spec_dir / name).write_text('{"kind": "x.com/y", "devices": []}')
    expected = files(host) - {
        "amd.com-gpu_pod-gone.main.yaml",
        ".amd.com-gpu_pod-gone.main.yaml.new",
    }
    (host.spec_dir / f"amd.com-gpu_{POD}.yaml").write_text("")
    host.generate().done()
    assert files(host) == expected
    assert POD in specs.devices(host.spec_dir)


def test_a_name_that_another_spec_has_is_left_out(host: Host) -> None:
    device = {"name": POD, "containerEdits": {"env": ["A=b"]}}
    other = {"cdiVersion": "0.5.0", "kind": "amd.com/gpu", "devices": [device]}
    (host.spec_dir / "other.json").write_text(json.dumps(other))
    assert POD in host.generate().done().err
    assert specs.devices(host.spec_dir)[POD] == {"env": ["A=b"]}
    (host.spec_dir / "other.json").unlink()
    host.generate().done()
    assert "HSA_CU_MASK=0:0-3" in specs.devices(host.spec_dir)[POD]["env"]


@pytest.mark.parametrize(
    "arguments", [("generate", "--format", "json"), ("generate",)], ids=" ".join
)
def test_a_command_that_is_killed_leaves_what_the_next_heals(
    on: MakeHost, arguments: tuple[str, ...]
) -> None:
    host = on("rx7900xtx")
    give(host, POD, OTHER)
    before = specs.devices(host.spec_dir)
    (host.spec_dir / f"amd.com-gpu_{OTHER}.yaml").unlink()
    saved = [shutil.copytree(place, f"{place}.before") for place in (host.spec_dir, host.state_dir)]
    for step in itertools.count(1):
        if not killed(host, step, *arguments):
            break
        assert specs.devices(host.spec_dir).items() <= before.items()
        host.generate(*arguments[1:]).done()
        assert specs.devices(host.spec_dir) == before
        assert not [name for name in files(host) if name.startswith(".")]
        for place in saved:
            shutil.rmtree(Path(place).with_suffix(""))
            shutil.copytree(place, Path(place).with_suffix(""))
    assert step > 2


def test_they_go_with_the_pod_also_beside_a_hidden_spec(host: Host) -> None:
    hidden = host.spec_dir / ".amd.yaml"
    host.generate("--output", hidden).done()
    (host.spec_dir / ".amd_pod-gone.main.yaml").write_text("half")
    host.generate("--output", hidden).done()
    assert files(host) == {".amd.yaml", f".amd_{POD}.yaml", f".amd_{OTHER}.yaml"}
    host.generate("--output", host.spec_file).done()
    assert POD in specs.devices(host.spec_dir)
    assert not [name for name in files(host) if name.startswith(".")]
