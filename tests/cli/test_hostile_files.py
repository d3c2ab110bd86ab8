"""Files that a command meets and cannot use: each is named, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import MakeHost
from tests.cli.host import Host, snapshot

LAUGHS = "\n".join(
    [
        "a0: &a0 [x,x,x,x,x,x,x,x,x]",
        *(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)),
        'cdiVersion: "0.5.0"',
        "kind: v.com/c",
        "devices: [{name: z, containerEdits: {env: *a9}}]",
    ]
)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


SPECS: dict[str, tuple[Callable[[Path], object] | bytes, str]] = {
    "empty": (b"", "is no CDI spec"),
    "a list": (b"- a\n", "is no CDI spec"),
    "truncated": (b'cdiVersion: "0.5.0"\nkind: "v.com/c"\ndevices:\n  - name: "a', "neither YAML"),
    "truncated JSON": (b'{"cdiVersion": "0.5.0", "devi', "neither YAML"),
    "binary": (os.urandom(16) + b"\0\xff\xfe" * 100, "neither YAML"),
    "tabs": (b"a:\n\t- b\n", "neither YAML"),
    "two documents": (b"a: 1\n---\nb: 2\n", "neither YAML"),
    "duplicate keys": (b"kind: a\nkind: b\n", "'kind' is given twice"),
    "deep": (b"[" * 100_000, "neither YAML"),
    "deep blocks": (b"- " * 100_000, "neither YAML"),
    "deep JSON": (b'{"a":' * 100_000, "neither YAML"),
    "laughs": (LAUGHS.encode(), "aliases stand for more than"),
    "itself": (b"a: &a [*a]\n", "an alias names what it is a part of"),
    "code": (b"!!python/object/apply:os.system ['touch ran']\n", "neither YAML"),
    "wrong tags": (b"a: !!bool maybe\n", "neither YAML"),
    "no map": (b"a: !!map [b]\n", "neither YAML"),
    "devices by name": (b"kind: v.com/c\ndevices: {a: {}}\n", "is no CDI spec"),
    "a device without edits": (b"kind: v.com/c\ndevices: [{name: a}]\n", "is no CDI spec"),
    "huge": (sparse, "larger than 32 MiB"),
    "a FIFO": (os.mkfifo, "a regular file was expected"),
    "a dangling link": (dangling, "No such file"),
    "a loop": (loop, "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("name", SPECS)
def test_another_spec_that_cannot_be_read(radeons: Host, name: str) -> None:
    radeons.spec_dir.mkdir()
    content, message = SPECS[name]
    path = radeons.spec_dir / "other.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    before = snapshot(radeons.folder)
    # It may hold names of ours, so nothing is written beside it.
    radeons.generate("--split", "2").failed(str(path), message)
    # Runtimes skip it, and so does what shows what they see.
    listed = radeons.run("list").done()
    assert "runtimes skip a spec: " in listed.err
    assert str(path) in listed.err
    assert message in listed.err
    assert snapshot(radeons.folder) == before


def test_validate_goes_on_after_what_it_cannot_read(radeons: Host) -> None:
    radeons.generate().done()
    for number, (content, _) in enumerate(SPECS.values()):
        path = radeons.spec_dir / f"{number}.yaml"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
    result = radeons.run("validate", "--json")
    assert result.status == 1
    assert result.err == ""
    assert len(result.json) == len(SPECS) + 1
    assert [path for path, findings in result.json.items() if not findings] == [
        str(radeons.spec_file)
    ]


def test_runtimes_look_into_no_directory_and_at_no_other_suffix(radeons: Host) -> None:
    radeons.spec_dir.mkdir()
    (radeons.spec_dir / "folder.yaml").mkdir()
    (radeons.spec_dir / "folder.yaml/x.yaml").write_text("nonsense: [")
    (radeons.spec_dir / "README").write_text("nonsense: [")
    (radeons.spec_dir / "x.yaml.bak").write_text("nonsense: [")
    radeons.generate().done()
    assert len(radeons.run("list").done().out.splitlines()) == 5


@pytest.mark.parametrize(
    "edits",
    [
        {"env": [1]},
        {"env": "A=b"},
        {"mounts": [1]},
        {"deviceNodes": {}},
        {"hooks": [{"hookName": 5}]},
        {"unknown": 1},
        {},
    ],
    ids=json.dumps,
)
def test_a_spec_that_no_runtime_loads_is_not_shown(radeons: Host, edits: object) -> None:
    radeons.spec_dir.mkdir()
    path = radeons.spec_dir / "x.json"
    document = {"cdiVersion": "0.5.0", "kind": "v.com/c", "containerEdits": {}}
    path.write_text(json.dumps(document | {"devices": [{"name": "a", "containerEdits": edits}]}))
    message = (f"no runtime would load {path}", f"amd-cdi validate {path}")
    radeons.run("show", "v.com/c=a").failed(*message)
    radeons.run("inject", path, "v.com/c=a").failed(*message)


def test_a_name_that_no_terminal_can_show(radeons: Host) -> None:
    radeons.spec_dir.mkdir()
    (radeons.spec_dir / "x.json").write_text(
        '{"kind":"v.com/c","devices":[{"name":"\\ud800","containerEdits":{}}]}'
    )
    # Half a character is none, and a runtime would not take it for one.
    listed = radeons.run("list").done()
    assert listed.out == ""
    assert "runtimes skip a spec" in listed.err


def test_a_spec_directory_that_is_a_file(radeons: Host) -> None:
    radeons.spec_dir.write_text("")
    before = snapshot(radeons.folder)
    for command in (["generate"], ["list"], ["validate"], ["share", "create", "x", "--gpu", "0"]):
        radeons.run(*command).failed(str(radeons.spec_dir), "Not a directory")
    assert snapshot(radeons.folder) == before


def test_a_state_directory_that_is_a_file(radeons: Host) -> None:
    radeons.state_dir.write_text("")
    before = snapshot(radeons.folder)
    for command in (["generate"], ["share", "list"], ["diff"], ["topology"]):
        radeons.run(*command).failed(str(radeons.state_dir))
    assert snapshot(radeons.folder) == before


def test_a_spec_of_ours_that_is_damaged_is_written_anew(radeons: Host) -> None:
    radeons.generate().done()
    whole = radeons.spec_file.read_bytes()
    for content in (b"", whole[:100], b"\xff" * 100):
        radeons.spec_file.write_bytes(content)
        assert radeons.run("diff").status == 1
        radeons.generate().done()
        assert radeons.spec_file.read_bytes() == whole


def test_a_directory_in_the_place_of_our_spec(radeons: Host) -> None:
    radeons.spec_file.mkdir(parents=True)
    radeons.generate().failed(str(radeons.spec_file), "Is a directory")
    left = {path.name for path in radeons.folder.rglob("*") if not path.is_dir()}
    assert left == {".amd-cdi.lock"}


# Sysfs


def test_a_sysroot_that_does_not_exist(radeons: Host) -> None:
    for command in ("generate", "topology", "diff", "list"):
        result = radeons.run(command, AMD_CDI_SYSROOT="/nonexistent")
        result.failed("the sysroot /nonexistent is not a directory", "--sysroot")
    assert list(radeons.folder.iterdir()) == []


def test_a_machine_without_what_is_needed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    host = Host(root, tmp_path)
    host.generate().failed(f"expected sysfs, found no folder {root}/sys", "--sysroot")
    (root / "sys").mkdir()
    host.generate().failed("expected the amdgpu driver", "modprobe amdgpu")
    driver = root / "sys/bus/pci/drivers/amdgpu"
    driver.mkdir(parents=True)
    host.generate().failed(f"expected a GPU below {driver}", "lspci -k")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_no_gpu_that_can_be_used(own: MakeHost) -> None:
    host = own("rx7900xtx")
    nodes = host.sysroot / "sys/class/kfd/kfd/topology/nodes"
    for node in nodes.iterdir():
        (node / "properties").write_bytes(b"")
    host.generate().failed("expected a GPU that can be used", "device cgroup", "kernel's log")
    assert [path.name for path in host.folder.iterdir()] == ["root"]


def test_one_bad_gpu_costs_itself_alone(own: MakeHost) -> None:
    host = own("rx7900xtx")
    node = host.sysroot / "sys/class/kfd/kfd/topology/nodes/2/properties"
    node.write_bytes(b"\xff\0")
    result = host.generate().done()
    assert "GPU 0000:43:00.0 is left out" in result.err
    assert "nodes/2/properties" in result.err
    assert host.run("list").done().out.splitlines() == [
        "amd.com/gpu=0",
        "amd.com/gpu=5fff744c-0000-1000-802e-90b7c4d1863a",
        "amd.com/gpu=all",
    ]
