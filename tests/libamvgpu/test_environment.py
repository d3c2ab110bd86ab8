"""Where the values of a share come from, and that a program cannot leave them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import need
from tests.libamvgpu import region
from tests.libamvgpu.runtime import HSA_OUT_OF_RESOURCES, MIB, SOURCE, Driver, Runtime, Share, run

POOL = "hsa_amd_memory_pool_allocate"
MASK = "0:0-75"
UNSET = "(unset)"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("program") / "environment"
    run(["cc", "-D_GNU_SOURCE", "-o", built, SOURCE / "tests" / "environment.c"])
    return built


@dataclass(frozen=True)
class Container:
    """Runs programs with the values file and with a PID 1 as a container has them."""

    folder: Path
    library: Path

    def wrap(
        self, command: list[str], *, values: dict[str, str] | str | None, first: dict | None
    ) -> list[str]:
        """`values` is the share's file; `first` the environment of PID 1, in a PID namespace."""
        root = [] if os.geteuid() == 0 else ["--map-root-user"]
        prefix = ["unshare", *root, "--mount"]
        steps = []
        if values is not None:
            text = values
            if isinstance(values, dict):
                text = "".join(f"{name}={value}\n" for name, value in values.items())
            file = self.folder / "share.conf"
            file.write_text(str(text))
            steps += [
                "mount -t tmpfs none /usr/local",
                "mkdir /usr/local/vgpu",
                f"cp {file} /usr/local/vgpu/share.conf",
            ]
        if first is not None:
            prefix += ["--pid", "--fork", "--kill-child", "--mount-proc"]
            entries = [f"{name}={value}" for name, value in first.items()]
            # PID 1 is a shell, started by exec with the pod's environment alone.
            shell = ["env", "-i", *entries, "sh", "-c", '"$@"; exit $?', "sh"]
            command = [*shell, *command]
        steps.append('exec "$@"')
        return [*prefix, "sh", "-c", " && ".join(steps), "sh", *command]

    def run(
        self,
        command: list[str | Path],
        own: dict[str, str],
        *,
        values: dict[str, str] | str | None = None,
        first: dict | None = None,
    ) -> subprocess.CompletedProcess[str]:
        entries = [f"{name}={value}" for name, value in own.items()]
        inner = ["env", "-i", f"LD_AUDIT={self.library}", *entries, *map(str, command)]
        probe = self.wrap(["true"], values="x", first={})
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            need.lacking("namespaces cannot be made here")
        wrapped = self.wrap(inner, values=values, first=first)
        return subprocess.run(wrapped, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def container(tmp_path, library) -> Container:
    return Container(tmp_path, library)


GPU = "GPU-00000000fa4e0002"  # the stand-in's first
SHARE = {"HIP_DEVICE_MEMORY_LIMIT_0": "256m", "HSA_CU_MASK": MASK, "ROCR_VISIBLE_DEVICES": GPU}
OTHER = {"HIP_DEVICE_MEMORY_LIMIT_0": "9g", "HSA_CU_MASK": "0:0-303", "ROCR_VISIBLE_DEVICES": "0"}
READ = [word for name in SHARE for word in ("get", name)]


@pytest.mark.parametrize(
    ("values", "first", "own", "expected"),
    [
        (SHARE, OTHER, OTHER, SHARE),
        (SHARE, None, OTHER, SHARE),
        (SHARE, None, {}, SHARE),
        (None, SHARE, OTHER, SHARE),
        (None, SHARE, {}, SHARE),
        (None, {"PATH": "/bin"}, SHARE, SHARE),  # a shared PID namespace: PID 1 is another's
        (None, None, SHARE, SHARE),
    ],
    ids=["file", "file-alone", "file-cleaned", "pid1", "pid1-cleaned", "other-pid1", "own"],
)
def test_sources_in_order(values, first, own, expected, program, container) -> None:
    done = container.run([program, *READ], own, values=values, first=first)
    assert done.stdout.split("\n")[:3] == list(expected.values()), done.stderr


def test_limit_comes_from_the_same_source(trixie: Runtime, container, tmp_path) -> None:
    """The real HIP sees the file's limit, whatever the environment says."""
    usage = region.lay(tmp_path / "usage", 1)
    values = {**SHARE, "HIP_DEVICE_MEMORY_SHARED_CACHE": str(usage)}
    own = {**OTHER, "STANDIN_GPUS": "1", "HIP_DEVICE_MEMORY_SHARED_CACHE": "/tmp/elsewhere"}
    entries = [f"{name}={value}" for name, value in own.items()]
    inner = ["env", "-i", f"LD_AUDIT={container.library}", *entries]
    command = container.wrap(
        [*inner, *trixie.loader(), str(trixie.driver())], values=values, first=None
    )
    with Driver(command, os.environ) as driver:
        assert driver.numbers("hsa")[1] == 256 * MIB
        assert driver.take(POOL, 160 * MIB)[0] == 0
        assert driver.take(POOL, 160 * MIB)[0] == HSA_OUT_OF_RESOURCES
        assert sum(region.used(usage, 0)) == 160 * MIB
    assert not Path("/tmp/elsewhere").exists()


@pytest.mark.parametrize("text", ["", "\n\n", "nothing here\n", "UNKNOWN=1\n"])
def test_file_that_tells_nothing_denies(text: str, trixie: Runtime, container) -> None:
    inner = ["env", "-i", f"LD_AUDIT={container.library}", "HIP_DEVICE_MEMORY_LIMIT_0=1g"]
    command = container.wrap(
        [*inner, *trixie.loader(), str(trixie.driver())], values=text, first=None
    )
    with Driver(command, os.environ) as driver:
        assert driver.take(POOL, 4096)[0] == HSA_OUT_OF_RESOURCES
        assert "share.conf: expected lines" in driver.finish()


@pytest.mark.parametrize(("pod", "code"), [("0", HSA_OUT_OF_RESOURCES), ("1", 0)])
def test_failing_open_is_the_choice_of_the_pod(
    pod: str, code: int, trixie: Runtime, container, tmp_path
) -> None:
    """A program that says otherwise of itself changes nothing."""
    spoilt = tmp_path / "spoilt"
    spoilt.write_bytes(b"x")
    values = {**SHARE, "HIP_DEVICE_MEMORY_SHARED_CACHE": str(spoilt)}
    if pod == "1":
        values["LIBAMVGPU_FAIL_OPEN"] = "1"
    own = {"LIBAMVGPU_FAIL_OPEN": str(1 - int(pod)), "STANDIN_GPUS": "1"}
    entries = [f"{name}={value}" for name, value in own.items()]
    inner = ["env", "-i", f"LD_AUDIT={container.library}", *entries]
    command = container.wrap(
        [*inner, *trixie.loader(), str(trixie.driver())], values=values, first=None
    )
    with Driver(command, os.environ) as driver:
        assert driver.take(POOL, MIB)[0] == code


def test_no_source_at_all_denies(trixie: Runtime, library, tmp_path) -> None:
    environment = {"LD_AUDIT": str(library), "PATH": os.environ["PATH"]}
    with Driver([*trixie.loader(), trixie.driver()], environment) as driver:
        assert driver.take(POOL, 4096)[0] == HSA_OUT_OF_RESOURCES
        assert "expected the values of a share" in driver.finish()


def test_share_of_compute_units_only(trixie: Runtime, library, tmp_path) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK, "STANDIN_GPUS": "1"}
    with Driver([*trixie.loader(), trixie.driver()], environment) as driver:
        assert driver.take(POOL, 1024 * MIB)[0] == 0
        assert driver.finish() == ""


