"""Taking things away: a share where the GPUs cannot be read, and all that was ever written."""

from __future__ import annotations

import itertools
import json
import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import MakeHost
from tests.cli.host import COMMAND, Host, snapshot
from tests.cli.test_killed import killed
from tests.cli.test_pod_specs import give

POD = "pod-6f1c.main"


def devices(host: Host) -> Any:
    """Return what each device of the spec of the GPUs edits."""
    document = yaml.load(host.spec_file.read_text(), yaml.CSafeLoader)
    return {device["name"]: device["containerEdits"] for device in document["devices"]}


def hide_sysfs(host: Host) -> None:
    (host.sysroot / "sys").rename(host.sysroot / "sys.away")


def unload_the_driver(host: Host) -> None:
    shutil.rmtree(host.sysroot / "sys/class/kfd")
    shutil.rmtree(host.sysroot / "sys/class/drm", ignore_errors=True)
    shutil.rmtree(host.sysroot / "sys/bus/pci/drivers/amdgpu", ignore_errors=True)


def break_the_spec_of_another(host: Host) -> None:
    (host.spec_dir / "other.yaml").write_text("{")


def lose_every_name_to_another(host: Host) -> None:
    document = yaml.safe_load(host.spec_file.read_text())
    (host.spec_dir / "other.json").write_text(json.dumps(document))


@pytest.fixture
def host(own: MakeHost) -> Host:
    """Two shares of a user, one of a pod, and equal shares of GPU 1."""
    host = own("rx7900xtx")
    host.generate("--split", "2").done()
    host.share("remove", "nobody").failed("there is no share")
    host.generate().done()
    for name in ("a", "b"):
        host.share("create", name, "--gpu", "0", "--cores", "10", "--memory", "1GiB").done()
    give(host, POD)
    host.generate("--split", "2").done()
    return host


@pytest.mark.parametrize(
    "trouble",
    [hide_sysfs, unload_the_driver, break_the_spec_of_another, lose_every_name_to_another],
)
def test_a_share_goes_where_specs_cannot_be_made_anew(
    host: Host, trouble: Callable[[Host], None]
) -> None:
    trouble(host)
    before = snapshot(host.folder)
    expected = devices(host)
    values = {path.name for path in (host.state_dir / "shares").iterdir()}
    trial = host.share("remove", "a", "--dry-run", "--json").done()
    assert trial.json == {"removed": "share-a", "dry_run": True}
    assert snapshot(host.folder) == before
    result = host.share("remove", "a").done()
    assert result.out == "removed amd.com/gpu=share-a\n"
    assert "only this share goes from the spec" in result.err
    assert [each["name"] for each in host.ledger()["shares"]] == [POD, "share-b"]
    del expected["share-a"]
    assert devices(host) == expected
    assert {path.name for path in (host.state_dir / "shares").iterdir()} == {
        name for name in values if not name.startswith("share-a.")
    }
    assert (host.spec_dir / f"amd.com-gpu_{POD}.yaml").exists()
    host.run("validate", host.spec_file).done()
    host.share("remove", "a").failed("there is no share 'share-a'")


def test_nothing_else_of_the_spec_changes(host: Host) -> None:
    expected = host.spec_file.read_text()
    hide_sysfs(host)
    host.share("remove", "b").done()
    start = expected.index('  - name: "share-b"')
    end = expected.index("  - name:", start + 5)
    assert host.spec_file.read_text() == expected[:start] + expected[end:]


def test_a_share_of_a_gpu_that_is_gone(host: Host) -> None:
    # 0000:03:00.0 is the first of the two.
    for link in (host.sysroot / "sys").rglob("0000:03:00.0"):
        link.unlink() if link.is_symlink() else shutil.rmtree(link, ignore_errors=True)
    result = host.share("remove", "a").done()
    assert "share-b" in result.err
    assert [each["name"] for each in host.ledger()["shares"]] == [POD, "share-b"]


def test_a_broken_spec_of_ours_is_left_to_the_next_generate(host: Host) -> None:
    hide_sysfs(host)
    host.spec_file.write_text("{")
    host.share("remove", "a").done()
    assert host.spec_file.read_text() == "{"
    assert [each["name"] for each in host.ledger()["shares"]] == [POD, "share-b"]


def test_a_share_that_cannot_be_taken_from_the_ledger_stays(host: Host) -> None:
    hide_sysfs(host)
    host.ledger_file.write_text("{")
    before = snapshot(host.folder)
    host.share("remove", "a").failed("the ledger", "is damaged")
    assert snapshot(host.folder) == before


OTHERS = {
    "cdi/nvidia.yaml": "kind: nvidia.com/gpu",
    # AMD's own toolkit writes specs of this kind under this name.
    "cdi/amd.json": '{"cdiVersion":"0.6.0","kind":"amd.com/gpu","devices":[]}',
    "cdi/amd.com-gpu.yaml.orig": "a copy",
    "cdi/amd.com-gpu_notes.yaml": "",
    "state/notes.txt": "",
    "state/shares/thesis.conf": "",
    "usage/thesis.odt": "",
}


@pytest.fixture
def full(host: Host) -> Host:
    """Everything that is ever written, leftovers of processes that died included."""
    for name in (
        "cdi/.amd.com-gpu.yaml.new",
        f"cdi/.amd.com-gpu_{POD}.yaml.new",
        "cdi/amd.com-gpu_pod-gone.c.yaml",
        "state/.ledger.json.new",
        "state/.ledger.json.previous.new",
        "state/shares/.share-c.conf.new",
        "usage/share-a",
        f"usage/{POD}",
        "usage/.share-c.new",
    ):
        path = host.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(host.spec_file.read_text() if "gone" in name else "")
    return host


