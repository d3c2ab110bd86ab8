"""Configurations as the runtimes themselves read them, before `runtime configure` and after.

That shares run on what it writes, all other tests of real runtimes show: they start on it.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdi.runtime.containerd import Containerd
from cdi.runtime.version import Version
from tests import debian, need
from tests.integration.product import REPOSITORY

OLD = '[plugins."io.containerd.grpc.v1.cri"]\n'
NEW = '[plugins."io.containerd.cri.v1.runtime"]\n'
RUNC = (
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    'runtime_type = "io.containerd.runc.v2"\n'
)

IMPORTS = 'imports = ["conf.d/*.toml"]\n'

LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "one file of version 2": {"config.toml": f"version = 2\n{RUNC}"},
    "one file of version 2 that says no": {
        "config.toml": f"version = 2\n{OLD}enable_cdi = false\n",
    },
    "an imported file without CRI": {
        "config.toml": f"version = 2\n{IMPORTS}{OLD}max_container_log_line_size = 5\n",
        "conf.d/a.toml": "version = 2\noom_score = 0\n",
    },
    "an imported file with CRI": {
        "config.toml": f"version = 2\n{IMPORTS}{OLD}enable_cdi = true\n{RUNC}",
        "conf.d/a.toml": f"version = 2\n{OLD}max_container_log_line_size = 5\n",
        "conf.d/b.toml": "version = 2\n",
    },
}
LAYOUTS_OF_2: Mapping[str, Mapping[str, str]] = {
    "version 3": {"config.toml": f"version = 3\n{NEW}enable_cdi = false\n"},
    "version 3 with imports": {
        "config.toml": f"version = 3\n{IMPORTS}{NEW}enable_cdi = false\n",
        "conf.d/a.toml": f"version = 3\n{NEW}max_container_log_line_size = 5\n",
    },
    "version 2 under version 3": {
        "config.toml": f"version = 3\n{IMPORTS}",
        "conf.d/a.toml": f"version = 2\n{OLD}enable_cdi = false\n",
    },
}
SUITES: Mapping[str, tuple[str, Version]] = {
    "trixie": ("io.containerd.grpc.v1.cri", (1, 7, 24)),
    "forky": ("io.containerd.cri.v1.runtime", (2, 1, 9)),
}


def amd_cdi(*words: str | Path, path: Path) -> Any:
    command = [sys.executable, "-m", "cdi", "runtime", "configure", "--json", *map(str, words)]
    environment = {**os.environ, "PATH": f"{path}:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("suite", "layout"),
    [
        *(("trixie", name) for name in LAYOUTS),
        *(("forky", name) for name in (*LAYOUTS, *LAYOUTS_OF_2)),
    ],
)
def test_containerd_reads_it_as_we_do(tmp_path: Path, suite: str, layout: str) -> None:
    programs = need.fetched(lambda: debian.unpacked(suite, "containerd")) / "usr/bin"
    name, version = SUITES[suite]
    for file, text in {**LAYOUTS, **LAYOUTS_OF_2}[layout].items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    config = tmp_path / "config.toml"

    def dump() -> Any:
        command = [str(programs / "containerd"), f"--config={config}", "config", "dump"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return tomllib.loads(text)["plugins"][name]

    before = dump()
    found = Containerd.read(config, version).setting
    assert (found.on, list(found.spec_dirs)) == (before["enable_cdi"], before["cdi_spec_dirs"])

    words = ("--runtime=containerd", f"--config={config}", "--spec-dir=/srv/cdi")
    assert amd_cdi(*words, path=programs)["changes"]
    after = dump()
    dirs = ["/etc/cdi", "/var/run/cdi", "/srv/cdi"]
    assert (after.pop("enable_cdi"), after.pop("cdi_spec_dirs")) == (True, dirs)
    del before["enable_cdi"], before["cdi_spec_dirs"]
    assert after == before

    assert amd_cdi(*words, "--unset", path=programs)["changes"]
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in left} == {
        **LAYOUTS,
        **LAYOUTS_OF_2,
    }[layout]


@pytest.mark.parametrize("suite", ["trixie", "forky"])
def test_docker_takes_its_file(tmp_path: Path, suite: str) -> None:
    programs = need.fetched(lambda: debian.unpacked(suite, "docker.io")) / "usr/sbin"
    config = tmp_path / "daemon.json"
    before: dict[str, object] = {"log-driver": "json-file", "userland-proxy": False}
    config.write_text(json.dumps(before))
    amd_cdi("--runtime=docker", f"--config={config}", "--spec-dir=/srv/cdi", path=programs)
    command = [str(programs / "dockerd"), "--validate", f"--config-file={config}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "configuration OK")
    wanted = {**before, "cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi", "/srv/cdi"]}
    if suite == "trixie":
        wanted |= {"features": {"cdi": True}}
    assert json.loads(config.read_text()) == wanted
