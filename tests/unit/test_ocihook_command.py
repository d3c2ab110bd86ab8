"""The hook as the runtime starts it: installed, alone, with an empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ocihook.install import install
from tests import hook_program
from tests.ocihook_scene import APU, BYTES, CAPACITY, PCI, REGION, ROCR, Scene, bind, device, write

SYSTEM = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    install(folder / "lib", SYSTEM, folder / "hook.pyz")
    return folder


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hook_program.build(tmp_path_factory.mktemp("program"))


@pytest.fixture
def plain(installed: Path) -> list[str]:
    """The hook as plain files, run by the host's Python."""
    return [str(installed / "lib/amd-oci-hook")]


@pytest.fixture(params=["plain", "program"])
def hook(request: pytest.FixtureRequest) -> list[str]:
    """Either form of the hook."""
    if request.param == "plain":
        return request.getfixturevalue("plain")
    return [str(request.getfixturevalue("program"))]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def with_image(scene: Scene) -> Scene:
    """Give the container the machine's own programs."""
    for path in ("/bin", "/lib", "/lib64", "/usr"):
        if Path(path).exists():
            scene.config["mounts"].insert(0, bind(path, path))
    return scene


def cap(scene: Scene) -> str:
    return (scene.group / "dmem.max").read_text()


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """Check that a run is a refusal as it must be, and return its one line."""
    assert result.returncode == 1
    assert result.stdout == ""
    assert re.fullmatch(
        r"amd-oci-hook: container \S+: (share \S+: )?refused: expected .*, found .*; .*\n",
        result.stderr,
    )
    assert "Traceback" not in result.stderr
    return result.stderr


# What it decides


def test_dmem_holds(scene: Scene, hook: list[str]) -> None:
    result = scene.lay().run(hook)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert cap(scene) == f"{REGION} {BYTES}\n"


def test_library_holds(scene: Scene, hook: list[str]) -> None:
    result = with_image(scene).lay(dmem=False).run(hook)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["library", "values"])
def test_a_mount_of_the_users_own_is_not_the_shares(
    scene: Scene, hook: list[str], tmp_path: Path, name: str
) -> None:
    """Docker lets a mount of the user's take the place of the one that CDI gives."""
    own = getattr(with_image(scene).lay(dmem=False), name)
    other = tmp_path / "other"
    shutil.copyfile(own, other)
    for mount in scene.config["mounts"]:
        if mount["source"] == str(own):
            mount["source"] = str(other)
    reason = refused(scene.lay_bundle().run(hook))
    assert f"expected {own} at /usr/local/vgpu/" in reason
    assert str(other) in reason


@pytest.mark.parametrize("name", ["library", "values"])
def test_a_mount_that_can_be_written_is_not_the_shares(
    scene: Scene, hook: list[str], name: str
) -> None:
    own = getattr(with_image(scene).lay(dmem=False), name)
    for mount in scene.config["mounts"]:
        if mount["source"] == str(own):
            mount["options"] = ["bind", "rw"]
    assert "read-only" in refused(scene.lay_bundle().run(hook))


def test_an_index_needs_every_other_gpu_away(scene: Scene, hook: list[str]) -> None:
    """It counts the GPUs that the container can open: beside another it names that one."""
    scene.environment["ROCR_VISIBLE_DEVICES"] = "0"
    scene.gpus = [gpu.replace(ROCR, "0") for gpu in scene.gpus]
    assert scene.lay().run(hook, "--allow-extra-devices").returncode == 0
    scene.config["linux"]["devices"].append(device("/dev/dri/renderD200", 226, 200))
    reason = refused(scene.lay().run(hook, "--allow-extra-devices"))
    assert "/dev/dri/renderD200" in reason


def test_a_share_without_a_size_is_refused(scene: Scene, hook: list[str]) -> None:
    scene.gpus = [gpu.replace(f"bytes={BYTES}", "bytes=0") for gpu in scene.gpus]
    assert "bytes= from 1 to" in refused(scene.lay().run(hook))


def test_neither_holds(scene: Scene, hook: list[str]) -> None:
    line = refused(scene.lay(dmem=False).run(hook))
    assert line.startswith("amd-oci-hook: container c1: share share-a: refused: expected ")
    # Both reasons: no image, and no dmem.
    assert "the program '/bin/true' in the container's image" in line
    assert "dmem.capacity" in line


