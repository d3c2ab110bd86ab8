"""generate: what is written where, and when nothing is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cdi.node import sample
from cdi.spec.registry import paths_in
from tests import need
from tests.captures import shared
from tests.cli.conftest import MakeHost
from tests.cli.host import Host, snapshot

SAMPLES = ("mi210", "mi300a", "mi300x", "mi300x-cpx", "mixed", "rx7900xtx", "strix-halo")

KFD = {"path": "/dev/kfd", "permissions": "rw"}


def devices(document: Any) -> dict[str, Any]:
    return {device["name"]: device["containerEdits"] for device in document["devices"]}


def load(path: Path) -> Any:
    """Read a spec as YAML 1.1 has it, or as JSON."""
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    return yaml.load(path.read_bytes(), yaml.CSafeLoader)


def paths(edits: Any) -> list[str]:
    return [node["path"] for node in edits["deviceNodes"]]


def test_there_is_a_test_for_every_sample() -> None:
    assert sample.names() == SAMPLES


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_official_schema_accepts_it(on: MakeHost, name: str, form: str) -> None:
    folder = shared("cdi-schema")
    schema = json.loads((folder / "schema.json").read_bytes())
    definitions = json.loads((folder / "defs.json").read_bytes())
    # Both files as one, so that the reference between them is found without a network.
    schema["definitions"] = definitions["definitions"]
    text = json.dumps(schema).replace('"defs.json#', '"#')
    host = on(name)
    gpu = "0:0" if name == "mi300x-cpx" else "0"
    host.generate("--format", form).done()
    host.share("create", "x", "--gpu", gpu, "--cores", "50", "--memory", "1GiB").done()
    document = load(host.spec_dir / f"amd.com-gpu.{form}")
    validator = jsonschema.Draft7Validator(json.loads(text))
    assert [error.message for error in validator.iter_errors(document)] == []
    assert document["containerEdits"] == {"deviceNodes": [KFD]}
    assert "share-x" in devices(document)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(document | {"devices": 5})


def test_yaml_and_json_are_the_same_document(radeons: Host) -> None:
    as_yaml = radeons.generate("--output", "-", "--split", "3").done().out
    as_json = radeons.generate("--output", "-", "--split", "3", "--format", "json").done().out
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_partitions_and_the_nodes_of_each(on: MakeHost) -> None:
    host = on("mixed")
    host.generate("--device-name-strategy", "index").done()
    found = devices(load(host.spec_file))
    assert list(found) == ["0", "1", *(f"1:{index}" for index in range(8)), "2", "3", "all"]
    # As the sample lays them: another vendor's GPU has card0 and renderD128.
    assert paths(found["0"]) == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert paths(found["1:0"]) == ["/dev/dri/card9", "/dev/dri/renderD137"]
    assert paths(found["1:7"]) == ["/dev/dri/card16", "/dev/dri/renderD144"]
    assert paths(found["2"]) == ["/dev/dri/card20", "/dev/dri/renderD150"]
    assert paths(found["3"]) == ["/dev/dri/card22", "/dev/dri/renderD152"]
    assert len(paths(found["1"])) == 16
    assert paths(found["all"]) == [
        path for name in ("0", "1", "2", "3") for path in paths(found[name])
    ]
    assert all(list(edits) == ["deviceNodes"] for edits in found.values())


def test_strategies_name_gpus_in_their_order(on: MakeHost) -> None:
    host = on("mixed")
    arguments = ["--device-name-strategy", "pci", "--device-name-strategy", "uuid"]
    host.generate(*arguments).done()
    names = list(devices(load(host.spec_file)))
    assert names[:4] == [
        "0000:05:00.0",
        "8eff74a1-0000-1000-801b-b56457addd1b",
        "0000:27:00.0",
        "1fff74a1-0000-1000-80c4-a2d07be93865",
    ]
    assert "1fff74a1-0000-1000-80c4-a2d07be93865:7" in names
    # The APU has no serial, and so no UUID.
    assert names[-2:] == ["0000:c4:00.0", "all"]


def test_a_gpu_without_a_name_is_told(on: MakeHost) -> None:
    host = on("mixed")
    result = host.generate("--device-name-strategy", "uuid").done()
    assert "GPU 3 (0000:c4:00.0) has no name by uuid" in result.err
    assert "/dev/dri/renderD152" in paths(devices(load(host.spec_file))["all"])


def test_split(on: MakeHost) -> None:
    host = on("mi300x")
    host.generate("--split", "4").done()
    found = devices(load(host.spec_file))
    # 304 CUs are 38 atoms of 8: 9 atoms each, and two are left over.
    masks = [found[f"0-{k}of4"]["env"][2] for k in (1, 2, 3, 4)]
    assert masks == [f"HSA_CU_MASK=0:{span}" for span in ("0-71", "72-143", "144-215", "216-287")]
    # 196592 MiB in four.
    assert f"HIP_DEVICE_MEMORY_LIMIT_0={49148 << 20}" in found["7-4of4"]["env"]
    assert len([name for name in found if name.endswith("of4")]) == 32
    host.generate().done()
    assert not any(name.endswith("of4") for name in devices(load(host.spec_file)))
    assert list((host.state_dir / "shares").iterdir()) == []


def test_split_of_partitions(on: MakeHost) -> None:
    host = on("mi300x-cpx")
    host.generate("--split", "38", "--format", "json").done()
    found = devices(load(host.spec_dir / "amd.com-gpu.json"))
    assert found["7:7-38of38"]["env"][2] == "HSA_CU_MASK=0:37"
    assert len([name for name in found if name.endswith("of38")]) == 64 * 38


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("mi300x", "39", "304 CUs, which can be granted in 38 atoms of 8; split into 38 or fewer"),
        ("rx7900xtx", "49", "96 CUs, which can be granted in 48 atoms of 2"),
        ("mi300x-cpx", "39", "38 CUs, which can be granted in 38 atoms of 1"),
        ("mi210", "99999999999999999999", "104 CUs"),
    ],
)
def test_a_split_finer_than_the_atoms(on: MakeHost, name: str, parts: str, message: str) -> None:
    host = on(name)
    host.generate("--split", parts).failed("cannot be split", message)
    assert list(host.folder.iterdir()) == []


def test_the_same_input_gives_the_same_bytes(radeons: Host) -> None:
    first = radeons.generate("--split", "2", "--json").done().json
    assert first["changed"] is True
    assert first["path"] == str(radeons.spec_file)
    before = snapshot(radeons.folder)
    second = radeons.generate("--split", "2", "--json").done().json
    assert second == first | {"changed": False}
    # Inodes and times of change are in the snapshot: nothing was written.
    assert snapshot(radeons.folder) == before
    assert radeons.generate("--split", "2").done().out.startswith("up to date:")
    radeons.spec_file.unlink()
    radeons.generate("--split", "2").done()
    assert radeons.spec_file.read_bytes() == before[str(radeons.spec_file)][3]


def test_everyone_may_read_specs_whatever_the_umask(radeons: Host) -> None:
    radeons.under("sh", "-c", 'umask 077; exec "$@"', "sh").generate("--split", "2").done()
    for path in (radeons.spec_dir, radeons.state_dir, radeons.state_dir / "shares"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    values = radeons.state_dir / "shares/0-1of2.conf"
    for path in (radeons.spec_file, radeons.ledger_file, values):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    radeons.spec_file.chmod(0o600)
    radeons.generate("--split", "2").done()
    assert stat.S_IMODE(radeons.spec_file.stat().st_mode) == 0o644


def test_options_of_generate_are_kept_by_later_commands(radeons: Host) -> None:
    arguments = ["--output", "cdi/mine.json", "--hook-path", "/opt/hook", "--require", "dmem"]
    arguments += ["--hook-stage", "createRuntime", "--library-path", "/opt/lib.so"]
    radeons.spec_dir.mkdir()
    radeons.generate(*arguments).done()
    radeons.share("create", "x", "--gpu", "0", "--cores", "50").done()
    assert [path.name for path in paths_in(radeons.spec_dir)] == ["mine.json"]
    edits = devices(load(radeons.spec_dir / "mine.json"))["share-x"]
    (hook,) = edits["hooks"]
    assert (hook["path"], hook["hookName"]) == ("/opt/hook", "createRuntime")
    assert hook["args"][:6] == ["hook", "run", "--share", "share-x", "--require", "dmem"]
    assert edits["mounts"][0]["hostPath"] == "/opt/lib.so"
    # Another place or format takes the file along.
    radeons.generate().done()
    assert [path.name for path in paths_in(radeons.spec_dir)] == ["amd.com-gpu.yaml"]


def test_the_way_into_the_spec_directory_does_not_matter(radeons: Host) -> None:
    radeons.generate().done()
    (radeons.folder / "link").symlink_to(radeons.spec_dir)
    radeons.generate("--output", "state/../cdi/a.yaml").done()
    assert [path.name for path in paths_in(radeons.spec_dir)] == ["a.yaml"]
    radeons.generate("--output", radeons.folder / "link/b.yaml").done()
    assert [path.name for path in paths_in(radeons.spec_dir)] == ["b.yaml"]


def test_a_copy_elsewhere_leaves_the_state_alone(radeons: Host) -> None:
    radeons.generate().done()
    before = snapshot(radeons.folder)
    copy = radeons.folder / "copy.json"
    result = radeons.generate("--output", copy, "--split", "2", "--json").done().json
    assert (result["path"], result["changed"]) == (str(copy), True)
    assert "0-2of2" in devices(load(copy))
    copy.unlink()
    assert snapshot(radeons.folder) == before


def test_dry_run_says_what_would_change(radeons: Host) -> None:
    radeons.generate().done()
    result = radeons.generate("--dry-run", "--split", "1").done()
    assert result.out.splitlines()[1:] == ["+ 0-1of1", "+ 1-1of1"]
    as_json = radeons.generate("--dry-run", "--device-name-strategy", "pci", "--json").done().json
    assert as_json["added"] == ["0000:03:00.0", "0000:43:00.0"]
    assert as_json["removed"][::2] == ["0", "1"]


def toolkit_file(host: Host, *names: str) -> Path:
    """Lay the spec that AMD's own toolkit writes: the same kind, and the same names."""
    host.spec_dir.mkdir(exist_ok=True)
    path = host.spec_dir / "amd.json"
    node = {"path": "/dev/dri/renderD128", "type": "c", "major": 226, "minor": 128}
    path.write_text(
        json.dumps(
            {
                "cdiVersion": "0.6.0",
                "kind": "amd.com/gpu",
                "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]},
                "devices": [
                    {"name": name, "containerEdits": {"deviceNodes": [node]}} for name in names
                ],
            }
        )
    )
    return path


