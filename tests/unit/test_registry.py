"""Reading a directory of specs as runtimes do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from cdi.errors import PermanentError
from cdi.spec import registry


def spec_file(path: Path, *names: str, env: str = "", kind: str = "amd.com/gpu") -> Path:
    document: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]},
        "devices": [
            {"name": name, "containerEdits": {"env": [f"WHO={env or name}", f"{name}=1"]}}
            for name in names
        ],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_only_yaml_and_json_are_read_and_not_below(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.json", "c.yml", ".d.new", "e.yaml.bak"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f.yaml").touch()
    assert [path.name for path in registry.paths_in(tmp_path)] == ["a.json", "b.yaml"]


def test_a_missing_directory_has_no_specs(tmp_path: Path) -> None:
    assert registry.paths_in(tmp_path / "none") == []


def test_the_later_directory_wins(tmp_path: Path) -> None:
    spec_file(tmp_path / "etc/a.json", "x", env="etc")
    spec_file(tmp_path / "run/a.json", "x", env="run")
    entries, _ = registry.load_all([tmp_path / "etc", tmp_path / "run"])
    assert registry.edits_for(entries, ["amd.com/gpu=x"])["env"][0] == "WHO=run"


def test_two_files_of_a_directory_with_one_name_are_both_dropped(tmp_path: Path) -> None:
    first = spec_file(tmp_path / "a.json", "x")
    second = spec_file(tmp_path / "b.json", "x", "y")
    entries, _ = registry.load_all([tmp_path])
    with pytest.raises(PermanentError, match=f"{first} and {second}"):
        registry.find(entries, "amd.com/gpu=x")
    assert registry.find(entries, "amd.com/gpu=y")[0].path == second


def test_what_the_spec_gives_to_all_comes_once_and_first(tmp_path: Path) -> None:
    spec_file(tmp_path / "a.json", "x", "y")
    entries, _ = registry.load_all([tmp_path])
    edits = registry.edits_for(entries, ["amd.com/gpu=x", "amd.com/gpu=y"])
    assert edits["deviceNodes"] == [{"path": "/dev/kfd"}]
    # Of the variables of the same name, the last one wins.
    assert edits["env"] == ["WHO=y", "x=1", "y=1"]


def test_an_unknown_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"'amd\.com/gpu=z'"):
        registry.find([], "amd.com/gpu=z")


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x01\x02",
        b"kind: [",
        b"a: 1\na: 2\n",
        b'{"a": 1, "a": 2}',
        b"- " * 100000,
        b"[" * 100000,
        b'{"a":' * 100000,
        b"a: !!python/object/apply:os.system [true]",
        b"a: 2001-99-99",
        b"\xff\xfe",
        b"a: &a [*a]\n<<: *b",
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(PermanentError, match=str(path)):
        registry.load(path)


@pytest.mark.parametrize(
    "document",
    [
        *["", "1", "[]", "{}", '{"kind": 1, "devices": []}', '{"kind": "a", "devices": [1]}'],
        *['{"kind": "a", "devices": [{"name": 1, "containerEdits": {}}]}', '{"kind": "a/b"}'],
        '{"kind": "a/b", "devices": [{"name": "x"}]}',
    ],
)
def test_what_has_not_the_shape_of_a_spec(tmp_path: Path, document: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(document)
    with pytest.raises(PermanentError, match="no CDI spec"):
        registry.load(path)


def test_aliases_that_multiply_stay_small(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    path = tmp_path / "a.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(PermanentError, match="aliases stand for more than"):
        registry.load(path)


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    # A runtime reads JSON as YAML, where these escapes stand for nothing.
    path = spec_file(tmp_path / "a.json", "0")
    path.write_text(path.read_text().replace("WHO=0", "WHO=\\ud800"))
    with pytest.raises(PermanentError, match=r"a\.json is neither YAML nor JSON"):
        registry.load(path)
    path.write_text(path.read_text().replace("\\ud800", "\\u00e4"))
    assert registry.load(path).spec["devices"][0]["containerEdits"]["env"][0] == "WHO=ä"


def test_a_fifo_does_not_make_us_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(PermanentError, match="regular file"):
        registry.load(tmp_path / "a.yaml")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(PermanentError, match="larger than 32 MiB"):
        registry.load(path)


def test_what_runtimes_skip_is_said(tmp_path: Path) -> None:
    spec_file(tmp_path / "a.json", "x")
    (tmp_path / "b.yaml").write_text("kind: [")
    entries, skipped = registry.load_all([tmp_path])
    assert [entry.path.name for entry in entries] == ["a.json"]
    assert "b.yaml" in skipped[0]


def test_rivals_are_two_files_of_one_directory(tmp_path: Path) -> None:
    spec_file(tmp_path / "etc/a.json", "x", "y")
    spec_file(tmp_path / "etc/b.json", "x")
    spec_file(tmp_path / "run/a.json", "y")
    entries, _ = registry.load_all([tmp_path / "etc", tmp_path / "run"])
    etc = tmp_path / "etc"
    why = "has the devices amd.com/gpu=x as well, and runtimes use neither"
    assert registry.rivals(entries) == {
        etc / "a.json": [f"{etc / 'b.json'} {why}"],
        etc / "b.json": [f"{etc / 'a.json'} {why}"],
    }


def test_what_is_gone_since_it_was_listed_is_no_spec(tmp_path: Path) -> None:
    paths = [spec_file(tmp_path / "a.json", "x"), spec_file(tmp_path / "b.json", "y")]
    paths[0].unlink()
    assert [entry.path for entry in registry.load_present(paths)] == [paths[1]]
    paths[0].symlink_to("nowhere")
    with pytest.raises(PermanentError, match=r"a\.json"):
        registry.load_present(paths)
    paths[0].unlink()
    paths[0].write_text("half")
    with pytest.raises(PermanentError, match="no CDI spec"):
        registry.load_present(paths)


def test_rivals_among_many_specs_are_soon_found() -> None:
    """Each pair of them looked at would be 20 million."""
    entries = [
        registry.Entry(
            Path(f"/etc/cdi/{number}.yaml"),
            {
                "cdiVersion": "0.5.0",
                "kind": "amd.com/gpu",
                "devices": [{"name": f"pod-{number % 4499}", "containerEdits": {}}],
            },
        )
        for number in range(4500)
    ]
    began = time.monotonic()
    found = registry.rivals(entries)
    assert time.monotonic() - began < 3
    assert set(found) == {Path("/etc/cdi/0.yaml"), Path("/etc/cdi/4499.yaml")}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("12", "12"),
        ("00010", "8"),
        ("08", "8"),
        ("0o17", "15"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("1e3", "1000"),
        ("1.0", "1"),
        ("0.5", "0.5"),
        ("yes", "true"),
        ("y", "true"),
        ("1:3", "1:3"),
        ("0:3", "0:3"),
        ("0000:05:00.0", "0000:05:00.0"),
        ("2001-01-01", "2001-01-01"),
        ("'08'", "08"),
        ("a", "a"),
    ],
)
def test_a_name_without_quotes_is_what_a_runtime_makes_of_it(
    tmp_path: Path, written: str, name: str
) -> None:
    """As seen of podman 4.3.1, whose reader is that of the reference implementation."""
    (tmp_path / "a.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: amd.com/gpu\ndevices:\n"
        f"- {{name: {written}, containerEdits: {{env: [A=1]}}}}\n"
    )
    assert list(registry.load(tmp_path / "a.yaml").devices) == [f"amd.com/gpu={name}"]
