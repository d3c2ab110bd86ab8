"""doctor on a machine with real runtimes, which says what then happens to containers.

The machine has the sysfs of the sample node `mixed`, and the kernel of the host.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdi.node import sample
from tests import debian, need
from tests.integration import containerd, oci, podman, product
from tests.integration.conftest import NODES
from tests.integration.container import Container, Start
from tests.integration.image import Image
from tests.integration.product import HOOK, INSTALLED, REPOSITORY, USAGE, amd_cdi
from tests.integration.sandbox import Sandbox, sandbox

_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"

# Arguments: the root of the sample node. Its /sys takes the place of the machine's.
_SYS = """
set -eu
mkdir -p "$1/sys/fs/cgroup"
mount --rbind /sys/fs/cgroup "$1/sys/fs/cgroup"
mount --rbind "$1/sys" /sys
"""

# Of the sandbox's own processes, as no other shows in its /proc.
_END = """
for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm")" != containerd ] || kill "${process#/proc/}"
done
"""

NO_DMEM = "the kernel has no dmem controller"


@dataclass(frozen=True)
class Patient:
    sandbox: Sandbox
    start: Start
    """By podman."""
    image: Image
    static: Image

    def examined(self, *words: str, path: str = _SYSTEM) -> tuple[int, dict[str, Any]]:
        """How doctor ends, and the findings by what they say."""
        command = [sys.executable, "-m", "cdi", "doctor", "--json", *words]
        environment = {"PYTHONPATH": str(REPOSITORY), "PATH": path}
        done = self.sandbox.run(command, environment=environment)
        assert done.stderr == ""
        findings = json.loads(done.stdout)["findings"]
        return done.status, {finding.pop("what"): finding for finding in findings}

    @contextmanager
    def changed(self, path: str, text: str | None) -> Iterator[None]:
        """A file of the machine that is another one for a while, or is missing."""
        place = self.sandbox.path(path)
        content, mode = place.read_bytes(), place.stat().st_mode
        place.unlink()
        if text is not None:
            place.write_text(text)
            place.chmod(mode)
        yield
        place.unlink(missing_ok=True)
        place.write_bytes(content)
        place.chmod(mode)


@pytest.fixture(scope="module")
def patient(scratch: Path, library: Path, dynamic: Image, static: Image) -> Iterator[Patient]:
    folder = scratch / "doctor"
    folder.mkdir()
    sample.expand("mixed", folder / "mixed")
    images = [dynamic, static]
    with sandbox(folder, "host", NODES) as made:
        made.must(["sh", "-c", _SYS, "sh", folder / "mixed"])
        product.install(made, library)
        amd_cdi(made, "share", "create", "a", "--gpu=0", "--cores=25", "--memory=48GiB")
        with podman.podman(oci.installed("runc"))(made, images) as start:
            yield Patient(made, start, dynamic, static)


def of(found: dict[str, Any], level: str) -> list[str]:
    return [what for what, finding in found.items() if finding["level"] == level]


def test_a_node_on_which_a_share_runs(patient: Patient) -> None:
    status, found = patient.examined()
    # Of this kernel, as of most.
    lacking = [NO_DMEM] if NO_DMEM in found else []
    assert (of(found, "fails"), of(found, "less")) == ([], lacking)
    assert status == len(lacking)
    assert "the hook works" in found
    assert found["usage regions have a place"]["evidence"] == USAGE
    podman_version = next(what for what in found if what.startswith("podman "))
    said = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=True)
    assert podman_version.split()[1] == said.stdout.split()[-1]
    outcome = patient.start(Container(patient.image, cdi=["amd.com/gpu=share-a"]))
    assert (outcome.status, outcome.stderr) == (0, "")


@pytest.mark.parametrize(
    ("path", "text", "what", "evidence"),
    [
        (HOOK, "#!/bin/sh\necho broken >&2; exit 3\n", "the hook fails", "broken"),
        (HOOK, "#!/no/python\n", "the hook cannot be run", "/no/python, which is missing"),
        (HOOK, None, "the hook cannot be run", f"no file at {HOOK}"),
        (f"{INSTALLED}/libamvgpu.so", None, "the library cannot be loaded", "no file at"),
        ("/etc/cdi/amd.com-gpu.yaml", None, "there is no spec of this node", "no CDI spec"),
    ],
)
def test_what_keeps_a_share_from_starting(
    patient: Patient, path: str, text: str | None, what: str, evidence: str
) -> None:
    with patient.changed(path, text):
        status, found = patient.examined()
        outcome = patient.start(Container(patient.image, cdi=["amd.com/gpu=share-a"]))
    assert (status, found[what]["level"]) == (2, "fails")
    assert evidence in found[what]["evidence"]
    assert outcome.status != 0


def test_an_image_is_judged_as_the_hook_will(patient: Patient) -> None:
    for image, status in ((patient.image, 0), (patient.static, 126)):
        outcome = patient.start(Container(image, cdi=["amd.com/gpu=share-a"]))
        _, found = patient.examined("--image", str(image.root))
        judged = f"a share starts in {image.root}" in of(found, "works")
        assert (outcome.status, judged) == (status, status == 0)
    refused = f"the programs of {patient.static.root} do not load the library"
    assert "a static program at '/bin/busybox'" in found[refused]["evidence"]


def test_an_image_of_podman_by_its_name(patient: Patient) -> None:
    configuration = patient.sandbox.folder / "storage.conf"
    configuration.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{patient.sandbox.folder}/storage"\n'
        'runroot = "/run/podman"\n'
    )
    command = [sys.executable, "-m", "cdi", "doctor", "--json", "--image", patient.image.name]
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "PATH": _SYSTEM,
        "CONTAINERS_STORAGE_CONF": str(configuration),
    }
    done = patient.sandbox.run(command, environment=environment)
    assert f"a share starts in {patient.image.name}" in done.stdout, done


def test_a_containerd_whose_cdi_is_silently_off(patient: Patient) -> None:
    """As in version 1.7 by default; then one that was configured, and runs on as it was."""
    programs = need.fetched(lambda: debian.unpacked("trixie", "containerd")) / "usr/bin"
    made = patient.sandbox
    runc = oci.installed("runc")(made)
    daemon = containerd.prepared(made, "trixie", runc, patient.image, cdi=False)
    config = next(word for word in daemon.command if "containerd.toml" in str(word))
    log = (made.folder / "doctor-containerd.log").open("w")
    process = subprocess.Popen(made.enter(daemon.command), stdout=log, stderr=log)
    try:
        with containerd.channel_to(made, daemon):
            path = f"{programs}:{_SYSTEM}"
            status, found = patient.examined(path=path)
            off = found["CDI is off in containerd 1.7.24"]
            assert (status, off["level"]) == (1, "less")
            assert off["consequence"] == "pods start without their GPU, and nothing says so"
            assert off["remedy"] == "amd-cdi runtime configure --runtime containerd --restart"
            name = str(config).partition("=")[2]
            product.configure(made, "containerd", Path(name), path=path)
            _, found = patient.examined(path=path)
            assert "CDI is off in containerd 1.7.24" not in found
            older = found["containerd 1.7.24 runs with an older configuration"]
            assert older["remedy"] == "systemctl restart containerd"
    finally:
        # nsenter, which was started, passes no signal on.
        made.must(["sh", "-c", _END])
        process.wait(timeout=60)
        log.close()


def test_a_docker_that_refuses_cdi_names(patient: Patient) -> None:
    programs = need.fetched(lambda: debian.unpacked("trixie", "docker.io")) / "usr/sbin"
    path = f"{programs}:{_SYSTEM}"
    _, found = patient.examined(path=path)
    off = found["CDI is off in docker 26.1.5"]
    assert off["consequence"] == "it refuses CDI names"
    configuration = Path("/etc/docker/daemon.json")
    product.configure(patient.sandbox, "docker", configuration, path=path)
    _, found = patient.examined(path=path)
    assert found["docker 26.1.5 gives CDI devices"]["evidence"].startswith(f"by {configuration}:")


def test_a_machine_without_any_runtime(patient: Patient, tmp_path: Path) -> None:
    """The standard folders are looked in whatever PATH says, so they are empty here."""
    script = (
        "import sys; from cdi.runtime import host; host.PATH = ''; "
        "from cdi.__main__ import main; sys.argv = ['amd-cdi', 'doctor', '--json']; main()"
    )
    done = patient.sandbox.run(
        ["env", f"PATH={tmp_path}", sys.executable, "-c", script],
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    found = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (done.status, found["there is no container runtime"]["level"]) == (2, "fails")


def test_a_runtime_too_old_for_the_spec(patient: Patient) -> None:
    spec = patient.sandbox.path("/etc/cdi/amd.com-gpu.yaml").read_text()
    with patient.changed(
        "/etc/cdi/amd.com-gpu.yaml", spec.replace('cdiVersion: "0.5.0"', 'cdiVersion: "1.1.0"')
    ):
        status, found = patient.examined()
    what = next(what for what in found if what.endswith("is too old for the spec"))
    assert (status, found[what]["level"]) == (2, "fails")
    assert "the spec declares version 1.1.0, the runtime knows up to " in found[what]["evidence"]


def test_docker_s_own_containerd_is_no_fault(patient: Patient) -> None:
    """What dockerd writes for the containerd that it starts turns CRI off."""
    programs = need.fetched(lambda: debian.unpacked("trixie", "containerd")) / "usr/bin"
    path = Path("/etc/containerd/config.toml")
    place = patient.sandbox.path(str(path))
    place.parent.mkdir(exist_ok=True)
    place.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    _, found = patient.examined(path=f"{programs}:{_SYSTEM}")
    assert found["containerd 1.7.24 serves no Kubernetes"]["level"] == "works", found
    place.unlink()