def test_names_of_another_spec_are_left_out(radeons: Host) -> None:
    other = toolkit_file(radeons, "0", "1", "all")
    before = other.read_bytes()
    result = radeons.generate().done()
    assert f"{other} already has the amd.com/gpu devices 0, 1, all" in result.err
    assert list(devices(load(radeons.spec_file))) == [
        "5fff744c-0000-1000-802e-90b7c4d1863a",
        "b8ff744c-0000-1000-801d-64f30ea7952c",
    ]
    assert other.read_bytes() == before
    # The runtime's view: no name stands twice.
    listed = radeons.run("list").done().out.splitlines()
    assert len(listed) == len(set(listed)) == 5
    other.unlink()
    radeons.generate().done()
    assert "all" in devices(load(radeons.spec_file))


def test_a_conflict_can_be_an_error(radeons: Host) -> None:
    other = toolkit_file(radeons, "1")
    before = snapshot(radeons.folder)
    radeons.generate("--on-conflict", "fail").failed(str(other), "devices 1,", "--on-conflict omit")
    assert snapshot(radeons.folder) == before


def test_nothing_left_to_offer_is_an_error(radeons: Host) -> None:
    toolkit_file(radeons, "0", "1", "all")
    before = snapshot(radeons.folder)
    radeons.generate("--device-name-strategy", "index").failed("other specs have all names")
    assert snapshot(radeons.folder) == before


