"""A ledger that is damaged: said by every command, never overwritten, restored as the hint says."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdi.errors import PermanentError
from cdi.state import ledger
from tests.cli.host import Host, snapshot


@pytest.fixture
def used(radeons: Host) -> Host:
    """A node with two shares, the second of two GPUs."""
    radeons.share("create", "a", "--gpu", "0", "--cores", "25", "--memory", "1GiB").done()
    radeons.share(
        "create", "b", "--gpu", "0", "--gpu", "1", "--cores", "50", "--memory", "50%"
    ).done()
    return radeons


COMMANDS = (
    ["generate"],
    ["diff"],
    ["topology"],
    ["share", "list"],
    ["share", "create", "c", "--gpu", "1", "--cores", "1", "--memory", "1MiB"],
    ["share", "remove", "a"],
)


def test_every_command_says_it_and_none_writes(used: Host) -> None:
    used.ledger_file.write_bytes(used.ledger_file.read_bytes()[:-30])
    before = snapshot(used.folder)
    for command in COMMANDS:
        result = used.run(*command)
        result.failed(f"the ledger {used.ledger_file} is damaged", "restore it with: cp")
    assert snapshot(used.folder) == before
    # Runtimes go on with the spec as it is.
    assert "amd.com/gpu=share-b" in used.run("list").done().out


def test_the_hint_restores_it(used: Host) -> None:
    used.ledger_file.write_bytes(b"\0" * 100)
    hint = used.share("list").failed("is damaged", "without the last change").err
    command = hint.partition("restore it with: ")[2].partition(";")[0]
    subprocess.run(shlex.split(command), check=True)
    # The one before the last change: share b is the one to be created again.
    assert [share["device"] for share in used.share("list", "--json").done().json] == [
        "amd.com/gpu=share-a"
    ]
    used.share("create", "b", "--gpu", "0", "--gpu", "1", "--cores", "50", "--memory", "50%").done()


def test_a_share_that_a_restored_ledger_lacks_is_named(used: Host) -> None:
    previous = used.ledger_file.with_name("ledger.json.previous")
    used.ledger_file.write_bytes(previous.read_bytes())
    told = used.generate().done().err
    assert "share-b was made on this node and is not in the ledger" in told
    assert "share-a" not in told
    # Its values are gone now, so it is said once; and a share that is removed is no news.
    assert "was made on this node" not in used.generate().done().err
    assert "was made on this node" not in used.share("remove", "a").done().err


def test_a_lost_ledger_is_not_taken_for_an_empty_one(used: Host) -> None:
    text = used.ledger_file.read_text()
    used.ledger_file.unlink()
    before = snapshot(used.folder)
    for command in (["generate"], ["generate", "--format", "json"], COMMANDS[4]):
        for dry in ([], ["--dry-run"]):
            result = used.run(*command, *dry)
            result.failed(f"{used.spec_file} has share-a, share-b, and the ledger", "--state-dir")
    assert snapshot(used.folder) == before
    used.ledger_file.write_text(text)
    used.generate().done()
    assert "amd.com/gpu=share-b" in used.run("list").done().out


def test_without_ledger_and_spec_the_node_begins_anew(used: Host) -> None:
    used.ledger_file.unlink()
    used.spec_file.unlink()
    used.share(*COMMANDS[4][1:]).done()
    assert [share["device"] for share in used.share("list", "--json").done().json] == [
        "amd.com/gpu=share-c"
    ]


def test_another_state_directory_does_not_drop_the_shares_of_the_first(used: Host) -> None:
    before = snapshot(used.folder)
    for command in (["generate"], COMMANDS[4]):
        used.run(*command, "--state-dir", used.folder / "other").failed(str(used.folder / "other"))
    assert snapshot(used.folder) == before


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 1.0])
def test_another_version_is_not_read(used: Host, version: object) -> None:
    document = used.ledger() | {"version": version}
    used.ledger_file.write_text(json.dumps(document))
    used.share("list").failed("version 1 was expected", repr(str(version)))


def test_a_ledger_that_is_no_file(used: Host) -> None:
    used.ledger_file.unlink()
    used.ledger_file.mkdir()
    used.share("list").failed(str(used.ledger_file), "Is a directory")
    used.ledger_file.rmdir()
    used.ledger_file.symlink_to("ledger.json")
    used.share("list").failed(
        str(used.ledger_file), "Too many levels of symbolic links", "remove the symbolic link"
    )


WRONG: tuple[Any, ...] = (
    None, True, False, -1, 1 << 70, 1.5, float("nan"), float("inf"), "", "a", "-1", "../../x",
    "\0", "\u2028", "\ud800", "x" * 10000, [], [None], [[]], {}, {"a": 1}, [{"name": "x"}],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value in a document."""
    yield path
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, part in pairs:
        yield from places(part, (*path, key))