def removing(host: Host, *arguments: str) -> list[str]:
    return ["generate", "--remove", "--usage-dir", str(host.folder / "usage"), *arguments]


def left(host: Host) -> set[str]:
    """Return the files that lie in the directories."""
    places = (host.folder / name for name in ("cdi", "state", "usage"))
    return {
        str(path.relative_to(host.folder))
        for place in places
        for path in place.rglob("*")
        if not path.is_dir()
    }


def test_all_that_was_written_goes(full: Host) -> None:
    there = left(full)
    trial = full.run(*removing(full, "--dry-run", "--force", "--json")).done().json
    assert left(full) == there
    assert {str(Path(path).relative_to(full.folder)) for path in trial["removed"]} == there
    assert (trial["dry_run"], trial["shares"]) == (True, [POD, "share-a", "share-b"])
    done = full.run(*removing(full, "--yes", "--force", "--json")).done().json
    assert done == {**trial, "dry_run": False}
    assert left(full) == set()
    assert not full.state_dir.exists()
    # Who runs it again has nothing left to do.
    again = full.run(*removing(full, "--yes")).done()
    assert again.out == "there is nothing to remove\n"
    assert left(full) == set()


def test_what_is_somebody_elses_stays(full: Host) -> None:
    for name, text in OTHERS.items():
        (full.folder / name).write_text(text)
    (full.spec_dir / "amd.com-gpu_pod-folder.c.yaml").mkdir()
    full.run(*removing(full, "--yes", "--force")).done()
    assert left(full) == set(OTHERS)
    for name, text in OTHERS.items():
        assert (full.folder / name).read_text() == text
    assert (full.spec_dir / "amd.com-gpu_pod-folder.c.yaml").is_dir()


def test_a_spec_of_another_name_and_form(own: MakeHost) -> None:
    host = own("rx7900xtx")
    host.generate("--output", "cdi/gpus.json").done()
    (host.spec_dir / "amd.com-gpu.yaml").write_text("kind: vendor.com/c\n")
    host.run(*removing(host, "--yes")).done()
    assert left(host) == {"cdi/amd.com-gpu.yaml"}


def test_no_ledger_and_a_spec_under_our_name(own: MakeHost) -> None:
    host = own("rx7900xtx")
    host.generate().done()
    shutil.rmtree(host.state_dir)
    ours = host.spec_file.read_text()
    host.spec_file.write_text(ours.split("\n", 2)[2])
    host.run(*removing(host, "--yes")).done()
    assert left(host) == {"cdi/amd.com-gpu.yaml"}, (
        "without its heading, anybody may have written it"
    )
    host.spec_file.write_text(ours)
    host.run(*removing(host, "--yes")).done()
    assert left(host) == set()


def test_living_shares_are_named_and_stay(full: Host) -> None:
    there = left(full)
    for extra in ("--yes", "--dry-run"):
        full.run(*removing(full, extra)).failed(f"these do: {POD}, share-a, share-b", "--force")
    # They are known by the spec as well.
    full.ledger_file.unlink()
    full.run(*removing(full, "--yes")).failed(POD, "share-a, share-b", "--force")
    assert left(full) == there - {"state/ledger.json"}


def test_a_damaged_ledger_stops_it(full: Host) -> None:
    full.ledger_file.write_text("{")
    there = left(full)
    full.run(*removing(full, "--yes")).failed("it is not known which shares live", "is damaged")
    assert left(full) == there
    full.run(*removing(full, "--yes", "--force")).done()
    assert left(full) == set()


def test_who_is_killed_runs_it_again(full: Host) -> None:
    for name, text in OTHERS.items():
        (full.folder / name).write_text(text)
    places = [full.folder / name for name in ("cdi", "state", "usage")]
    for place in places:
        shutil.copytree(place, place.with_suffix(".before"))
    for step in itertools.count(1):
        if not killed(full, step, *removing(full, "--yes", "--force")):
            break
        full.run(*removing(full, "--yes", "--force")).done()
        assert left(full) == set(OTHERS)
        for place in places:
            shutil.rmtree(place)
            shutil.copytree(place.with_suffix(".before"), place)
    assert step > 10


def test_without_a_terminal_it_asks_for_yes(full: Host) -> None:
    there = left(full)
    full.run(*removing(full, "--force")).failed("no terminal", "give --yes", status=2)
    assert left(full) == there


@pytest.mark.parametrize(("answer", "removed"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_it_asks(full: Host, answer: str, removed: bool) -> None:
    there = left(full)
    own_end, its_end = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, *removing(full, "--force")],
        cwd=full.folder,
        env=full.environment,
        stdin=its_end,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(own_end, f"{answer}\n".encode())
    _, err = process.communicate(timeout=240)
    os.close(own_end)
    os.close(its_end)
    assert f"Remove these {len(there)} files?" in err
    assert str(full.ledger_file) in err
    assert process.returncode == (0 if removed else 1)
    assert left(full) == (set() if removed else there)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--remove", "--yes", "--split", "2"],
        ["--remove", "--yes", "--output", "x.yaml"],
        ["--remove", "--yes", "--watch"],
        ["--yes"],
        ["--force"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together(full: Host, arguments: list[str]) -> None:
    there = left(full)
    full.generate(*arguments).failed("--remove", status=2)
    assert left(full) == there


def test_no_variable_removes_anything(host: Host) -> None:
    there = left(host)
    variables = {"AMD_CDI_REMOVE": "1", "AMD_CDI_YES": "1", "AMD_CDI_FORCE": "1"}
    host.run("generate", AMD_CDI_SPLIT="2", **variables).done()
    assert left(host) == there
