"""Whether the container's programs would load the library: real programs, hostile images."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from ocihook import libc
from ocihook.arguments import parse
from ocihook.bundle import Container
from ocihook.elf import Elf, ElfError, glibc
from ocihook.refusal import Refusal
from ocihook.rootfs import Rootfs
from tests import need
from tests.ocihook_scene import BYTES, LIBRARY, VALUES, Scene, bind, write

GIB = 1024**3
SOURCE = "int main(void) { return 0; }\n"
X86 = platform.machine() == "x86_64"


def compiled(folder: Path, name: str, *options: str, compiler: str = "gcc") -> Path:
    need.program(compiler)
    source = folder / "main.c"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-o", folder / name, *options, source], check=True)
    return folder / name


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    compiled(folder, "dynamic")
    compiled(folder, "static", "-static")
    compiled(folder, "static-pie", "-static-pie")
    return folder


def host_path(path: str) -> Path:
    return Path(os.path.realpath(path))


def interpreter_of(program: Path) -> str:
    """Ask readelf, which knows nothing of the code under test."""
    need.program("readelf")
    text = subprocess.run(
        ["readelf", "-lW", program], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"program interpreter: (.*)\]", text)
    return found.group(1) if found else ""


def versions_of(library: Path) -> set[str]:
    """The defined versions, by readelf; the first is the file's own name."""
    text = subprocess.run(
        ["readelf", "-VW", library], capture_output=True, text=True, check=True
    ).stdout
    section = text.split("Version definition section")[1].split("Version needs section")[0]
    return set(re.findall(r"Index: \d+\s+Cnt: \d+\s+Name: (\S+)", section))


def libc_of(program: Path) -> Path:
    need.program("ldd")
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = re.search(r"libc\.so\.6 => (\S+)", text)
    assert found
    return Path(found.group(1))


def elf(path: Path) -> Elf:
    return Elf(os.open(path, os.O_RDONLY))


@pytest.fixture
def scene(tmp_path: Path, programs: Path) -> Scene:
    """An image with one glibc program, its loader and its libc, laid by hand."""
    scene = Scene(tmp_path).lay()
    program = programs / "dynamic"
    add(scene, "/bin/app", program)
    add(scene, interpreter_of(program), host_path(interpreter_of(program)))
    add(scene, str(libc_of(program)), libc_of(program))
    scene.config["process"]["args"] = ["/bin/app"]
    return scene


def inside(scene: Scene, path: str) -> Path:
    return scene.rootfs / path.lstrip("/")


