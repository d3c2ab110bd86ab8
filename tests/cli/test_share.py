"""share: create, list and remove."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.captures import change
from tests.cli.conftest import MakeHost
from tests.cli.host import Host, snapshot

GIB = 1 << 30
MIB = 1 << 20

MI300X = "0000:05:00.0"


@pytest.fixture
def host(on: MakeHost) -> Host:
    """Eight MI300X of 304 CUs in 38 atoms of 8, and 196592 MiB."""
    return on("mi300x")


def create(host: Host, name: str, gpu: str, *arguments: str) -> Any:
    """Create a share and return the slice of its first GPU."""
    result = host.share("create", name, "--gpu", gpu, *arguments, "--json").done().json
    assert result["device"] == f"amd.com/gpu=share-{name}"
    return result["slices"][0]


def edits(host: Host, name: str) -> Any:
    document = yaml.load(host.spec_file.read_bytes(), yaml.CSafeLoader)
    (found,) = [dev["containerEdits"] for dev in document["devices"] if dev["name"] == name]
    return found


def test_create_writes_ledger_values_and_spec(host: Host) -> None:
    slice_ = create(host, "alice", "0", "--cores", "25", "--memory", "48GiB")
    # A quarter of 304 is 76, in whole atoms of 8: 72.
    assert slice_ == {
        "gpu": MI300X,
        "partition": 0,
        "mode": "spx",
        "unique_id": "8e1bb56457addd1b",
        "cus": "0-71",
        "memory": 48 * GIB,
    }
    assert host.ledger()["shares"] == [{"name": "share-alice", "slices": [slice_]}]
    env = [
        "ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES=0",
        "HSA_CU_MASK=0:0-71",
        f"HIP_DEVICE_MEMORY_LIMIT_0={48 * GIB}",
        "LD_AUDIT=/usr/local/vgpu/libamvgpu.so",
    ]
    assert edits(host, "share-alice")["env"] == env
    values = host.state_dir / "shares/share-alice.conf"
    assert values.read_text().splitlines() == env
    mounts = {each["containerPath"]: each for each in edits(host, "share-alice")["mounts"]}
    assert mounts["/usr/local/vgpu/share.conf"]["hostPath"] == str(values)
    assert "ro" in mounts["/usr/local/vgpu/share.conf"]["options"]
    assert "ro" in mounts["/usr/local/vgpu/libamvgpu.so"]["options"]
    (hook,) = edits(host, "share-alice")["hooks"]
    assert hook["args"][:6] == ["amd-oci-hook", "run", "--share", "share-alice", "--require", "any"]
    told = dict(field.split("=") for field in hook["args"][-1].split(","))
    assert {
        key: told[key] for key in ("pci", "index", "rocr", "cus", "count", "atom", "bytes")
    } == {
        "pci": MI300X,
        "index": "0",
        "rocr": "GPU-8e1bb56457addd1b",
        "cus": "0-71",
        "count": "304",
        "atom": "8",
        "bytes": str(48 * GIB),
    }


def test_create_decides_the_hook_of_all_shares_until_the_next_generate(host: Host) -> None:
    def told(name: str) -> tuple[str, str, str]:
        (hook,) = edits(host, name)["hooks"]
        policy = hook["args"][hook["args"].index("--require") + 1]
        return hook["hookName"], hook["path"], policy

    quarter = ["--cores", "25", "--memory", "25%"]
    usual = "prestart", "/opt/amd-cdi/current/amd-oci-hook", "any"
    create(host, "a", "0", *quarter)
    assert told("share-a") == usual
    chosen = ["--hook-path", "/opt/hook", "--hook-stage", "createRuntime", "--require", "dmem"]
    create(host, "b", "0", *quarter, *chosen)
    assert told("share-a") == told("share-b") == ("createRuntime", "/opt/hook", "dmem")
    create(host, "c", "0", *quarter, "--require", "library")
    assert told("share-a") == told("share-c") == ("createRuntime", "/opt/hook", "library")
    before = snapshot(host.folder)
    refused = host.share("create", "d", "--gpu", "0", "--hook-path", "hook")
    assert refused.status == 2
    assert "hook-path must be an absolute path" in refused.err
    assert snapshot(host.folder) == before
    host.generate().done()
    # Where the hook is stays what it is: that is a fact of the node.
    usual = "prestart", "/opt/hook", "any"
    assert told("share-a") == told("share-b") == told("share-c") == usual


def test_shares_lie_beside_each_other(host: Host) -> None:
    assert create(host, "a", "0", "--cus", "16", "--memory", "1GiB")["cus"] == "0-15"
    assert create(host, "b", "0", "--cus", "100", "--memory", "25%")["cus"] == "16-111"
    assert create(host, "c", "0", "--cus", "1", "--memory", "512MiB")["cus"] == "112-119"
    assert host.share("remove", "b").done().out == "removed amd.com/gpu=share-b\n"
    # The hole of 96 fits 90 (88 in atoms) better than the rest of the GPU.
    assert create(host, "d", "0", "--cus", "90", "--memory", "1048576")["cus"] == "16-103"
    listed = {each["device"]: each["slices"][0] for each in host.share("list", "--json").json}
    assert {name: part["memory"] for name, part in listed.items()} == {
        "amd.com/gpu=share-a": GIB,
        "amd.com/gpu=share-c": 512 * MIB,
        "amd.com/gpu=share-d": MIB,
    }
    assert not (host.state_dir / "shares/share-b.conf").exists()
    table = host.share("list").done().out.splitlines()
    assert table[0].split() == ["DEVICE", "GPU", "CUS", "MEMORY"]
    assert table[1].split(None, 2)[:2] == ["amd.com/gpu=share-a", MI300X]
    assert "16 (0-15)" in table[1]


def test_the_answer_says_what_was_asked_for_and_what_was_granted(host: Host) -> None:
    asked = ["--cores", "25", "--memory", "48G"]
    result = host.share("create", "a", "--gpu", "0", *asked).done()
    # A quarter of 304 is 76, and an atom of eight XCCs 8; 48 x 2^30.
    assert "asked for 76 CUs (25 % of 304), granted 72" in result.out
    assert "whole atoms of 8" in result.out
    assert "72 CUs (0-71), 48 GiB (51539607552 bytes)" in result.out
    assert "48G is 48 GiB (51539607552 bytes)" in result.out
    assert "48000000000" in result.out
    again = host.share("create", "a", "--gpu", "0", *asked, "--json").done().json
    assert [note.split()[0] for note in again["notes"]] == ["48G", "GPU"]
    less = host.share("create", "b", "--gpu", "1", "--cus", "3", "--memory", "1GiB").done()
    assert "asked for 3 CUs, granted 8" in less.out


def test_an_answer_that_is_as_asked_says_no_more(host: Host) -> None:
    result = host.share("create", "a", "--gpu", "0", "--cores", "50", "--memory", "48GiB").done()
    assert len(result.out.splitlines()) == 2
    assert host.share("create", "b", "--gpu", "1", "--json").done().json["notes"] == []


def test_percent_of_memory_is_in_whole_mib(host: Host) -> None:
    # 196592 MiB x 33 % = 64875.36 MiB.
    assert create(host, "a", "0", "--cores", "33", "--memory", "33%")["memory"] == 64875 * MIB


def test_the_same_again_changes_nothing(host: Host) -> None:
    first = create(host, "a", "0", "--cores", "25", "--memory", "48GiB")
    before = snapshot(host.folder)
    # The same content in other words: 72 of 304 CUs, and the UUID of GPU 0.
    uuid = "8eff74a1-0000-1000-801b-b56457addd1b"
    assert create(host, "a", uuid, "--cus", "72", "--memory", "49152MiB") == first
    assert snapshot(host.folder) == before
    host.share("create", "a", "--gpu", "0", "--cores", "30", "--memory", "48GiB").failed(
        "there is another share 'a'", "72 CUs (0-71), 48 GiB", "amd-cdi share remove a"
    )
    host.share("create", "a", "--gpu", "1", "--cores", "25", "--memory", "48GiB").failed("another")
    assert snapshot(host.folder) == before


def test_dry_run_says_what_would_be(host: Host) -> None:
    result = host.share("create", "a", "--gpu", "0", "--cores", "50", "--dry-run").done()
    # Half of 304 is 152: 19 atoms.
    assert result.out.splitlines()[0] == "would be amd.com/gpu=share-a"
    assert "152 CUs (0-151)" in result.out
    assert list(host.folder.iterdir()) == []
    create(host, "a", "0")
    before = snapshot(host.folder)
    removal = host.share("remove", "a", "--dry-run", "--json").done().json
    assert removal == {"removed": "share-a", "dry_run": True}
    assert snapshot(host.folder) == before


def test_a_whole_gpu_is_held_to_nothing(host: Host) -> None:
    slice_ = create(host, "a", "0")
    assert (slice_["cus"], slice_["memory"]) == ("0-303", 206141652992)
    whole = edits(host, "share-a")
    assert sorted(whole) == ["deviceNodes", "env"]
    assert whole["env"] == ["ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b", "HIP_VISIBLE_DEVICES=0"]
    assert list((host.state_dir / "shares").iterdir()) == []
    host.share("create", "b", "--gpu", "0", "--cores", "1", "--memory", "1MiB").failed(
        "GPU 0 (AMD Instinct MI300X)", "0 MiB of 196592 MiB is free", "remove a share"
    )


def test_several_gpus_in_the_order_asked_for(host: Host) -> None:
    result = host.share(
        "create", "a", "--gpu", "0000:27:00.0", "--gpu", "GPU-8e1bb56457addd1b", "--cores", "50",
        "--memory", "1GiB", "--json",
    ).done().json  # fmt: skip
    assert [part["gpu"] for part in result["slices"]] == ["0000:27:00.0", MI300X]
    env = edits(host, "share-a")["env"]
    assert env[:5] == [
        "ROCR_VISIBLE_DEVICES=GPU-1fc4a2d07be93865,GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES=0,1",
        "HSA_CU_MASK=0:0-151;1:0-151",
        f"HIP_DEVICE_MEMORY_LIMIT_0={GIB}",
        f"HIP_DEVICE_MEMORY_LIMIT_1={GIB}",
    ]
    args = edits(host, "share-a")["hooks"][0]["args"]
    assert args.count("--gpu") == 2


def test_one_gpu_that_is_full_refuses_all(host: Host) -> None:
    create(host, "a", "1")
    before = snapshot(host.folder)
    host.share("create", "b", "--gpu", "0", "--gpu", "1").failed("GPU 1 (AMD Instinct MI300X)")
    assert snapshot(host.folder) == before


def test_partitions(on: MakeHost) -> None:
    host = on("mi300x-cpx")
    slice_ = create(host, "a", "1:3", "--cus", "19", "--memory", "50%")
    # A partition has an eighth of 196592 MiB.
    assert (slice_["partition"], slice_["mode"]) == (3, "cpx")
    assert (slice_["cus"], slice_["memory"]) == ("0-18", 12287 * MIB)
    # Partitions have no ROCr id of their own: the only one that the container can open is 0.
    assert edits(host, "share-a")["env"][0] == "ROCR_VISIBLE_DEVICES=0"
    assert create(host, "b", "0000:27:00.0:3", "--cus", "19", "--memory", "1GiB")["cus"] == "19-37"
    host.share("create", "c", "--gpu", "1").failed("GPU 1 is partitioned (cpx)", "1:0, 1:1")
    host.share("create", "c", "--gpu", "1:8").failed("no GPU '1:8' on this node")
    assert "0000:27:00.0:3" in host.share("list").done().out


def test_memory_above_the_gpu_needs_a_scale(host: Host) -> None:
    host.share("create", "a", "--gpu", "0", "--memory", "193GiB").failed(
        "197632 MiB of memory was asked for", "the GPU has 196592 MiB", "--memory"
    )
    arguments = ["--cores", "50", "--memory", "200GiB", "--memory-scaling", "2"]
    assert create(host, "a", "0", *arguments)["memory"] == 200 * GIB
    assert "HIP_OVERSUBSCRIBE=1" in edits(host, "share-a")["env"]
    host.share("create", "b", "--gpu", "0", "--cores", "25", "--memory", "1GiB").failed(
        "1024 MiB of memory was asked for", "is free"
    )
    # Twice 196592 MiB is 383.97 GiB.
    create(host, "b", "0", "--cores", "25", "--memory", "183GiB", "--memory-scaling", "2")
    host.share(
        "create", "c", "--gpu", "0", "--cores", "5", "--memory", "1GiB", "--memory-scaling", "2"
    ).failed("1024 MiB of memory was asked for")


@pytest.mark.parametrize("scale", ["nan", "inf", "1001"])
def test_a_scale_that_is_none(host: Host, scale: str) -> None:
    result = host.share("create", "a", "--gpu", "0", "--memory-scaling", scale)
    result.failed("the memory scale is a number from 1 to 1000", scale, status=2)


def test_the_memory_of_an_apu_is_what_hip_is_offered(on: MakeHost) -> None:
    host = on("strix-halo")
    assert create(host, "a", "0", "--cores", "50", "--memory", "94GiB")["memory"] == 94 << 30
    host.share("create", "b", "--gpu", "0", "--cores", "25", "--memory", "3GiB").failed(
        "2048 MiB of 98304 MiB is free"
    )
    edits_ = edits(host, "share-a")
    assert f"HIP_DEVICE_MEMORY_LIMIT_0={94 << 30}" in edits_["env"]
    assert "memory=shared" in edits_["hooks"][0]["args"][-1]


def test_a_share_of_an_apu_that_dmem_alone_is_to_hold(on: MakeHost) -> None:
    host = on("strix-halo")
    half = ("--gpu", "0", "--cores", "50", "--memory", "48GiB")
    refused = "dmem was expected to hold the memory of GPU 0000:c6:00.0, and that is shared"
    host.share("create", "a", *half, "--require", "dmem").failed(refused, "--require any")
    assert not host.ledger_file.exists()
    host.share("create", "a", *half).done()
    # Whoever asks for it for all shares is told what that costs.
    assert refused in " ".join(host.generate("--require", "dmem").done().err.split())
    assert "share-a" not in host.run("list").done().out


def test_a_gpu_of_which_not_all_is_known(own: MakeHost) -> None:
    host = own("rx7900xtx")
    node = host.sysroot / "sys/devices/virtual/kfd/kfd/topology/nodes/1/properties"
    change(node, gfx_target_version=None)
    refused = "can only be had whole and alone, as it is not known which of its CUs"
    host.share("create", "a", "--gpu", "0", "--cores", "50").failed(refused, "amd-cdi topology")
    # All of its CUs, and a part of the memory, need no atom.
    assert create(host, "a", "0", "--memory", "1GiB")["cus"] == "0-95"
    host.share("remove", "a").done()
    change(node, simd_count=None)
    host.share("create", "a", "--gpu", "0", "--memory", "1GiB").failed("how many CUs it has")
    assert create(host, "a", "0")["cus"] == "all"
    host.share("create", "b", "--gpu", "0").failed("0 MiB of 24560 MiB is free")
    listed = host.share("list").done().out
    assert "share-a 0000:03:00.0 all 24.0 GiB" in " ".join(listed.split())
    generated = host.generate("--split", "2").done()
    assert "no equal shares of GPU 0" in " ".join(generated.err.split())
    names = host.run("list").done().out.split()
    assert "amd.com/gpu=0" in names
    assert "amd.com/gpu=1-2of2" in names
    assert not any("0-1of2" in name for name in names)


def test_splits_and_shares_never_overlap(host: Host) -> None:
    host.generate("--split", "2").done()
    host.share("create", "a", "--gpu", "0", "--cores", "25", "--memory", "1GiB").failed("is free")
    host.generate().done()
    create(host, "a", "0", "--cores", "25", "--memory", "1GiB")
    result = host.generate("--split", "2").done()
    assert "no equal shares of GPU 0 where these live: share-a" in result.err
    names = host.run("list").done().out.splitlines()
    assert "amd.com/gpu=0-1of2" not in names
    assert "amd.com/gpu=1-1of2" in names


def test_what_is_free_is_said(host: Host) -> None:
    create(host, "a", "0", "--cus", "200", "--memory", "1GiB")
    host.share("create", "b", "--gpu", "0", "--cus", "150", "--memory", "1GiB").failed(
        "144 CUs were asked for", "104 of 304 are free in whole atoms of 8 (200-303)"
    )


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("8", "no GPU '8' on this node; name one of 0, 1, 2, 3, 4, 5, 6, 7"),
        ("0:0", "no GPU '0:0'"),
        ("GPU-0000000000000000", "no GPU"),
        ("0000:05:00.1", "no GPU"),
        ("05:00.1", "no GPU"),
    ],
)
def test_an_unknown_gpu(host: Host, gpu: str, message: str) -> None:
    host.share("create", "a", "--gpu", gpu).failed(message)
    assert list(host.folder.iterdir()) == []


def test_a_gpu_as_lspci_writes_it(host: Host) -> None:
    # lspci leaves the domain out where all are 0000.
    assert create(host, "a", "27:00.0", "--cores", "50")["gpu"] == "0000:27:00.0"


def test_the_same_gpu_twice(host: Host) -> None:
    host.share("create", "a", "--gpu", "0", "--gpu", MI300X).failed("named more than once")
    host.share("create", "a", "--gpu", "0", "--gpu", "0").failed("each GPU", "once", status=2)


def test_more_cus_than_there_are(host: Host) -> None:
    host.share("create", "a", "--gpu", "0", "--cus", "305").failed("from 1 to 304", "found 305")


def test_removing_by_the_device_that_the_list_shows(host: Host) -> None:
    host.share("create", "a", "--gpu", "0").done()
    device = host.share("list", "--json").done().json[0]["device"]
    host.share("remove", device).done()
    assert host.share("list", "--json").done().json == []


def test_removing_by_the_name_of_the_device(host: Host) -> None:
    host.share("create", "a", "--gpu", "0").done()
    assert host.share("remove", "share-a").done().out == "removed amd.com/gpu=share-a\n"
    # A share may be called so itself, and then it is that one.
    host.share("create", "a", "--gpu", "0").done()
    host.share("create", "share-a", "--gpu", "1").done()
    assert host.share("remove", "share-a").done().out == "removed amd.com/gpu=share-share-a\n"
    assert [each["device"] for each in host.share("list", "--json").json] == ["amd.com/gpu=share-a"]


def test_removing_what_is_not_there(host: Host) -> None:
    host.share("remove", "a").failed("there is no share 'share-a'", "amd-cdi share list")
    assert list(host.folder.iterdir()) == []


def test_create_fails_if_another_spec_has_the_name(host: Host) -> None:
    host.run("generate").done()
    other = {"name": "share-alice", "containerEdits": {"env": ["A=1"]}}
    document = {"cdiVersion": "0.5.0", "kind": "amd.com/gpu", "devices": [other]}
    (host.spec_dir / "other.json").write_text(json.dumps(document))
    before = snapshot(host.folder)
    for extra in ((), ("--dry-run",)):
        result = host.share("create", "alice", "--gpu", "0", "--cores", "25", *extra)
        result.failed("amd.com/gpu=share-alice cannot be offered", "other.json already has")
    assert snapshot(host.folder) == before


def test_create_again_fails_if_the_gpu_was_exchanged(host: Host) -> None:
    create(host, "alice", "0", "--cores", "25")
    text = host.ledger_file.read_text()
    host.ledger_file.write_text(text.replace("8e1bb56457addd1b", "1234"))
    result = host.share("create", "alice", "--gpu", "0", "--cores", "25")
    result.failed("amd.com/gpu=share-alice cannot be offered", "it is another GPU")