def test_another_kind_is_no_conflict(radeons: Host) -> None:
    path = toolkit_file(radeons, "0", "1", "all")
    path.write_text(path.read_text().replace("amd.com/gpu", "vendor.com/gpu"))
    assert radeons.generate("--on-conflict", "fail").done()


def test_strings_survive_a_yaml_1_1_reader(radeons: Host) -> None:
    """Names and paths that an unquoted YAML reads as numbers, dates, booleans or nothing."""
    text = radeons.generate("--output", "-", "--hook-path", "/0x1f").done().out
    assert devices(yaml.safe_load(text)).keys() == devices(yaml.load(text, yaml.BaseLoader)).keys()
    for name in ("1e3", "yes", "2020-01-01"):
        radeons.share("create", name, "--gpu", "0", "--cores", "1", "--memory", "1MiB").done()
    document = load(radeons.spec_file)
    assert document["cdiVersion"] == "0.5.0"
    assert all(type(device["name"]) is str for device in document["devices"])
    assert {device["name"] for device in document["devices"]} >= {"0", "share-1e3", "share-yes"}


def test_a_state_directory_below_the_sysroot_is_as_the_host_sees_it(own: MakeHost) -> None:
    host = own("rx7900xtx")
    variables = {"AMD_CDI_STATE_DIR": "", "AMD_CDI_SPEC_DIR": ""}
    host.run("generate", "--split", "2", **variables).done()
    document = load(host.sysroot / "etc/cdi/amd.com-gpu.yaml")
    mounts = devices(document)["0-1of2"]["mounts"]
    assert [mount["hostPath"] for mount in mounts] == [
        "/opt/amd-cdi/current/libamvgpu.so",
        "/var/lib/amd-cdi/shares/0-1of2.conf",
    ]
    assert (host.sysroot / "var/lib/amd-cdi/shares/0-1of2.conf").read_text() == (
        "ROCR_VISIBLE_DEVICES=GPU-5f2e90b7c4d1863a\n"
        "HIP_VISIBLE_DEVICES=0\n"
        "HSA_CU_MASK=0:0-47\n"
        f"HIP_DEVICE_MEMORY_LIMIT_0={12280 << 20}\n"
        "LD_AUDIT=/usr/local/vgpu/libamvgpu.so\n"
    )


