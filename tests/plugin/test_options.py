"""The command line, its spellings and its environment."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin import log
from deviceplugin.options import OPTIONS, parse


def test_defaults() -> None:
    given = parse([], {})
    assert given.split_count is None
    assert given.allocator_policy == "besteffort"
    assert given.resource_naming_strategy == "single"
    assert given.device_memory_scaling == 1.0
    assert given.kubelet_dir == Path("/var/lib/kubelet/device-plugins")
    assert given.spec_dir == Path("/etc/cdi")
    assert given.state_dir == Path("/var/lib/amd-cdi")
    assert given.settings == {}


@pytest.mark.parametrize("spelling", ["--split-count", "--split_count", "-split_count"])
def test_spellings_of_hamis_plugin(spelling: str) -> None:
    assert parse([spelling, "4"], {}).split_count == 4
    assert parse([f"{spelling}=4"], {}).split_count == 4


def test_the_command_line_is_stronger_than_the_environment() -> None:
    environment = {
        "AMD_CDI_SPLIT_COUNT": "3",
        "AMD_CDI_REQUIRE": "dmem",
        "NODE_NAME": "gpu-7",
        "AMD_CDI_SYSROOT": "/host",
        "AMD_CDI_LOG_FORMAT": "json",
    }
    given = parse(["--split_count=5"], environment)
    assert given.split_count == 5
    assert given.settings == {"require": "dmem"}
    assert given.node_name == "gpu-7"
    assert given.spec_dir == Path("/host/etc/cdi")
    assert given.log_format == "json"


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["--split-count=0"], {}, "a number from 1 to 1000 was expected, found '0'"),
        (["--device-memory-scaling=0.5"], {}, "a number from 1 to 1000 was expected"),
        (["--pulse=nan"], {}, "a number from 0 to 3600 was expected"),
        ([], {"AMD_CDI_ALLOCATOR_POLICY": "random"}, "invalid choice: 'random'"),
        (["--unknown"], {}, "unrecognized arguments: --unknown"),
    ],
)
def test_wrong_use(
    arguments: list[str],
    environment: dict[str, str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environment)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_help_names_each_option_and_its_variable_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    text = capsys.readouterr().out
    for name in OPTIONS:
        assert f"--{name} " in text
    assert "split_count" not in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_is_one_line_each(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(form, "info")
    log.log.warning("two\nlines")
    log.log.debug("nothing")
    log.configure("text", "info")
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        assert json.loads(line)["message"] == "two\nlines"
        assert json.loads(line)["level"] == "warning"
    else:
        assert line.endswith("Z warning two lines")
    logging.getLogger("amd-device-plugin").handlers.clear()
    logging.getLogger("amd-device-plugin").propagate = True


def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    state = tmp_path / "var/lib/amd-cdi"
    state.mkdir(parents=True)
    (tmp_path / "config").write_text("nonsense: [")
    done = subprocess.run(
        [sys.executable, "-c", "from deviceplugin.command import main; main()",
         f"--sysroot={tmp_path}", f"--kubelet-dir={tmp_path}"],
        env={"KUBECONFIG": str(tmp_path / "config"), "PYTHONPATH": "."},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "the configuration of the Kubernetes client cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