@pytest.mark.parametrize(
    ("require", "dmem", "image", "status"),
    [
        ("any", True, True, 0),
        ("any", True, False, 0),
        ("any", False, True, 0),
        ("any", False, False, 1),
        ("dmem", True, False, 0),
        ("dmem", False, True, 1),
        ("library", False, True, 0),
        ("library", True, False, 1),
        ("none", False, False, 0),
    ],
)
def test_policy(
    scene: Scene, hook: list[str], require: str, dmem: bool, image: bool, status: int
) -> None:
    scene.require = require
    if image:
        with_image(scene)
    assert scene.lay(dmem=dmem).run(hook).returncode == status
    if dmem:
        capped = require in {"any", "dmem"}
        assert cap(scene) == (f"{REGION} {BYTES}\n" if capped else f"{REGION} max\n")


# dmem does not charge what an APU has of the host's memory. Its region is there all the same.

UNCHARGED = f"dmem does not charge the memory that {APU} has of the host's"


@pytest.mark.parametrize(
    ("require", "dmem", "image", "held"),
    [
        ("any", True, True, "the library, glibc "),
        ("any", True, False, None),
        ("any", False, True, "the library, glibc "),
        ("any", False, False, None),
        ("dmem", True, True, None),
        ("dmem", True, False, None),
        ("library", True, True, "the library, glibc "),
        ("library", True, False, None),
        ("none", True, False, "nothing, as --require none says"),
    ],
)
def test_memory_of_an_apu_is_the_librarys_to_hold(
    scene: Scene, hook: list[str], require: str, dmem: bool, image: bool, held: str | None
) -> None:
    scene.on_apu().require = require
    if image:
        with_image(scene)
    result = scene.lay(dmem=dmem).run(hook)
    if held:
        assert result.returncode == 0, result.stderr
        assert f"share share-a: memory held by {held}" in scene.log.read_text()
        assert "dmem" not in scene.log.read_text()
    else:
        assert UNCHARGED in refused(result)
    if dmem:
        assert cap(scene) == f"{REGION} max\n"


@pytest.mark.parametrize(
    ("require", "dmem", "image", "held"),
    [
        ("any", True, True, f"dmem {REGION}={BYTES} and the library, glibc "),
        ("any", True, False, None),
        ("any", False, True, "the library, glibc "),
        ("any", False, False, None),
        ("dmem", True, True, None),
        ("library", True, True, "the library, glibc "),
        ("library", True, False, None),
        ("none", True, False, "nothing, as --require none says"),
    ],
)
def test_every_part_of_a_share_over_an_apu_and_a_gpu_of_its_own_memory_is_held(
    scene: Scene, hook: list[str], require: str, dmem: bool, image: bool, held: str | None
) -> None:
    scene.with_apu().require = require
    if image:
        with_image(scene)
    result = scene.lay(dmem=dmem).run(hook)
    if held:
        assert result.returncode == 0, result.stderr
        assert f"share share-a: memory held by {held}" in scene.log.read_text()
    else:
        assert UNCHARGED in refused(result)
    if dmem:
        capped = held and "dmem" in held
        assert cap(scene) == (f"{REGION} {BYTES}\n" if capped else f"{REGION} max\n")


@pytest.mark.parametrize("require", ["any", "dmem", "library", "none"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HSA_CU_MASK", "0:0-303"),
        ("ROCR_VISIBLE_DEVICES", "0"),
        ("HIP_VISIBLE_DEVICES", "1"),
        ("HIP_DEVICE_MEMORY_LIMIT_0", "0"),
        ("HSA_CU_MASK_SKIP_INIT", "1"),
    ],
)
def test_bad_environment_caps_nothing(
    scene: Scene, hook: list[str], require: str, name: str, value: str
) -> None:
    scene.require = require
    scene.environment[name] = value
    assert name in refused(with_image(scene).lay().run(hook))
    assert cap(scene) == f"{REGION} max\n"


def test_privileged_container(scene: Scene, hook: list[str]) -> None:
    scene.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    scene.lay()
    line = refused(scene.run(hook))
    assert "the rule `a *:* rwm` in linux.resources.devices" in line
    assert "--allow-extra-devices" in line
    assert cap(scene) == f"{REGION} max\n"
    assert scene.run(hook, "--allow-extra-devices").returncode == 0
    assert cap(scene) == f"{REGION} {BYTES}\n"


