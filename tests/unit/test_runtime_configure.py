"""What each runtime's configuration comes to, and that taking it back leaves nothing."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdi.errors import PermanentError
from cdi.plan.options import Options
from cdi.runtime import change, host
from cdi.runtime.version import Version, newest_spec, parse

ETC = "/etc/cdi"
V1, V2, V28 = (1, 7, 24), (2, 1, 9), (28, 2, 0)


class Machine:
    """A root with the configuration of one runtime."""

    def __init__(self, root: Path, name: str, version: Version | None) -> None:
        self.root, self.kind, self.version = root, host.KINDS[name], version
        self.path = root / self.kind.config

    def lay(self, text: str, name: str = "") -> Path:
        path = self.path.parent / name if name else self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def found(self) -> host.Configuration:
        options = Options(hook_path="/opt/hook")
        return host.configuration(self.kind, self.path, self.root, self.version, options)

    def configure(self, spec_dir: str = ETC) -> list[str]:
        """Configure; a second time must change nothing, and what comes of it must do."""
        changes = self.found.changes(spec_dir)
        change.write(changes)
        assert self.found.changes(spec_dir) == []
        assert self.found.setting.reads(spec_dir) or isinstance(self.found, host.Layers)
        return sorted(one.path.name for one in changes)

    def unset(self) -> None:
        change.write(self.found.removal())
        assert self.found.removal() == []

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in self.root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    def make(name: str, version: Version | None = None) -> Machine:
        return Machine(tmp_path, name, version)

    return make


Make = Callable[..., Machine]

DAEMON = '{\n    "log-driver": "journald",\n    "features": {"buildkit": true}\n}\n'


def test_docker_has_one_feature_more(machine: Make) -> None:
    docker = machine("docker", (26, 1, 5))
    docker.lay(DAEMON).chmod(0o600)
    before = docker.files()
    assert docker.configure() == ["daemon.json", "daemon.json.before-amd-cdi"]
    assert docker.path.read_text() == DAEMON.replace("true}", 'true, "cdi": true}')
    for path in docker.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    docker.unset()
    assert docker.files() == before


@pytest.mark.parametrize(
    ("version", "text", "on"),
    [
        ((25, 0, 0), "{}", False),
        ((28, 1, 1), "{}", False),
        (V28, "{}", True),
        (V28, '{"features": {"cdi": false}}', False),
        (V28, '{"cdi-spec-dirs": [""]}', False),
        (None, "{}", False),
        ((26, 1, 5), '{"features": {"cdi": true}}', True),
        ((24, 0, 9), '{"features": {"cdi": true}}', False),
    ],
)
def test_whether_docker_gives_cdi_devices(
    machine: Make, version: Version | None, text: str, on: bool
) -> None:
    docker = machine("docker", version)
    docker.lay(text)
    assert docker.found.setting.reads(ETC) is on


def test_docker_that_has_it_is_left_alone(machine: Make) -> None:
    assert machine("docker", V28).configure() == []


def test_docker_before_cdi_is_refused(machine: Make) -> None:
    with pytest.raises(PermanentError, match=r"expected Docker 25 or later, found 24\.0\.9"):
        machine("docker", (24, 0, 9)).configure()


def test_a_file_made_for_docker_goes_again(machine: Make) -> None:
    docker = machine("docker")
    docker.configure()
    assert json.loads(docker.path.read_text()) == {"features": {"cdi": True}}
    docker.unset()
    assert docker.files() == {}


def test_another_directory_of_specs(machine: Make) -> None:
    docker = machine("docker", V28)
    before = docker.lay(DAEMON).read_text()
    docker.configure("/srv/cdi")
    wanted = [ETC, "/var/run/cdi", "/srv/cdi"]
    assert json.loads(docker.path.read_text())["cdi-spec-dirs"] == wanted
    # Not needed any more: it goes, as if it had never been there.
    change.write(docker.found.changes(ETC))
    assert docker.files() == {"etc/docker/daemon.json": before}


def test_what_the_owner_wrote_since_stays(machine: Make) -> None:
    docker = machine("docker")
    docker.lay("{}\n")
    docker.configure()
    docker.lay(docker.path.read_text().replace("{", '{\n  "debug": true,', 1))
    docker.unset()
    assert json.loads(docker.path.read_text()) == {"debug": True}


def test_what_the_owner_had_turned_on_stays_on(machine: Make) -> None:
    docker = machine("docker")
    docker.lay('{"features": {"cdi": true}}')
    assert docker.configure() == []
    docker.unset()
    assert docker.path.read_text() == '{"features": {"cdi": true}}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"features": ', r"daemon\.json is not JSON"),
        ('{"features": []}', r"expected features to be a dict, found \[\]"),
        ('{"features": {"cdi": "yes"}}', r"expected features\.cdi to be a bool, found 'yes'"),
        ('{"cdi-spec-dirs": "/etc/cdi"}', r"expected cdi-spec-dirs to be a list"),
    ],
)
def test_a_bad_file_is_left_as_it_is(machine: Make, text: str, reason: str) -> None:
    docker = machine("docker")
    docker.lay(text)
    with pytest.raises(PermanentError, match=reason):
        docker.configure()
    assert docker.files() == {"etc/docker/daemon.json": text}


def test_a_link_still_leads_where_it_led(machine: Make, tmp_path: Path) -> None:
    docker = machine("docker")
    docker.lay("{}")
    docker.path.rename(tmp_path / "elsewhere.json")
    docker.path.symlink_to(tmp_path / "elsewhere.json")
    docker.configure()
    assert docker.path.is_symlink()
    assert json.loads((tmp_path / "elsewhere.json").read_text()) == {"features": {"cdi": True}}


OLD = '[plugins."io.containerd.grpc.v1.cri"]\n'
NEW = '[plugins."io.containerd.cri.v1.runtime"]\n'


def section(path: Path, name: str) -> Any:
    return tomllib.loads(path.read_text())["plugins"][name]


def test_containerd_1_gets_it_in_the_section_that_is_there(machine: Make) -> None:
    containerd = machine("containerd", V1)
    text = f'version = 2\n{OLD}sandbox_image = "pause"\n[grpc]\nuid = 1\n'
    containerd.lay(text)
    containerd.configure()
    assert containerd.path.read_text() == text.replace(OLD, f"{OLD}enable_cdi = true\n")
    containerd.unset()
    assert containerd.files() == {"etc/containerd/config.toml": text}


def test_containerd_1_takes_the_last_section_whole(machine: Make) -> None:
    containerd = machine("containerd", V1)
    main = f'version = 2\nimports = ["conf.d/*.toml"]\n{OLD}enable_cdi = true\n'
    containerd.lay(main)
    imported = containerd.lay(f'version = 2\n{OLD}sandbox_image = "x"\n', "conf.d/50-x.toml")
    assert containerd.found.setting.on is False
    containerd.configure()
    assert containerd.path.read_text() == main
    assert section(imported, "io.containerd.grpc.v1.cri") == {
        "sandbox_image": "x",
        "enable_cdi": True,
    }


def test_containerd_1_without_a_file_gets_one(machine: Make) -> None:
    containerd = machine("containerd", V1)
    containerd.configure()
    assert containerd.path.read_text() == f"version = 2\n\n{OLD}enable_cdi = true\n"
    containerd.unset()
    assert containerd.files() == {}


@pytest.mark.parametrize("text", [None, "version = 3\n", "version = 4\n", "version = 2\n"])
def test_containerd_2_needs_nothing(machine: Make, text: str | None) -> None:
    containerd = machine("containerd", V2)
    if text:
        containerd.lay(text)
    assert containerd.configure() == []


@pytest.mark.parametrize(("version", "header"), [(2, OLD), (3, NEW), (4, NEW)])
def test_containerd_2_reads_a_file_of_ours(machine: Make, version: int, header: str) -> None:
    containerd = machine("containerd", V2)
    text = f'version = {version}\nimports = ["conf.d/*.toml"]\n{header}enable_cdi = false\n'
    containerd.lay(text)
    assert containerd.configure("/srv/cdi") == ["zz-amd-cdi.toml"]
    own = containerd.path.parent / "conf.d/zz-amd-cdi.toml"
    assert tomllib.loads(own.read_text()) == {
        "version": version,
        "plugins": tomllib.loads(
            f'{header}enable_cdi = true\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "/srv/cdi"]'
        )["plugins"],
    }
    containerd.unset()
    assert containerd.files() == {"etc/containerd/config.toml": text}


def test_containerd_2_that_imports_nothing_is_changed_in_place(machine: Make) -> None:
    containerd = machine("containerd")
    containerd.lay(f"version = 3\n{NEW}enable_cdi = false\n")
    containerd.configure()
    assert containerd.path.read_text() == f"version = 3\n{NEW}enable_cdi = true\n"


def test_containerd_2_whose_last_file_says_no_is_refused(machine: Make) -> None:
    containerd = machine("containerd", V2)
    containerd.lay('version = 3\nimports = ["conf.d/*.toml"]\n')
    containerd.lay(f"version = 3\n{NEW}enable_cdi = false\n", "conf.d/zzz.toml")
    before = containerd.files()
    with pytest.raises(PermanentError, match=r"conf\.d/zzz\.toml has the last word"):
        containerd.configure()
    assert containerd.files() == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = ", r"config\.toml is not TOML"),
        ("[plugins.cri]\n", "expected version 2 or 3 or 4 .* found 1"),
        ("version = 5\n", "found 5"),
        ('version = 2\ndisabled_plugins = ["cri"]\n', "has CRI among disabled_plugins"),
        (f'version = 2\n{OLD}enable_cdi = "no"\n', "expected enable_cdi to be true or false"),
        ('version = 2\nimports = ["gone.toml"]\n', r"imports \S+/gone\.toml, which is missing"),
    ],
)
def test_a_bad_containerd_configuration_is_left_as_it_is(
    machine: Make, text: str, reason: str
) -> None:
    containerd = machine("containerd", V1)
    containerd.lay(text)
    with pytest.raises(PermanentError, match=reason):
        containerd.configure()
    assert containerd.files() == {"etc/containerd/config.toml": text}


def test_containerd_before_cdi_is_refused(machine: Make) -> None:
    with pytest.raises(PermanentError, match=r"expected containerd 1\.7 or later, found 1\.6\.20"):
        machine("containerd", (1, 6, 20)).configure()


@pytest.mark.parametrize("name", ["crio", "podman"])
def test_they_give_cdi_devices_as_they_are(machine: Make, name: str) -> None:
    assert machine(name).configure() == []


@pytest.mark.parametrize(
    ("name", "version", "text", "dirs"),
    [
        (
            "crio",
            (1, 33, 0),
            '[crio.runtime]\ncdi_spec_dirs = ["/a"]\n',
            ["/a", ETC],
        ),
        ("podman", (5, 4, 2), '[engine]\ncdi_spec_dirs = ["/a"]\n', ["/a", ETC]),
    ],
)
def test_a_drop_in_adds_the_directory(
    machine: Make, name: str, version: Version, text: str, dirs: list[str]
) -> None:
    runtime = machine(name, version)
    runtime.lay(text)
    before = runtime.files()
    assert runtime.configure() == ["zz-amd-cdi.conf"]
    own = runtime.path.with_name(f"{runtime.path.name}.d") / "zz-amd-cdi.conf"
    assert str(dirs).replace("'", '"') in own.read_text()
    runtime.unset()
    assert runtime.files() == before


def test_a_podman_that_cannot_be_told_is_refused(machine: Make) -> None:
    with pytest.raises(PermanentError, match=r"podman 4\.3\.1 reads specs from /etc/cdi and "):
        machine("podman", (4, 3, 1)).configure("/srv/cdi")


@pytest.mark.parametrize(("name", "version"), [("podman", (3, 0, 1)), ("crio", (1, 23, 0))])
def test_without_cdi_the_hook_comes_by_a_folder_of_hooks(
    machine: Make, name: str, version: Version
) -> None:
    runtime = machine(name, version)
    assert runtime.configure() == ["amd-cdi.json"]
    hook = json.loads((runtime.root / host.HOOKS).read_text())
    assert hook["hook"]["path"] == "/opt/hook"
    assert runtime.found.setting.on is False
    runtime.unset()
    assert runtime.files() == {}


def test_a_drop_in_of_somebody_else_is_not_touched(machine: Make) -> None:
    podman = machine("podman", (5, 4, 2))
    podman.lay("# mine\n", "containers.conf.d/zz-amd-cdi.conf")
    podman.unset()
    with pytest.raises(PermanentError, match=r"zz-amd-cdi\.conf is not a file of amd-cdi's"):
        podman.configure("/srv/cdi")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", V1),
        ("containerd github.com/containerd/containerd/v2 2.1.9+unknown ", V2),
        ("Docker version 26.1.5+dfsg1, build a72d7cd", (26, 1, 5)),
        ("podman version 4.3.1", (4, 3, 1)),
        ("crio version 1.37\nGitCommit: x", (1, 37, 0)),
        ("none", None),
    ],
)
def test_what_a_program_says_its_version_is(said: str, version: Version | None) -> None:
    assert parse(said) == version


@pytest.mark.parametrize(
    ("name", "version", "spec"),
    [
        ("containerd", V1, "0.7.0"),
        ("containerd", (1, 7, 5), "0.5.0"),
        ("podman", (4, 3, 1), "0.5.0"),
        ("podman", (3, 0, 1), ""),
        ("docker", (26, 1, 5), ""),
    ],
)
def test_the_newest_spec_that_a_runtime_reads(name: str, version: Version, spec: str) -> None:
    assert newest_spec(name, version) == spec