# ---- holding on ----


def ask(environment: dict[str, str], program: Path, *words: str) -> str:
    """What tests/environment.c answers."""
    done = subprocess.run(
        [program, *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


ATTEMPTS = {
    "setenv": ["set", "HSA_CU_MASK", "0:0-303", "get", "HSA_CU_MASK"],
    "putenv": ["put", "HSA_CU_MASK=0:0-303", "get", "HSA_CU_MASK"],
    "putenv to remove": ["put", "HSA_CU_MASK", "get", "HSA_CU_MASK"],
    "unsetenv": ["unset", "HSA_CU_MASK", "get", "HSA_CU_MASK"],
    "clearenv": ["clear", "get", "HSA_CU_MASK"],
    "clearenv, all": ["clear", "all"],
    "swap": ["swap", "get", "HSA_CU_MASK"],
    "swap, secure": ["swap", "secure", "HSA_CU_MASK"],
    "swap and set": ["swap", "set", "HSA_CU_MASK", "0:0-303", "all"],
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_program_cannot_change(attempt: str, program, library) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK}
    answer = ask(environment, program, *ATTEMPTS[attempt])
    assert MASK in answer
    assert "303" not in answer


@pytest.mark.parametrize(
    "name",
    [
        "HSA_CU_MASK",
        "ROCR_VISIBLE_DEVICES",
        "AMD_TASK_PRIORITY",
        "HIP_OVERSUBSCRIBE",
        "HIP_DEVICE_MEMORY_LIMIT",
        "HIP_DEVICE_MEMORY_LIMIT_0",
        "HIP_DEVICE_MEMORY_LIMIT_63",
        "HIP_DEVICE_MEMORY_SHARED_CACHE",
        "LIBAMVGPU_FAIL_OPEN",
    ],
)
def test_held_names(name: str, program, library) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK, name: "1"}
    answer = ask(environment, program, "set", name, "2", "get", name, "unset", name, "get", name)
    assert answer.split() == ["1", "1"]


@pytest.mark.parametrize("name", ["PATH", "HSA_CU", "HSA_CU_MASKS", "HIP_VISIBLE_DEVICES", "LD"])
def test_other_names_are_free(name: str, program, library) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK, name: "1"}
    answer = ask(environment, program, "set", name, "2", "get", name, "unset", name, "get", name)
    assert answer.split() == ["2", UNSET]