def test_the_owner_of_a_pod_is_told_of_no_command(scene: Scene, hook: list[str]) -> None:
    scene.share = "pod-8d4b7a52-1f1e-4c55-9d0e-6d8a1a0b9f10.main"
    scene.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    scene.lay()
    line = refused(scene.run(hook))
    assert line.endswith(
        "linux.resources.devices; start it unprivileged, without /dev/dri, and with no GPU but "
        "the share\n"
    )
    # Who runs the node finds all of it.
    assert scene.log.read_text().endswith(
        f"{line.strip()}; where that is wanted, generate with --allow-extra-devices\n"
    )


def test_the_owner_of_a_pod_can_change_the_node_at_least(scene: Scene, hook: list[str]) -> None:
    scene.share = "pod-8d4b7a52-1f1e-4c55-9d0e-6d8a1a0b9f10.main"
    scene.gpus = [scene.gpus[0].replace("pci=", "pcy=")]
    line = refused(scene.lay().run(hook))
    assert line.endswith("; place the pod on another node\n")
    assert "amd-cdi generate" not in line
    assert scene.log.read_text().endswith("; write the CDI spec anew with `amd-cdi generate`\n")


def test_cap_above_capacity_falls_back(scene: Scene, hook: list[str]) -> None:
    scene.gpus = [scene.gpus[0].replace(f"bytes={BYTES}", f"bytes={CAPACITY + 1}")]
    result = with_image(scene).lay().run(hook)
    assert result.returncode == 0
    assert cap(scene) == f"{REGION} max\n"
    assert "memory held by the library" in scene.log.read_text()


# Without a share of its own


def detect(scene: Scene, hook: list[str]) -> subprocess.CompletedProcess[str]:
    return scene.call([*hook, "run", "--sysroot", str(scene.sysroot)])


def lay_arguments(scene: Scene) -> None:
    words = scene.arguments()
    write(scene.values.with_suffix(".args"), "".join(f"{word}\n" for word in words[:-2]))


def test_container_without_a_share_is_untouched(scene: Scene, hook: list[str]) -> None:
    scene.environment = {"PATH": "/bin", "HSA_CU_MASK": "0:0"}
    scene.config["mounts"] = []
    scene.config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
    result = detect(scene.lay(), hook)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert cap(scene) == f"{REGION} max\n"
    assert not scene.log.exists()


