"""What every command has in common: help, exit status, JSON, variables and completion."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import MakeHost
from tests.cli.host import COMMAND, Host

COMMANDS = {
    "generate": {
        "--output", "--format", "--device-name-strategy", "--split", "--on-conflict", "--hook-path",
        "--hook-stage", "--require", "--allow-extra-devices", "--library-path", "--watch",
        "--dry-run", "--remove", "--yes", "--force",
    },
    "hooks-d": {"--output", "--hook-path", "--hook-stage", "--dry-run"},
    "list": set(),
    "show": set(),
    "validate": set(),
    "diff": set(),
    "inject": set(),
    "topology": {"--svg"},
    "share create": {
        "--gpu", "--cores", "--cus", "--memory", "--memory-scaling", "--hook-path", "--hook-stage",
        "--require", "--dry-run",
    },
    "share list": set(),
    "share remove": {"--dry-run"},
}  # fmt: skip

WITHOUT_A_VARIABLE = {"--remove", "--yes", "--force"}
"""What somebody must have typed."""

ANYWHERE = {
    "--json", "--sysroot", "--sample", "--spec-dir", "--state-dir", "--usage-dir", "--debug",
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_with_its_variable(radeons: Host, command: str) -> None:
    text = radeons.run(*command.split(), "--help", COLUMNS="300").done().out
    found = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)
    assert sorted(found) == sorted(COMMANDS[command] | ANYWHERE | {"--help"})
    flat = "".join(text.split())
    # Who sets a variable for the spec must not have another command write over it.
    special = {("hooks-d", "--output"): "AMD_CDI_HOOKS_OUTPUT"}
    for option in (COMMANDS[command] | ANYWHERE) - WITHOUT_A_VARIABLE:
        usual = f"AMD_CDI_{option[2:].upper().replace('-', '_')}"
        variable = special.get((command, option), usual)
        assert f"envvar:{variable}" in flat


COMPLETE = {
    "generate": ["--output", "-"],
    "list": [],
    "show": ["0"],
    "validate": [],
    "diff": [],
    "topology": [],
    "hooks-d": ["--output", "-"],
    "share create": ["b", "--gpu", "1"],
    "share list": [],
    "share remove": ["a"],
}


@pytest.mark.parametrize("command", COMPLETE)
def test_where_the_node_lies_may_be_said_before_the_command_or_after(
    radeons: Host, tmp_path: Path, command: str
) -> None:
    radeons.share("create", "a", "--gpu", "0", "--cores", "50").done()
    nowhere = {
        "AMD_CDI_SYSROOT": "",
        "AMD_CDI_SPEC_DIR": str(tmp_path / "none"),
        "AMD_CDI_STATE_DIR": str(tmp_path / "none/state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    where = [
        *["--sample", "rx7900xtx", "--json", "--spec-dir", str(radeons.spec_dir)],
        *["--state-dir", str(radeons.state_dir), "--usage-dir", str(tmp_path / "usage")],
    ]
    other = ["--sample", "mi210", "--spec-dir", str(tmp_path), "--state-dir", str(tmp_path / "s")]
    words, rest = command.split(), COMPLETE[command]
    before = radeons.run(*where, *words, *rest, **nowhere)
    # What a share create did, it does not do again.
    after = radeons.run(*words, *rest, *where, **nowhere)
    between = radeons.run(*words[:1], *where, *words[1:], *rest, **nowhere)
    # What is said last counts.
    both = radeons.run(*other, *words, *rest, *where, **nowhere)
    if command == "share remove":
        after.failed("there is no share 'share-a'")
        between.failed("there is no share 'share-a'")
        both.failed("there is no share 'share-a'")
    else:
        assert before.out == after.out == between.out == both.out
        assert after.status == between.status == both.status
    assert before.status == (1 if command == "diff" and before.json["changed"] else 0), before
    assert before.out
    assert not (tmp_path / "none").exists()


def test_a_writing_command_takes_one_spec_directory(radeons: Host, tmp_path: Path) -> None:
    several = ["--spec-dir", str(tmp_path / "a"), "--spec-dir", str(tmp_path / "b")]
    for command in (["generate"], ["diff"], ["share", "create", "a", "--gpu", "0"]):
        radeons.run(*several, *command).failed("one --spec-dir is written to", status=2)
    assert list(radeons.folder.iterdir()) == []


def test_help_names_every_command(radeons: Host) -> None:
    text = radeons.run("-h").done().out
    for command in COMMANDS:
        assert re.search(rf"^  {command.split()[0]} ", text, re.MULTILINE), command


def test_version(radeons: Host) -> None:
    fast = radeons.run("--version").done().out
    assert re.fullmatch(r"amd-cdi \d+\.\d+\.\d+\n", fast)
    # The same is said where the command line is parsed.
    assert radeons.run("--debug", "--version").done().out == fast


@pytest.mark.parametrize("arguments", [[], ["share"]], ids=" ".join)
def test_no_command_is_answered_with_help(radeons: Host, arguments: list[str]) -> None:
    result = radeons.run(*arguments)
    assert result.status == 2
    assert "Commands:" in result.out + result.err
    assert list(radeons.folder.iterdir()) == []


def test_an_unknown_sample_is_named_beside_those_that_are(radeons: Host) -> None:
    result = radeons.run("list", "--sample", "mi999", AMD_CDI_SYSROOT="")
    result.failed(
        "mi210, mi300a, mi300x, mi300x-cpx, mixed, rx7900xtx, strix-halo", "'mi999'", status=2
    )


def test_variables_do_what_options_do(radeons: Host) -> None:
    radeons.generate("--split", "2", "--format", "json", "--device-name-strategy", "pci").done()
    by_options = (radeons.spec_dir / "amd.com-gpu.json").read_bytes()
    radeons.run(
        "generate",
        AMD_CDI_SPLIT="2",
        AMD_CDI_FORMAT="json",
        AMD_CDI_DEVICE_NAME_STRATEGY="pci",
        AMD_CDI_SPEC_DIR=str(radeons.folder / "other"),
        AMD_CDI_STATE_DIR=str(radeons.folder / "other state"),
    ).done()
    by_variables = (radeons.folder / "other/amd.com-gpu.json").read_bytes()
    assert by_variables == by_options.replace(b"/state/", b"/other state/")


def test_variables_that_name_several(radeons: Host) -> None:
    radeons.run("generate", AMD_CDI_DEVICE_NAME_STRATEGY="pci index").done()
    other = radeons.folder / "other"
    other.mkdir()
    other.joinpath("v.json").write_text(
        '{"cdiVersion":"0.3.0","kind":"v.com/c",'
        '"devices":[{"name":"a","containerEdits":{"env":["A=b"]}}]}'
    )
    listed = radeons.run("list", "--json", AMD_CDI_SPEC_DIR=f"{radeons.spec_dir}:{other}").json
    assert listed == [
        "amd.com/gpu=0000:03:00.0",
        "amd.com/gpu=0",
        "amd.com/gpu=0000:43:00.0",
        "amd.com/gpu=1",
        "amd.com/gpu=all",
        "v.com/c=a",
    ]
    created = radeons.run("share", "create", "x", "--json", AMD_CDI_GPU="1 0").done().json
    assert [part["gpu"] for part in created["slices"]] == ["0000:43:00.0", "0000:03:00.0"]


def test_an_option_wins_over_its_variable(radeons: Host) -> None:
    result = radeons.run("generate", "--output", "-", "--format", "yaml", AMD_CDI_FORMAT="json")
    assert result.done().out.startswith("#")


def test_json_by_variable(radeons: Host) -> None:
    assert radeons.run("share", "list", AMD_CDI_JSON="1").done().json == []


def test_a_bundled_sample_needs_no_sysroot(radeons: Host) -> None:
    home = {"AMD_CDI_SYSROOT": "", "XDG_CACHE_HOME": str(radeons.folder / "cache")}
    result = radeons.run("topology", "--json", "--sample", "mixed", **home).done()
    assert [gpu["pci"] for gpu in result.json["gpus"]] == [
        "0000:05:00.0",
        "0000:27:00.0",
        "0000:83:00.0",
        "0000:c4:00.0",
    ]
    (laid,) = (radeons.folder / "cache/amd-cdi").iterdir()
    assert [path.name for path in laid.iterdir()] == ["mixed"]


def test_the_completion_script_completes_in_bash(radeons: Host, tmp_path: Path) -> None:
    script = radeons.run("--show-completion", "bash").done().out
    (tmp_path / "completion").write_text(script)
    probe = """
        source completion
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
            _amd_cdi_completion amd-cdi; echo "${COMPREPLY[@]}"
        }
        complete_words amd-cdi to
        complete_words amd-cdi share ""
        complete_words amd-cdi generate --spl
        complete_words amd-cdi generate --format ""
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", probe],
        cwd=tmp_path,
        env=radeons.environment | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "topology",
        "create list remove",
        "--split",
        "yaml json",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_as_well(radeons: Host, shell: str) -> None:
    assert "amd-cdi" in radeons.run("--show-completion", shell).done().out


