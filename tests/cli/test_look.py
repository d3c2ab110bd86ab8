"""list, show, validate, diff, inject and topology: what they print, and that they write nothing."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests import need
from tests.captures import change
from tests.cli.conftest import MakeHost
from tests.cli.host import Host, snapshot


@pytest.fixture
def shared_radeons(radeons: Host) -> Host:
    """The node with its spec and a share of a quarter of GPU 1."""
    radeons.generate().done()
    radeons.share("create", "quarter", "--gpu", "1", "--cores", "25", "--memory", "6GiB").done()
    return radeons


NAMES = [
    "0",
    # 5f2e90b7c4d1863a and device 744c, put together as AMD SMI does.
    "5fff744c-0000-1000-802e-90b7c4d1863a",
    "1",
    "b8ff744c-0000-1000-801d-64f30ea7952c",
    "share-quarter",
    "all",
]


def test_list(shared_radeons: Host) -> None:
    qualified = [f"amd.com/gpu={name}" for name in NAMES]
    assert shared_radeons.run("list").done().out.splitlines() == qualified
    assert shared_radeons.run("list", "--json").done().json == qualified


def test_list_without_a_directory_is_empty(radeons: Host) -> None:
    assert radeons.run("list").done().out == ""
    assert radeons.run("list", "--json").done().json == []


def test_show_is_the_merged_edit(shared_radeons: Host) -> None:
    result = shared_radeons.run("show", "share-quarter", "amd.com/gpu=1").done()
    edit = yaml.safe_load(result.out)
    assert [node["path"] for node in edit["deviceNodes"]] == [
        "/dev/kfd",
        "/dev/dri/card1",
        "/dev/dri/renderD129",
    ]
    assert edit["env"] == [
        "ROCR_VISIBLE_DEVICES=GPU-b81d64f30ea7952c",
        "HIP_VISIBLE_DEVICES=0",
        "HSA_CU_MASK=0:0-23",
        f"HIP_DEVICE_MEMORY_LIMIT_0={6 * 1024**3}",
        "LD_AUDIT=/usr/local/vgpu/libamvgpu.so",
    ]
    as_json = shared_radeons.run("show", "share-quarter", "amd.com/gpu=1", "--json").done().json
    assert as_json == edit


def test_show_of_an_unknown_device(shared_radeons: Host) -> None:
    shared_radeons.run("show", "share-none").failed("'amd.com/gpu=share-none'", "amd-cdi list")
    shared_radeons.run("show", "nvidia.com/gpu=0").failed("'nvidia.com/gpu=0'")


def test_validate_names_the_file_and_says_valid(shared_radeons: Host) -> None:
    path = shared_radeons.spec_file
    assert shared_radeons.run("validate").done().out == f"{path}: valid\n"
    assert shared_radeons.run("validate", "--json").done().json == {str(path): []}


def test_validate_says_every_finding_of_every_file(shared_radeons: Host) -> None:
    first = shared_radeons.folder / "first.yaml"
    first.write_text(
        'cdiVersion: "0.3.0"\nkind: "v.com/c"\ndevices:\n'
        '  - {name: "1a", containerEdits: {env: ["=x"]}}\n'
        '  - {name: "b_", containerEdits: {hooks: [{hookName: "start", path: "/h", timeout: 0}]}}\n'
    )
    second = shared_radeons.folder / "second.json"
    second.write_text("{")
    result = shared_radeons.run(
        "validate", first, second, shared_radeons.spec_file, shared_radeons.folder / "none"
    )
    assert result.status == 1
    for part in ("0.5.0", "'=x'", "'start'", "timeout: 0", "'b_'"):
        assert any(part in line for line in result.out.splitlines() if str(first) in line), part
    assert f"{second}: is neither YAML nor JSON" in result.out
    assert f"{shared_radeons.spec_file}: valid" in result.out
    assert "No such file" in result.out
    as_json = shared_radeons.run("validate", "--json", first, shared_radeons.spec_file)
    assert as_json.status == 1
    assert as_json.json[str(shared_radeons.spec_file)] == []
    assert len(as_json.json[str(first)]) >= 5


def test_diff_tells_what_a_refresh_would_change(shared_radeons: Host) -> None:
    up_to_date = shared_radeons.run("diff").done()
    assert up_to_date.out == f"{shared_radeons.spec_file} is up to date\n"
    text = shared_radeons.spec_file.read_text()
    changed = text.replace('name: "0"', 'name: "zero"').replace("renderD129", "renderD777")
    shared_radeons.spec_file.write_text(changed)
    result = shared_radeons.run("diff")
    assert result.status == 1
    assert result.out.splitlines()[1:] == [
        "+ 0",
        "- zero",
        "~ 1",
        "~ b8ff744c-0000-1000-801d-64f30ea7952c",
        "~ share-quarter",
        "~ all",
    ]
    as_json = shared_radeons.run("diff", "--json")
    assert as_json.status == 1
    assert as_json.json["added"] == ["0"]
    assert as_json.json["removed"] == ["zero"]
    assert shared_radeons.spec_file.read_text() == changed


def test_diff_before_the_first_generate(radeons: Host) -> None:
    result = radeons.run("diff", "--json")
    assert result.status == 1
    assert result.json["added"] == [name for name in NAMES if name != "share-quarter"]


def test_inject(own: MakeHost) -> None:
    need.superuser("making a device node")
    host = own("rx7900xtx")
    for name, major, minor in (
        ("kfd", 510, 0),
        ("dri/card0", 226, 0),
        ("dri/renderD128", 226, 128),
    ):
        path = host.sysroot / "dev" / name
        path.unlink()
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    host.generate().done()
    config = host.folder / "config.json"
    config.write_text(json.dumps({"ociVersion": "1.0.2", "process": {"env": ["A=b"]}}))
    result = host.run("inject", config, "0").done().json
    assert result["process"] == {"env": ["A=b"]}
    assert [
        (each["path"], each["major"], each["minor"]) for each in result["linux"]["devices"]
    ] == [
        ("/dev/kfd", 510, 0),
        ("/dev/dri/card0", 226, 0),
        ("/dev/dri/renderD128", 226, 128),
    ]
    assert result["linux"]["resources"]["devices"][0] == {
        "allow": True,
        "type": "c",
        "major": 510,
        "minor": 0,
        "access": "rw",
    }


@pytest.mark.parametrize("content", ["", "[]", "5", "{", '{"process": 5}', '{"linux": []}'])
def test_inject_into_what_is_no_configuration(shared_radeons: Host, content: str) -> None:
    config = shared_radeons.folder / "config.json"
    config.write_text(content)
    shared_radeons.run("inject", config, "share-quarter").failed()


def test_inject_into_a_file_that_is_not_there(shared_radeons: Host) -> None:
    shared_radeons.run("inject", "none.json", "0").failed("none.json", "No such file")


def test_topology_is_a_table_and_a_picture(shared_radeons: Host) -> None:
    text = shared_radeons.run("topology").done().out
    heads, first, second, *pictures = text.splitlines()
    assert heads.split()[:3] == ["GPU", "PCI", "NAME"]
    assert first.split()[:2] == ["0", "0000:03:00.0"]
    assert "card1 renderD129" in second
    # 24 of 96 CUs in rows of 64.
    assert f"  CU   0 {'a' * 24}{'·' * 40}" in pictures
    assert f"  CU  64 {'·' * 32}" in pictures
    assert "  a share-quarter: 24 CUs (0-23), 6 GiB" in pictures
    assert "\x1b" not in text


def test_topology_as_json(on: MakeHost) -> None:
    (gpu, *_) = on("mi300x").run("topology", "--json").done().json["gpus"]
    assert gpu["uuid"] == "8eff74a1-0000-1000-801b-b56457addd1b"
    assert gpu["rocr_id"] == "GPU-8e1bb56457addd1b"
    assert gpu["memory_bytes"] == 206141652992
    assert gpu["xgmi_peers"] == [
        f"0000:{bus}:00.0" for bus in ("27", "47", "65", "85", "a7", "c7", "e5")
    ]
    (partition,) = gpu["partitions"]
    assert (partition["cus"], partition["xccs"], partition["atom"]) == (304, 8, 8)
    assert partition["gfx"] == "gfx942"


def test_topology_says_which_memory_it_is(on: MakeHost) -> None:
    text = on("strix-halo").run("topology").done().out
    row = next(line for line in text.splitlines() if "0000:c6:00.0" in line)
    assert "  96 GiB shared  " in row
    assert "MEMORY" in text.splitlines()[0]
    (gpu,) = on("strix-halo").run("topology", "--json").done().json["gpus"]
    (partition,) = gpu["partitions"]
    assert (partition["memory_bytes"], partition["memory_kind"]) == (103079215104, "shared")
    assert gpu["memory_bytes"] == 103079215104


def test_topology_names_what_no_container_can_have(own: MakeHost) -> None:
    host = own("rx7900xtx")
    device = (host.sysroot / "sys/bus/pci/devices/0000:43:00.0").resolve()
    shutil.rmtree(device / "drm/renderD129")
    said = host.run("topology").done()
    assert said.err.count("0000:43:00.0") == 1
    assert "has no render node" in said.err
    document = host.run("topology", "--json").done().json
    (unusable,) = document["unusable"]
    assert unusable["pci"] == "0000:43:00.0"
    assert "has no render node" in unusable["reason"]
    # There it is said, and not by every command.
    assert "0000:43:00.0" not in host.generate().done().err


def test_topology_of_a_gpu_of_which_little_is_known(own: MakeHost) -> None:
    host = own("rx7900xtx")
    node = host.sysroot / "sys/devices/virtual/kfd/kfd/topology/nodes/1"
    change(node / "properties", gfx_target_version=None, simd_count=None)
    shutil.rmtree(node / "mem_banks")
    said = host.run("topology").done()
    row = next(line for line in said.out.splitlines() if "0000:03:00.0" in line)
    assert row.count("unknown") == 4
    assert "all, to be had whole" in said.out
    for name in ("gfx_target_version", "simd_count", "mem_banks"):
        assert name in said.err
    (gpu, _) = host.run("topology", "--json").done().json["gpus"]
    (partition,) = gpu["partitions"]
    unknown = {name: partition[name] for name in ("gfx", "cus", "atom", "memory_bytes")}
    assert unknown == {"gfx": "", "cus": 0, "atom": 0, "memory_bytes": 0}


def test_wsl_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/sys").mkdir()
    (tmp_path / "root/dev/dxg").touch()
    said = Host(tmp_path / "root", tmp_path).run("topology")
    said.failed("this is WSL2", "librocdxg", "give containers /dev/dxg")


def test_topology_as_a_drawing(shared_radeons: Host, tmp_path: Path) -> None:
    shared_radeons.run("topology", "--svg", tmp_path / "x.svg").done()
    root = ET.parse(tmp_path / "x.svg").getroot()
    cells = root.iter("{http://www.w3.org/2000/svg}title")
    titles = [cell.text for cell in cells]
    # Two GPUs of 96 CUs, and the share's mark in the legend.
    assert len([title for title in titles if title and title.startswith("CU ")]) == 192
    assert "share-quarter" in titles


def test_looking_changes_nothing(shared_radeons: Host) -> None:
    before = snapshot(shared_radeons.folder)
    for command in (
        ["list"],
        ["show", "all"],
        ["validate"],
        ["diff"],
        ["topology"],
        ["share", "list"],
        ["generate", "--dry-run"],
        ["generate", "--dry-run", "--split", "3"],
        ["generate", "--output", "-"],
        ["share", "create", "y", "--gpu", "0", "--dry-run"],
        ["share", "remove", "quarter", "--dry-run"],
    ):
        shared_radeons.run(*command).done()
    assert snapshot(shared_radeons.folder) == before