def test_container_with_a_share_is_found(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    lay_arguments(scene)
    assert detect(scene, hook).returncode == 0
    assert cap(scene) == f"{REGION} {BYTES}\n"


def test_found_share_is_checked(scene: Scene, hook: list[str]) -> None:
    scene.environment["HSA_CU_MASK"] = "0:0-303"
    scene.lay()
    lay_arguments(scene)
    assert "HSA_CU_MASK within 0:0-75" in refused(detect(scene, hook))


def test_share_with_its_own_hook_is_left_to_it(scene: Scene, hook: list[str]) -> None:
    entry = {"path": "/opt/amd-cdi/current/amd-oci-hook", "args": ["amd-oci-hook", "run"]}
    scene.config["hooks"] = {"prestart": [entry]}
    assert "the share's arguments in " in refused(detect(scene.lay(), hook))
    entry["args"] += ["--share", "share-a"]
    assert detect(scene.lay(), hook).returncode == 0
    assert cap(scene) == f"{REGION} max\n"


def test_values_of_another_place_are_no_share(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    lay_arguments(scene)
    shutil.move(scene.values, scene.bundle / "share-a.conf")
    scene.values.symlink_to(scene.bundle / "share-a.conf")
    assert "/usr/local/vgpu/share.conf from" in refused(detect(scene, hook))


def test_library_without_values_is_no_share(scene: Scene, hook: list[str]) -> None:
    scene.config["mounts"] = scene.config["mounts"][:-1]
    assert "a mount at /usr/local/vgpu/share.conf" in refused(detect(scene.lay(), hook))


def test_found_arguments_must_name_a_share(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    write(scene.values.with_suffix(".args"), "run\n")
    assert "--share in the share's arguments" in refused(detect(scene, hook))


# How it tells


def test_log_of_a_start_and_of_a_refusal(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    scene.run(hook)
    scene.state["pid"] = 1
    line = refused(scene.run(hook, "--deadline", "9"))
    first, second = scene.log.read_text().splitlines()
    stamp = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ "
    held = f"amd-oci-hook: container c1: share share-a: memory held by dmem {REGION}={BYTES}"
    assert re.fullmatch(stamp + re.escape(held), first)
    assert re.fullmatch(stamp + re.escape(line.strip()), second)
    assert stat.S_IMODE(scene.log.stat().st_mode) == 0o640 & ~umask()


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_log_is_not_written_through_a_link(scene: Scene, hook: list[str], tmp_path: Path) -> None:
    scene.lay()
    scene.log.parent.mkdir(parents=True)
    scene.log.symlink_to(tmp_path / "victim")
    assert scene.run(hook).returncode == 0
    assert not (tmp_path / "victim").exists()


def test_log_starts_anew(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    write(scene.log, "x" * 1024 * 1024)
    for _ in range(2):
        assert scene.run(hook).returncode == 0
    assert scene.log.with_name("hook.log.1").stat().st_size > 1024 * 1024
    assert scene.log.read_text().count("\n") == 1


def test_journal_where_there_is_no_log(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    (scene.sysroot / "var/log").rmdir()
    place = scene.sysroot / "run/systemd/journal/socket"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(place))
        journal.settimeout(10)
        scene.environment = {}
        scene.lay_bundle()
        line = refused(scene.run(hook))
        fields = journal.recv(65536).decode().splitlines()
    assert fields[0] == f"MESSAGE={line.strip()}"
    assert fields[1:] == ["PRIORITY=3", "SYSLOG_IDENTIFIER=amd-oci-hook", "CONTAINER_ID_FULL=c1"]


def test_no_place_to_log_changes_nothing(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    (scene.sysroot / "var/log").rmdir()
    assert scene.run(hook).returncode == 0


def test_hostile_text_stays_one_line(scene: Scene, hook: list[str]) -> None:
    scene.environment["HSA_CU_MASK"] = (
        "0:0\n\x1b[31mamd-oci-hook: all is well\u2028\udcff" + "9" * 9999
    )
    line = refused(scene.lay().run(hook))
    assert line.isascii()
    assert len(line) <= 4001
    scene.state["id"] = "c\n2\x1b" + "x" * 500
    line = scene.run(hook).stderr
    assert line.count("\n") == 1
    assert "\x1b" not in line


def test_closed_standard_error(scene: Scene, hook: list[str]) -> None:
    scene.environment["HSA_CU_MASK"] = "0:0-303"
    scene.lay()
    command = " ".join(["exec", *hook, *scene.arguments(), "2>&-"])
    result = subprocess.run(
        ["/bin/sh", "-c", command], input=json.dumps(scene.state), text=True, check=False, env={}
    )
    assert result.returncode == 1
    assert "HSA_CU_MASK" in scene.log.read_text()


# When it goes wrong


def test_deadline(scene: Scene, hook: list[str]) -> None:
    """A state that never ends: standard input stays open."""
    scene.lay()
    start = time.monotonic()
    with subprocess.Popen(
        [*hook, *scene.arguments("--deadline", "0.5")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.read()
        assert process.wait() == 1
    assert 0.4 < time.monotonic() - start < 5
    assert "expected the checks to end in time" in line
    assert "within the deadline" not in cap(scene)


def test_default_deadline_is_below_the_timeout_of_the_device(scene: Scene, hook: list[str]) -> None:
    scene.lay()
    start = time.monotonic()
    with subprocess.Popen(
        [*hook, *scene.arguments()], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    ) as process:
        assert process.wait(timeout=9) == 1
    assert time.monotonic() - start < 8


def test_unforeseen_error_is_a_refusal(scene: Scene, hook: list[str]) -> None:
    scene.config["root"]["path"] = "a" * 300
    line = refused(scene.lay(dmem=False).run(hook))
    assert re.search(
        r"found OSError: .* File name too long: .* \((.*/)?ocihook/rootfs\.py:\d+\)", line
    )


@pytest.mark.parametrize("text", ["", "null", "{}", '{"id":"c1"}', "x" * 5_000_000])
def test_garbage_for_a_state(scene: Scene, hook: list[str], text: str) -> None:
    scene.lay()
    result = subprocess.run(
        [*hook, *scene.arguments()], input=text, env={}, capture_output=True, text=True, check=False
    )
    refused(result)
    assert cap(scene) == f"{REGION} max\n"


def test_no_command(scene: Scene, hook: list[str]) -> None:
    command = [*hook, "--sysroot", str(scene.sysroot)]
    result = subprocess.run(command, input="", env={}, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "expected `amd-oci-hook run " in result.stderr


def test_incomplete_installation(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed / "lib", tmp_path / "lib")
    shutil.rmtree(tmp_path / "lib/cdi")
    result = subprocess.run(
        [tmp_path / "lib/amd-oci-hook", "run"], env={}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "install amd-cdi anew" in result.stderr
    assert "Traceback" not in result.stderr


# How it is installed


def test_started_through_a_link_from_anywhere(
    scene: Scene, hook: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder named as its modules beside it, and in the working folder, must not be taken."""
    (tmp_path / "elsewhere/ocihook").mkdir(parents=True)
    (tmp_path / "elsewhere/ocihook/__main__.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "elsewhere/hook").symlink_to(hook[0])
    monkeypatch.chdir(tmp_path / "elsewhere")
    scene.environment = {}
    refused(scene.lay().run([str(tmp_path / "elsewhere/hook")]))


def test_zip_file_decides_the_same(scene: Scene, installed: Path) -> None:
    archive = [str(installed / "hook.pyz")]
    assert scene.lay().run(archive).returncode == 0
    assert cap(scene) == f"{REGION} {BYTES}\n"
    scene.environment["HSA_CU_MASK"] = "0:0-303"
    assert "HSA_CU_MASK" in refused(scene.lay().run(archive))


TELL_MODULES = """
import sys
hook, sys.argv[1:] = sys.argv[1], sys.argv[2:]
try:
    exec(compile(open(hook).read(), hook, "exec"), {"__name__": "__main__", "__file__": hook})
except SystemExit:
    for name, module in sys.modules.items():
        print(name, getattr(module, "__file__", ""), sep="\t")
    raise
"""


@pytest.mark.parametrize("dmem", [True, False])
def test_nothing_third_party_is_imported(scene: Scene, plain: list[str], dmem: bool) -> None:
    command = [SYSTEM, "-I", "-S", "-c", TELL_MODULES, *plain]
    result = with_image(scene).lay(dmem=dmem).run(command)
    assert result.returncode == 0
    modules = dict(line.split("\t") for line in result.stdout.splitlines())
    own = {name for name in modules if name.split(".")[0] not in sys.stdlib_module_names}
    own.discard("__main__")
    assert {name.split(".")[0] for name in own} == {"cdi", "ocihook"}
    assert {name for name in own if name.startswith("cdi")} == {"cdi", "cdi.cumask"}
    assert not any("-packages" in place for place in modules.values())
    # Each of these costs more to import than the hook may take.
    assert not {"re", "typing", "pathlib", "subprocess", "argparse", "dataclasses"} & set(modules)


def test_a_controller_whose_files_are_still_to_come_is_waited_for(
    scene: Scene, hook: list[str]
) -> None:
    """Another hook enables it: it is listed before its files are there (seen on 7.3)."""
    scene.require = "dmem"
    scene.lay()
    (scene.group / "dmem.max").unlink()
    refused(scene.run(hook))
    assert (scene.group.parent / "cgroup.subtree_control").read_text().startswith("+dmem")


def test_bytecode_is_in_place(installed: Path) -> None:
    sources = list((installed / "lib/ocihook").glob("*.py"))
    compiled = list((installed / "lib/ocihook/__pycache__").glob("*.pyc"))
    assert len(sources) == len(compiled) > 10
    assert not (installed / "lib/ocihook/install.py").exists()


# Many at once


def test_64_at_once(scene: Scene, hook: list[str], tmp_path: Path) -> None:
    """One log and one tree of cgroups, a container's cgroup each; every fourth is refused."""
    scene.lay()
    scenes = []
    for number in range(64):
        other = Scene(tmp_path / str(number))
        other.sysroot = scene.sysroot
        other.state |= {"pid": 5000 + number, "id": f"c{number}"}
        if number % 4 == 0:
            other.environment["HSA_CU_MASK"] = "0:0-303"
        group = scene.group.with_name(f"cri-{number}.scope")
        write(
            scene.sysroot / f"proc/{5000 + number}/cgroup",
            f"0::/kubepods.slice/pod1.slice/{group.name}\n",
        )
        write(group / "dmem.max", f"{REGION} max\n")
        other.lay_bundle()
        scenes.append((other, group))
    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(lambda pair: pair[0].run(hook), scenes))
    for number, (result, (_, group)) in enumerate(zip(results, scenes, strict=True)):
        held = number % 4 != 0
        assert (result.returncode == 0) is held
        expected = f"{REGION} {BYTES}\n" if held else f"{REGION} max\n"
        assert (group / "dmem.max").read_text() == expected
    lines = scene.log.read_text().splitlines()
    assert len(lines) == 64
    assert sum("memory held by dmem" in line for line in lines) == 48
    assert PCI in lines[0] or ROCR in lines[0] or "HSA_CU_MASK" in lines[0]