@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_swallow_what_is_written(radeons: Host, closing: str) -> None:
    wrapped = radeons.under("sh", "-c", f'exec "$@" {closing}', "sh")
    for arguments in (["--version"], ["topology"], ["generate"]):
        assert "Traceback" not in wrapped.run(*arguments).done().err
    assert "Traceback" not in wrapped.run("show", "nonsense").failed().err


def test_a_full_disk_behind_the_output_is_told(radeons: Host) -> None:
    full = radeons.under("sh", "-c", 'exec "$@" >/dev/full', "sh")
    full.run("topology").failed("No space left on device")


def test_a_reader_that_leaves_is_no_error_worth_a_word(on: MakeHost) -> None:
    host = on("mi300x-cpx")
    left = host.under("bash", "-c", '"$@" | head -c 1; exit "${PIPESTATUS[0]}"', "bash")
    result = left.run("topology", "--json")
    assert (result.out, result.err) == ("{", "")


def test_a_terminal_without_the_characters_gets_escapes(radeons: Host) -> None:
    text = radeons.run("topology", PYTHONIOENCODING="ascii").done().out
    assert "\\xb7" in text


def test_debug_shows_where_an_error_came_from(radeons: Host) -> None:
    plain = radeons.run("show", "none")
    assert "Traceback" not in plain.err
    for result in (
        radeons.run("--debug", "show", "none"),
        radeons.run("show", "none", AMD_CDI_DEBUG="1"),
    ):
        assert result.status == 1
        assert "Traceback" in result.err
        assert plain.err in result.err