def add(scene: Scene, path: str, source: Path) -> Path:
    place = inside(scene, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    shutil.copy(source, place)
    return place


def link(scene: Scene, path: str, target: str) -> None:
    place = inside(scene, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def judge(scene: Scene) -> str:
    """Return what holds, or the refusal after a minus."""
    scene.config["process"]["env"] = [f"{k}={v}" for k, v in scene.environment.items()]
    before = len(list(Path("/proc/self/fd").iterdir()))
    try:
        share = parse(scene.arguments()).share
        assert share is not None
        return libc.check(Container(scene.config, str(scene.bundle)), share)
    except Refusal as refusal:
        return f"- {refusal}"
    finally:
        assert len(list(Path("/proc/self/fd").iterdir())) == before, "a descriptor was left open"


# ELF


def test_interpreter(programs: Path) -> None:
    assert elf(programs / "dynamic").interpreter == interpreter_of(programs / "dynamic") != ""
    assert elf(programs / "static").interpreter is None
    assert elf(programs / "static-pie").interpreter is None


def test_versions(programs: Path) -> None:
    for path in (libc_of(programs / "dynamic"), host_path(interpreter_of(programs / "dynamic"))):
        assert set(elf(path).versions()) == versions_of(path)
    assert elf(programs / "dynamic").versions() == []


@pytest.mark.parametrize(
    ("names", "version"),
    [
        (["libc.so.6", "GLIBC_2.2.5", "GLIBC_2.31", "GLIBC_2.9", "GLIBC_PRIVATE"], (2, 31)),
        (["GLIBC_2.34"], (2, 34)),
        (["GLIBCXX_3.4.30", "CXXABI_1.3"], (0, 0)),
        (["GLIBC_", "GLIBC_2", "GLIBC_2.x", "XGLIBC_2.40"], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_newest_version(names: list[str], version: tuple[int, int]) -> None:
    assert glibc(names) == version


def test_files_cut_short(programs: Path, tmp_path: Path) -> None:
    whole = libc_of(programs / "dynamic").read_bytes()
    for size in (0, 4, 63, 64, 100, 1000, len(whole) // 2):
        (tmp_path / "cut").write_bytes(whole[:size])
        try:
            found = elf(tmp_path / "cut").versions()
        except ElfError:
            continue
        pytest.fail(f"{size} bytes were taken: {found[:3]}")


def test_damaged_headers_never_surprise(programs: Path, tmp_path: Path) -> None:
    whole = bytearray((programs / "dynamic").read_bytes())
    for place in range(16, 64 + 56 * 13):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "damaged").write_bytes(damaged)
        descriptor = os.open(tmp_path / "damaged", os.O_RDONLY)
        try:
            Elf(descriptor).versions()
        except ElfError:
            pass
        finally:
            os.close(descriptor)


# Images


def test_glibc_image(scene: Scene) -> None:
    libraries = [libc_of(inside(scene, "/bin/app")), inside(scene, interpreter_of(Path("/bin/sh")))]
    names = [" ".join(versions_of(path)) for path in libraries]
    oldest = min(max(map(int, re.findall(r"GLIBC_2\.(\d+)(?![\d.])", text))) for text in names)
    assert judge(scene) == f"glibc 2.{oldest} or later"


@pytest.mark.parametrize("name", ["static", "static-pie"])
def test_static_entrypoint(scene: Scene, programs: Path, name: str) -> None:
    add(scene, "/bin/app", programs / name)
    assert "found a static program at '/bin/app'" in judge(scene)


def test_static_shell_beside_a_good_entrypoint(scene: Scene, programs: Path) -> None:
    add(scene, "/bin/sh", programs / "static")
    assert "expected '/bin/sh' as a dynamic program" in judge(scene)


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_entrypoint_that_gains_privileges(scene: Scene, mode: int) -> None:
    inside(scene, "/bin/app").chmod(mode)
    assert "found a program with privileges at '/bin/app'" in judge(scene)


def test_entrypoint_with_capabilities(scene: Scene) -> None:
    need.superuser("setting capabilities")
    # Version 2, effective, CAP_NET_RAW permitted: as `setcap cap_net_raw+ep` writes it.
    raw = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(inside(scene, "/bin/app"), "security.capability", raw)
    assert "found a program with privileges at '/bin/app'" in judge(scene)


def test_musl_entrypoint(scene: Scene, tmp_path: Path) -> None:
    program = compiled(tmp_path, "musl", compiler="musl-gcc")
    add(scene, "/bin/app", program)
    assert "no file at '/lib/ld-musl" in judge(scene)
    add(scene, interpreter_of(program), host_path(interpreter_of(program)))
    assert re.search(r"the loader '/lib/ld-musl.*none of glibc's", judge(scene))


def test_musl_shell_in_a_glibc_image(scene: Scene, tmp_path: Path) -> None:
    program = compiled(tmp_path, "musl", compiler="musl-gcc")
    add(scene, "/bin/sh", program)
    add(scene, interpreter_of(program), host_path(interpreter_of(program)))
    assert "expected '/bin/sh' as a dynamic program" in judge(scene)


def lower(path: Path) -> None:
    """Make an old glibc of a new one: rename its versions from 2.32 on to older ones."""
    data = path.read_bytes()
    for minor in range(32, 60):
        data = data.replace(b"\0GLIBC_2.%d\0" % minor, b"\0GLIBC_2.10\0")
    path.write_bytes(data)


def test_old_libc(scene: Scene, programs: Path) -> None:
    lower(inside(scene, str(libc_of(programs / "dynamic"))))
    assert re.search(r"the libc '.*libc\.so\.6', glibc older than 2\.34;", judge(scene))


def test_old_loader(scene: Scene, programs: Path) -> None:
    lower(inside(scene, interpreter_of(programs / "dynamic")))
    assert re.search(r"the loader '.*', glibc older than 2\.34;", judge(scene))


def test_no_libc(scene: Scene, programs: Path) -> None:
    inside(scene, str(libc_of(programs / "dynamic"))).unlink()
    assert "no libc.so.6 for" in judge(scene)


def test_merged_usr(scene: Scene) -> None:
    for name in ("bin", "lib", "lib64"):
        if inside(scene, name).exists():
            inside(scene, "usr").mkdir(exist_ok=True)
            inside(scene, name).rename(inside(scene, f"usr/{name}"))
        link(scene, name, f"usr/{name}")
    assert judge(scene).startswith("glibc 2.")


def test_libc_beside_a_loader_elsewhere(scene: Scene, programs: Path) -> None:
    """As in Nix: nothing under /lib, the loader behind links in a folder of its own."""
    loader = interpreter_of(programs / "dynamic")
    shutil.move(inside(scene, loader), inside(scene, "store-ld.so"))
    add(scene, "/store/glibc/ld.so", inside(scene, "store-ld.so"))
    old = inside(scene, str(libc_of(programs / "dynamic")))
    add(scene, "/store/glibc/libc.so.6", old)
    old.unlink()
    link(scene, loader, "/../../store/glibc/./ld.so")
    assert judge(scene).startswith("glibc 2.")


def test_program_on_the_path(scene: Scene) -> None:
    scene.config["process"]["args"] = ["app"]
    scene.environment["PATH"] = "/usr/bin::/bin"
    assert judge(scene).startswith("glibc 2.")
    scene.environment["PATH"] = "/usr/bin"
    assert "the program 'app' in the container's image, found none" in judge(scene)


def test_folder_named_as_the_program_is_passed_over(scene: Scene, programs: Path) -> None:
    scene.environment["PATH"] = "/opt:/bin"
    scene.config["process"]["args"] = ["app"]
    inside(scene, "/opt/app").mkdir(parents=True)
    assert judge(scene).startswith("glibc 2.")
    add(scene, "/bin/app", programs / "static")
    assert "a static program at '/bin/app'" in judge(scene)


def test_program_that_may_not_run_is_passed_over(scene: Scene, programs: Path) -> None:
    add(scene, "/usr/bin/app", programs / "static").chmod(0o644)
    scene.config["process"]["args"] = ["app"]
    assert judge(scene).startswith("glibc 2.")


def test_program_relative_to_the_working_folder(scene: Scene) -> None:
    scene.config["process"]["args"] = ["./app"]
    scene.config["process"]["cwd"] = "/bin"
    assert judge(scene).startswith("glibc 2.")


def script(scene: Scene, path: str, line: str) -> None:
    write(inside(scene, path), f"{line}\nexit 0\n")
    inside(scene, path).chmod(0o755)
    scene.config["process"]["args"] = [path]


def test_scripts_lead_to_their_program(scene: Scene, programs: Path) -> None:
    script(scene, "/two", "#! /bin/app -x")
    script(scene, "/one", "#!/two")
    assert judge(scene).startswith("glibc 2.")
    add(scene, "/bin/app", programs / "static")
    assert "a static program at '/bin/app'" in judge(scene)


def test_scripts_in_a_circle(scene: Scene) -> None:
    script(scene, "/one", "#!/one")
    assert "more than 5 scripts" in judge(scene)


@pytest.mark.parametrize("line", ["exit 0", "#!", "#!   ", ""])
def test_text_that_is_no_program(scene: Scene, line: str) -> None:
    script(scene, "/one", line)
    assert re.search(
        r"(no 64-bit little-endian ELF file|of 64 bytes at 0x0) at '/one'", judge(scene)
    )


def test_engines_init_is_not_the_program(scene: Scene, programs: Path) -> None:
    scene.config["process"]["args"] = ["/sbin/docker-init", "--", "/bin/app", "--", "/nowhere"]
    scene.config["mounts"].append(bind("/sbin/docker-init", programs / "static"))
    assert judge(scene).startswith("glibc 2.")
    scene.config["process"]["args"] = ["/sbin/docker-init", "--"]
    assert "a static program at '/sbin/docker-init'" in judge(scene)


def test_images_own_init_is_the_program(scene: Scene, programs: Path) -> None:
    add(scene, "/sbin/docker-init", programs / "static")
    scene.config["process"]["args"] = ["/sbin/docker-init", "--", "/bin/app"]
    assert "a static program at '/sbin/docker-init'" in judge(scene)


def test_program_on_a_volume(scene: Scene, tmp_path: Path) -> None:
    shutil.copy(inside(scene, "/bin/app"), tmp_path / "tool")
    (tmp_path / "again").symlink_to("/opt/not/in/the/image/tool")
    scene.config["mounts"].append(bind("/opt/not/in/the/image", tmp_path))
    for name in ("tool", "again", "./x/../tool"):
        (tmp_path / "x").mkdir(exist_ok=True)
        scene.config["process"]["args"] = [f"/opt/not/in/the/image/{name}"]
        assert judge(scene).startswith("glibc 2."), name


def test_volume_over_the_program(scene: Scene, programs: Path) -> None:
    (programs / "app").exists() or shutil.copy(programs / "static", programs / "app")
    scene.config["mounts"].append(bind("/bin", programs))
    assert "a static program at '/bin/app'" in judge(scene)


def test_tmpfs_over_the_program(scene: Scene) -> None:
    scene.config["mounts"].append({"destination": "/bin", "type": "tmpfs", "source": "tmpfs"})
    assert "the program '/bin/app' in the container's image, found none" in judge(scene)


def test_mount_that_cannot_be_looked_into(scene: Scene) -> None:
    scene.config["mounts"].append({"destination": "/bin", "type": "overlay", "source": "overlay"})
    assert "a mount of the type 'overlay' at '/bin'" in judge(scene)


def test_empty_image(scene: Scene) -> None:
    shutil.rmtree(scene.rootfs)
    scene.rootfs.mkdir()
    assert "the program '/bin/app' in the container's image, found none" in judge(scene)


# Hostile images


@pytest.mark.parametrize("target", ["/bin/app", "app", "../bin/app", "/bin/../bin/app"])
def test_links_in_a_circle(scene: Scene, target: str) -> None:
    link(scene, "/bin/app", target)
    assert "128 links in the container" in judge(scene)


def test_link_that_grows(scene: Scene) -> None:
    inside(scene, "/bin/app").unlink()
    link(scene, "/bin/x", "x/" + "y/" * 1000)
    scene.config["process"]["args"] = ["/bin/x/app"]
    assert "paths of 4096 characters" in judge(scene)


def test_path_that_is_deep(scene: Scene) -> None:
    scene.config["process"]["args"] = ["/" + "d/" * 2000 + "app"]
    assert "found none" in judge(scene)
    scene.config["process"]["args"] = ["/" + "d/" * 3000 + "app"]
    assert "paths of 4096 characters" in judge(scene)


def test_no_link_leads_out(scene: Scene, tmp_path: Path) -> None:
    shutil.copy(inside(scene, "/bin/app"), tmp_path / "outside")
    for target in (str(tmp_path / "outside"), "../" * 40 + str(tmp_path / "outside").lstrip("/")):
        link(scene, "/bin/app", target)
        assert "found none" in judge(scene)
    link(scene, "/etc", str(tmp_path))
    scene.config["process"]["args"] = ["/etc/outside"]
    assert "found none" in judge(scene)


def test_link_of_the_kernel_is_not_followed(scene: Scene) -> None:
    """A bind mount of /proc shows links that lead anywhere; their text alone counts."""
    scene.config["mounts"].append(bind("/p", "/proc/self"))
    scene.config["process"]["args"] = ["/p/exe"]
    assert "found none" in judge(scene)
    scene.config["process"]["args"] = ["/p/root/bin/true"]
    assert "found none" in judge(scene)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sock(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)
        made.bind(path.name)


def character_device(path: Path) -> None:
    need.superuser("making a device node")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (fifo, "a FIFO"),
        (sock, "a socket"),
        (character_device, "a device"),
        (Path.mkdir, "a directory"),
    ],
)
def test_other_files_are_not_opened(
    scene: Scene, programs: Path, monkeypatch: pytest.MonkeyPatch, make, kind: str
) -> None:
    monkeypatch.chdir("/")
    for path in ("/bin/app", interpreter_of(programs / "dynamic"), "/bin/sh"):
        kept = inside(scene, path).read_bytes() if inside(scene, path).exists() else None
        inside(scene, path).unlink(missing_ok=True)
        make(inside(scene, path))
        assert f"found {kind} at " in judge(scene), path
        shutil.rmtree(inside(scene, path)) if kind == "a directory" else inside(
            scene, path
        ).unlink()
        if kept is not None:
            inside(scene, path).write_bytes(kept)
            inside(scene, path).chmod(0o755)


def test_sparse_libc_of_10_gib(scene: Scene, programs: Path) -> None:
    place = inside(scene, str(libc_of(programs / "dynamic")))
    os.truncate(place, 10 * GIB)
    assert judge(scene).startswith("glibc 2.")
    place.write_bytes(b"")
    os.truncate(place, 10 * GIB)
    assert "no 64-bit little-endian ELF file" in judge(scene)


def test_root_that_is_not_there(scene: Scene) -> None:
    scene.config["root"]["path"] = "nowhere"
    assert "found none" in judge(scene)


# The library itself


@pytest.mark.parametrize("value", ["", "/usr/local/vgpu", f"x{LIBRARY}", f"{LIBRARY} "])
def test_audit_without_the_library(scene: Scene, value: str) -> None:
    scene.environment["LD_AUDIT"] = value
    assert f"expected LD_AUDIT with {LIBRARY}" in judge(scene)


def test_audit_with_more_than_the_library(scene: Scene) -> None:
    scene.environment["LD_AUDIT"] = f"/opt/tool.so:{LIBRARY}"
    assert judge(scene).startswith("glibc 2.")


@pytest.mark.parametrize("place", [0, 12])
def test_audit_with_more_than_the_loader_takes(scene: Scene, place: int) -> None:
    # glibc 2.36: "Failed loading 13 audit modules, 12 are supported.", and it loads none of them.
    modules = [f"/opt/tool{number}.so" for number in range(12)]
    scene.environment["LD_AUDIT"] = ":".join([*modules[:place], LIBRARY, *modules[place:]])
    assert "at most 7 others" in judge(scene)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HIP_DEVICE_MEMORY_LIMIT_0", str(BYTES * 2)),
        ("HSA_CU_MASK", "0:0-303"),
        ("ROCR_VISIBLE_DEVICES", "GPU-0000000000000001"),
        ("HSA_CU_MASK_SKIP_INIT", "1"),
    ],
)
def test_values_of_another_share(scene: Scene, name: str, value: str) -> None:
    # The library goes by them, whatever the environment says.
    other = {**scene.environment, name: value}
    write(scene.values, "".join(f"{k}={v}\n" for k, v in other.items()))
    assert name in judge(scene)
    assert f"without a mount at {VALUES} of its own" in judge(scene)


@pytest.mark.parametrize(
    "text", ["", "\0", "HSA_CU_MASK=0:0-303\n{}", "{}HSA_CU_MASK=0:0-303\n", "{}\0\n", "x" * 70000]
)
def test_values_that_read_differently(scene: Scene, text: str) -> None:
    scene.values.write_text(text.replace("{}", scene.values.read_text()))
    assert judge(scene).startswith("- expected")


@pytest.mark.parametrize("path", [LIBRARY, VALUES])
@pytest.mark.parametrize("first", [True, False])
def test_two_mounts_at_one_path(scene: Scene, tmp_path: Path, path: str, *, first: bool) -> None:
    source = scene.library if path == LIBRARY else scene.values
    shutil.copy(source, tmp_path / "another")
    mounts = scene.config["mounts"]
    mounts.insert(0 if first else len(mounts), bind(path, tmp_path / "another"))
    assert f"expected a bind mount at {path}" in judge(scene)


@pytest.mark.parametrize("path", [LIBRARY, VALUES])
def test_missing_mount(scene: Scene, path: str) -> None:
    mounts = scene.config["mounts"]
    scene.config["mounts"] = [mount for mount in mounts if mount["destination"] != path]
    assert f"expected a bind mount at {path}" in judge(scene)


@pytest.mark.parametrize("over", ["/usr/local/vgpu", "/usr/local", "/"])
def test_mount_over_the_library(scene: Scene, tmp_path: Path, over: str) -> None:
    scene.config["mounts"].append(bind(over, tmp_path, "rw"))
    assert re.search(r"expected a bind mount at .*found the mount of", judge(scene))


def test_library_that_is_not_on_the_host(scene: Scene) -> None:
    scene.library.unlink()
    assert f"expected the file {scene.library}" in judge(scene)


def test_library_that_is_none(scene: Scene) -> None:
    scene.library.write_text("no library")
    assert f"expected an ELF library at {LIBRARY}" in judge(scene)


def test_library_of_another_machine(scene: Scene) -> None:
    data = bytearray(scene.library.read_bytes())
    data[18:20] = b"\xf3\0"  # RISC-V
    scene.library.write_bytes(data)
    assert "and a library for 243" in judge(scene)


@pytest.mark.skipif(not X86, reason="gcc -m32 is an x86 affair")
def test_program_of_32_bits(scene: Scene) -> None:
    header = b"\x7fELF\x01\x01\x01" + bytes(57)
    inside(scene, "/bin/app").write_bytes(header)
    assert "no 64-bit little-endian ELF file" in judge(scene)


def test_walk_of_an_empty_path(scene: Scene) -> None:
    rootfs = Rootfs(Container(scene.config, str(scene.bundle)))
    with pytest.raises(Refusal, match="a directory at '/'"):
        rootfs.open("/..")