def test_skip_of_the_mask_is_taken_out(program, library) -> None:
    name = "HSA_CU_MASK_SKIP_INIT"
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK, name: "1", "Z": "1"}
    answer = ask(
        environment,
        program,
        "all",
        "get",
        name,
        "set",
        name,
        "1",
        "get",
        name,
        "put",
        f"{name}=1",
        "all",
    )
    assert name not in answer
    assert "Z=1" in answer


def test_audit_list_may_grow_but_not_lose_us(program, library) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK}
    answer = ask(
        environment,
        program,
        "set",
        "LD_AUDIT",
        "/other.so",
        "get",
        "LD_AUDIT",
        "set",
        "LD_AUDIT",
        f"/other.so:{library}",
        "get",
        "LD_AUDIT",
    )
    assert answer.split() == [str(library), f"/other.so:{library}"]


def test_rocr_reads_the_mask_of_the_share(trixie: Runtime, library, tmp_path) -> None:
    """What hsa_init finds, noted by the stand-in, in a program that was started with another."""
    share = Share.make(tmp_path, library, "256m")
    environment = share.environment({"HSA_CU_MASK": MASK, "HSA_CU_MASK_SKIP_INIT": "1"})
    with Driver([*trixie.loader(), trixie.driver()], environment) as driver:
        driver.ask("info")
    assert f"hsa_init HSA_CU_MASK={MASK} " in share.calls.read_text()
    assert "HSA_CU_MASK_SKIP_INIT=(unset)" in share.calls.read_text()


# ---- handing on ----

WAYS = [
    *("execve", "execvpe", "execle", "fexecve", "posix_spawn", "posix_spawnp"),
    *("execv", "execvp", "execl", "execlp"),
]