def damaged(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def test_a_wrong_value_anywhere_is_found_or_harmless(used: Host) -> None:
    """What is read back is what was written, type by type; all else is an error of ours."""
    document = used.ledger()
    found = 0
    for path in places(document):
        for value in WRONG:
            data = json.dumps(damaged(document, path, value)).encode()
            try:
                read = ledger.decode(data)
            except ledger.MALFORMED:
                found += 1
                continue
            again = json.loads(ledger.encode(read))
            again["shares"].sort(key=lambda share: share["name"])
            # Only what has the type and a legal value of its place is let through.
            assert path[0] in {"options", "shares"}, (path, value)
            inner = again
            for key in path:
                inner = inner[key]
            assert type(inner) is type(value), (path, value)
    assert found > 500


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("shares", 0, "name"), "0"),
        (("shares", 0, "name"), "all"),
        (("shares", 0, "slices", 0, "gpu"), "\x1b[2J"),
        (("shares", 0, "slices", 0, "cus"), "0-95,97-4000"),
        (("shares", 0, "slices", 0, "cus"), "0-2"),
        (("shares", 0, "slices", 0, "memory"), (1 << 63) - 1),
        (("shares", 0, "slices", 0, "unique_id"), "1"),
        (("options", "split"), 10**12),
        (("options", "file"), "ledger.json"),
        (("options", "hook_path"), "/" + "x" * 100000),
        (("options", "strategies"), ["index", "index"]),
    ],
    ids=lambda part: repr(part)[:50],
)
def test_a_wrong_but_well_formed_value_opens_nothing(
    used: Host, path: tuple[Any, ...], value: Any
) -> None:
    used.ledger_file.write_text(json.dumps(damaged(used.ledger(), path, value)))
    ledger_before = used.ledger_file.read_bytes()
    result = used.share("create", "c", "--gpu", "1", "--cores", "1", "--memory", "1MiB")
    assert "please report" not in result.err
    assert "Traceback" not in result.err
    document = used.run("show", "share-a", "--json")
    if result.status:
        assert used.ledger_file.read_bytes() == ledger_before
    elif document.status == 0:
        # A share that is still offered is held to whole WGPs within the GPU.
        (mask,) = [entry for entry in document.json["env"] if entry.startswith("HSA_CU_MASK=")]
        assert mask == "HSA_CU_MASK=0:0-23"


def test_of_two_shares_with_the_same_cus_one_is_left_out(used: Host) -> None:
    path = ("shares", 0, "slices", 0, "cus")
    used.ledger_file.write_text(json.dumps(damaged(used.ledger(), path, "24-71")))
    result = used.generate().done()
    assert "left out: share 'share-b': CU 24-71 of GPU 0000:03:00.0" in result.err
    assert "belongs to share 'share-a' as well" in result.err
    listed = used.run("list").done().out.splitlines()
    assert "amd.com/gpu=share-a" in listed
    assert "amd.com/gpu=share-b" not in listed


def test_a_damaged_ledger_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    whole = ledger.encode(ledger.Ledger())
    for length in range(len(whole) - 2):
        (tmp_path / "ledger.json").write_bytes(whole[:length])
        with pytest.raises(PermanentError, match="is damaged"):
            ledger.load(tmp_path)
