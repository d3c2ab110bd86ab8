"""runtime configure: what it says, what it leaves alone, and what it restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import MakeHost
from tests.cli.host import Host, snapshot

DOCKER = ("runtime", "configure", "--runtime", "docker", "--spec-dir", "/etc/cdi")
DAEMON = '{\n  "log-opts": {"secret": "hush"},\n  "debug": true\n}\n'


@pytest.fixture
def host(on: MakeHost, tmp_path: Path) -> Host:
    """A root with nothing but docker's file, which holds a secret."""
    file = tmp_path / "root/etc/docker/daemon.json"
    file.parent.mkdir(parents=True)
    file.write_text(DAEMON)
    return Host(tmp_path / "root", tmp_path)


def daemon(host: Host) -> Path:
    return host.sysroot / "etc/docker/daemon.json"


def test_a_dry_run_shows_what_changes_and_nothing_else(host: Host) -> None:
    before = snapshot(host.folder)
    said = host.run(*DOCKER, "--dry-run").done()
    assert snapshot(host.folder) == before
    assert [line for line in said.out.splitlines() if line.startswith("+")] == [
        f"+++ {daemon(host)}",
        '+  "debug": true,',
        '+  "features": {',
        '+    "cdi": true',
        "+  }",
    ]
    assert "hush" not in said.out


def test_it_says_what_it_wrote_and_what_is_left_to_do(host: Host) -> None:
    said = host.run(*DOCKER).done()
    assert said.out == f"wrote {daemon(host)}.before-amd-cdi\nwrote {daemon(host)}\n"
    assert said.err == (
        "amd-cdi: warning: docker reads it when it starts: systemctl restart docker\n"
    )
    before = snapshot(host.folder)
    again = host.run(*DOCKER).done()
    assert (again.out, again.err) == (f"up to date: {daemon(host)}\n", "")
    assert snapshot(host.folder) == before


def test_json_and_back(host: Host) -> None:
    backup = f"{daemon(host)}.before-amd-cdi"
    assert host.run(*DOCKER, "--json").done().json == {
        "runtime": "docker",
        "config": str(daemon(host)),
        "changes": [
            {"path": backup, "action": "write"},
            {"path": str(daemon(host)), "action": "write"},
        ],
        "restart": True,
    }
    assert host.run(*DOCKER, "--unset", "--json").done().json["changes"] == [
        {"path": str(daemon(host)), "action": "write"},
        {"path": backup, "action": "remove"},
    ]
    assert daemon(host).read_text() == DAEMON
    assert not Path(backup).exists()


def test_a_bad_file_is_one_line_and_nothing_is_touched(host: Host) -> None:
    daemon(host).write_text("{// comment\n}")
    before = snapshot(host.folder)
    host.run(*DOCKER).failed(f"{daemon(host)} is not JSON", "correct it first")
    assert snapshot(host.folder) == before


def test_what_is_no_file_is_one_line(host: Host) -> None:
    daemon(host).unlink()
    daemon(host).mkdir()
    host.run(*DOCKER).failed(f"{daemon(host)}")


def test_wrong_usage(host: Host) -> None:
    host.run("runtime", "configure").failed("--runtime", status=2)
    host.run(*DOCKER, "--restart").failed("--restart", "--sysroot", status=2)


@pytest.mark.parametrize("status", [0, 5])
def test_it_restarts_the_unit_once(host: Host, status: int) -> None:
    """By a systemctl that notes how it is called, as no systemd runs where the tests do."""
    programs = host.folder / "bin"
    programs.mkdir()
    systemctl = programs / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >>{programs}/called\necho no >&2\nexit {status}\n')
    systemctl.chmod(0o755)
    words = (*DOCKER, "--restart", "--config", daemon(host))
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "AMD_CDI_SYSROOT": "/"}
    said = host.run(*words, **variables)
    if status:
        said.failed("systemctl restart docker: no", "configuration is written")
    else:
        said.done()
    assert json.loads(daemon(host).read_text())["features"] == {"cdi": True}
    host.run(*words, **variables).done()
    assert (programs / "called").read_text() == "restart docker\n"