@pytest.mark.parametrize("way", WAYS)
def test_cleaned_environment_stays_in_the_share(way: str, program, library) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK, "HOME": "/root"}
    answer = ask(environment, program, way, "/usr/bin/env", "ONLY=1")
    assert sorted(answer.splitlines()) == sorted(
        ["ONLY=1", f"HSA_CU_MASK={MASK}", f"LD_AUDIT={library}"]
    )


@pytest.mark.parametrize("way", WAYS)
def test_replaced_value_is_put_right(way: str, program, library) -> None:
    environment = {"LD_AUDIT": str(library), "HSA_CU_MASK": MASK}
    answer = ask(environment, program, way, "/usr/bin/env", "HSA_CU_MASK=0:0-303")
    assert f"HSA_CU_MASK={MASK}" in answer.splitlines()
    assert "303" not in answer


def test_python_subprocess_with_an_empty_environment(library) -> None:
    text = (
        "import os, subprocess, sys\n"
        "os.environ['HSA_CU_MASK'] = 'mine'\n"
        "print(subprocess.run(['/usr/bin/env'], env={}, capture_output=True, text=True).stdout)\n"
        "os.environ.clear()\n"
        "print(subprocess.run(['/usr/bin/env'], capture_output=True, text=True).stdout)\n"
    )
    done = subprocess.run(
        ["python3", "-c", text],
        env={"LD_AUDIT": str(library), "HSA_CU_MASK": MASK, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.split()
    assert lines.count(f"HSA_CU_MASK={MASK}") == lines.count(f"LD_AUDIT={library}") == 2
    assert "mine" not in done.stdout


OUTSIDE = {
    "static": ["cc", "-static"],
    "static-pie": ["cc", "-static-pie", "-fPIE"],
    "musl": ["musl-gcc"],
    "musl-static": ["musl-gcc", "-static"],
}


@pytest.fixture(scope="module", params=OUTSIDE)
def outside(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that glibc's ld.so does not start: it tells what it finds, and works a little."""
    compiler = OUTSIDE[request.param]
    need.program(compiler[0])
    built = tmp_path_factory.mktemp(request.param) / "outside"
    source = SOURCE / "tests" / "outside.c"
    done = subprocess.run(
        [*compiler, "-o", built, source, "-lpthread"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        need.lacking(f"{' '.join(compiler)} does not link: {done.stderr}")
    return built


@pytest.mark.parametrize("way", ["alone", "from a program in the share"])
def test_programs_that_cannot_load_it_run_undisturbed(
    way: str, outside: Path, program, library, tmp_path
) -> None:
    """Static and musl programs ignore what they are given or what is handed on."""
    share = Share.make(tmp_path, library, "256m")
    given = {"HSA_CU_MASK": MASK, "LIBHIP_LOG_LEVEL": "4"}
    command = [outside] if way == "alone" else [program, "execve", outside, "ONLY=1"]
    done = subprocess.run(
        command, env=share.environment(given), capture_output=True, text=True, check=True
    )
    # Its threads have counted, its child has ended well, and nothing of the library is mapped.
    values = [f"LD_AUDIT={library}", f"HSA_CU_MASK={MASK}", "changed=mine"]
    assert done.stdout.splitlines() == [*values, "counted=8000", "child=7", "mapped=0"]
    assert done.stderr == ""
    assert share.usage.read_bytes() == bytes(region.region_size(1)), "it was not opened"


def test_the_same_program_on_glibc_is_held(library, tmp_path) -> None:
    """What the test above would see if the library were there."""
    built = tmp_path / "outside"
    run(["cc", "-o", built, SOURCE / "tests" / "outside.c", "-lpthread"])
    share = Share.make(tmp_path, library, "256m")
    environment = share.environment({"HSA_CU_MASK": MASK})
    done = subprocess.run([built], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert f"changed={MASK}" in lines
    assert "mapped=0" not in lines