def test_what_is_missing_on_the_host_is_told(own: MakeHost) -> None:
    host = own("rx7900xtx")
    result = host.generate("--split", "2").done()
    assert "the hook is not at /opt/amd-cdi/current/amd-oci-hook" in result.err
    assert "the library is not at /opt/amd-cdi/current/libamvgpu.so" in result.err
    folder = host.sysroot / "opt/amd-cdi/current"
    folder.mkdir(parents=True)
    for name in ("amd-oci-hook", "libamvgpu.so"):
        (folder / name).touch()
    (line,) = host.generate("--split", "2").done().err.splitlines()
    assert f"{host.sysroot}/run/amd-cdi/usage is no filesystem of its own" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hook-path", "hook"], "hook-path must be an absolute path"),
        (["--library-path", "/a\nb"], "library-path must be an absolute path"),
        (["--output", "cdi/amd.txt"], "file must be a file name in .yaml or .json"),
        (["--state-dir", "cdi"], "is both the state and the spec directory"),
        (["--state-dir", "a\u2028b"], "a path of printable characters was expected"),
    ],
)
def test_options_that_cannot_be(radeons: Host, arguments: list[str], message: str) -> None:
    radeons.generate(*arguments).failed(message, status=2)
    assert list(radeons.folder.iterdir()) == []


def test_a_copy_goes_into_a_folder_that_is_there(radeons: Host) -> None:
    radeons.generate("--output", "none/x.yaml").failed("none: No such file or directory")
    assert list(radeons.folder.iterdir()) == []


def test_a_device_is_never_replaced_by_a_file(radeons: Host) -> None:
    need.superuser("replacing a device node")
    null = radeons.folder / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (radeons.folder / "link").symlink_to("null")
    before = snapshot(radeons.folder)
    for name in ("null", "link"):
        radeons.generate("--output", name).failed("a regular file was expected", "standard output")
    assert snapshot(radeons.folder) == before
