"""What is kept between updates changes nothing but their speed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdi.errors import PermanentError, TemporaryError
from cdi.files import names_in
from cdi.node import sample, topology
from cdi.node.gpu import Node
from cdi.plan import planner
from cdi.plan.amount import Amount
from cdi.state import ledger, store
from cdi.state.cache import Cache
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs
from tests import need


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    root = tmp_path_factory.mktemp("mixed")
    sample.expand("mixed", root)
    return topology.read_node(root)


def paths(root: Path) -> Paths:
    return Paths(root, root / "cdi", root / "state", root / "usage")


def step(node: Node, action: tuple[str, int], before: Ledger) -> Ledger:
    """Add a share of a user or a pod, remove one, or change the format and perhaps the file."""
    kind, number = action
    names = [share.name for share in before.shares]
    if kind == "format":
        form = ("yaml", "json")[number % 2]
        file = (before.options.file, f"amd.com-gpu.{form}")[number // 2 % 2]
        return replace(before, options=replace(before.options, format=form, file=file))
    if kind == "remove":
        return before.without_share(names[number % len(names)]) if names else before
    places = [(gpu, partition) for gpu in node.gpus for partition in gpu.partitions]
    gpu, partition = places[number % len(places)]
    want = planner.Want(gpu, partition, Amount(partition.atom, percent=False), Amount(1, True))
    name = f"pod-{number}.main" if kind == "pod" else f"share-{number}"
    if name in names:
        return before
    try:
        return before.with_share(planner.plan(name, [want], before.shares))
    except PermanentError:
        return before


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "pod", "pod", "remove", "format"]), st.integers(0, 40)),
        min_size=1,
        max_size=8,
    )
)
def test_the_files_are_the_same_with_and_without_a_cache(
    node: Node, tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    cached, without = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("a")
    cache = Cache()
    for action in actions:
        change = partial(step, node, action)
        store.update(paths(cached), node, change, cache)
        store.update(paths(without), node, change)
        assert files(cached) == files(without)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes().replace(str(root).encode(), b"ROOT")
        for path in root.rglob("*")
        if path.is_file()
    }


def test_what_another_process_changed_is_seen(node: Node, tmp_path: Path) -> None:
    cache = Cache()
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)), cache)
    store.update(place, node, partial(step, node, ("add", 1)))
    (tmp_path / "state/shares/share-0.conf").unlink()
    made = store.update(place, node, partial(step, node, ("add", 2)), cache)
    assert [share.name for share in made.ledger.shares] == ["share-0", "share-1", "share-2"]
    assert (tmp_path / "state/shares/share-0.conf").exists()


def test_it_does_not_grow_with_shares_that_are_gone(node: Node, tmp_path: Path) -> None:
    cache = Cache()
    place = paths(tmp_path)
    for number in range(8):
        store.update(place, node, partial(step, node, ("add", number)), cache)
        store.update(place, node, partial(step, node, ("remove", 0)), cache)
    assert cache.made is not None
    assert not cache.made.shares
    assert not cache.made.rendering.offers
    assert not cache.made.values


def test_nor_with_shares_that_never_came(node: Node, tmp_path: Path) -> None:
    def refuse(_: NodeSpecs) -> None:
        raise RuntimeError

    cache = Cache()
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)), cache)
    for number in range(1, 9):
        with pytest.raises(RuntimeError):
            store.update(place, node, partial(step, node, ("pod", number)), cache, confirm=refuse)
    assert cache.made is not None
    assert [share.name for share in cache.made.shares] == ["share-0"]


def test_a_failure_among_the_renames_is_put_right_by_the_next(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is as it was, and some of what lies beside it is not."""
    cache, place = Cache(), paths(tmp_path)
    store.update(place, node, partial(step, node, ("pod", 0)), cache)
    store.update(place, node, partial(step, node, ("add", 1)), cache)
    right = files(tmp_path)
    failing = place.values_dir / "share-1.args"
    rename = Path.rename

    def fail(source: Path, target: Path) -> Path:
        if target == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        return rename(source, target)

    def change(before: Ledger) -> Ledger:
        return replace(before, options=replace(before.options, require="dmem"))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(TemporaryError):
            store.update(place, node, change, cache)
    assert files(tmp_path) != right
    store.update(place, node, lambda before: before, cache)
    assert files(tmp_path) == right


def test_what_others_write_during_an_update_is_seen_by_the_next(node: Node, tmp_path: Path) -> None:
    """Other vendors' tools know nothing of our lock."""
    cache = Cache()
    place = paths(tmp_path)
    theirs = place.spec_dir / "vendor.json"
    device = {"name": "0", "containerEdits": {"env": ["A=1"]}}
    document = {"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": [device]}
    store.update(place, node, partial(step, node, ("pod", 0)), cache)
    ours = place.spec_dir / "amd.com-gpu_pod-0.main.yaml"

    def others(_: NodeSpecs) -> None:
        theirs.write_text(json.dumps(document), encoding="utf-8")
        ours.unlink()

    store.update(place, node, partial(step, node, ("pod", 1)), cache, confirm=others)
    made = store.update(place, node, partial(step, node, ("pod", 2)), cache)
    assert any(str(theirs) in warning for warning in made.warnings)
    assert ours.exists()
    change = partial(step, node, ("pod", 3))
    store.update(place, node, change, cache, confirm=lambda _: theirs.unlink())
    assert not store.update(place, node, partial(step, node, ("pod", 4)), cache).warnings


def test_a_directory_is_no_spec_that_was_left(node: Node, tmp_path: Path) -> None:
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("pod", 0)))
    left = place.spec_dir / "amd.com-gpu_pod-1.main.yaml"
    left.mkdir()
    store.update(place, node, partial(step, node, ("pod", 2)))
    assert left.is_dir()
    left.rmdir()
    left.symlink_to("nowhere")
    store.update(place, node, lambda before: before)
    assert not left.is_symlink()


def test_a_region_of_a_share_that_never_came_is_not_used(node: Node, tmp_path: Path) -> None:
    need.superuser("mounting")
    place = paths(tmp_path)
    place.usage_dir.mkdir()
    places = [(gpu, partition) for gpu in node.gpus for partition in gpu.partitions][:2]

    def make(gpus: int, before: Ledger) -> Ledger:
        wants = [planner.Want(*place, memory=Amount(1, percent=True)) for place in places[:gpus]]
        return before.with_share(planner.plan("share-a", wants, before.shares))

    def refuse(_: NodeSpecs) -> None:
        raise RuntimeError

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place.usage_dir], check=True)
    try:
        with pytest.raises(RuntimeError):
            store.update(place, node, partial(make, 1), confirm=refuse)
        store.update(place, node, partial(make, 2))
        # A page, and 1024 slots of 16 bytes and 8 for each GPU.
        assert (place.usage_dir / "share-a").stat().st_size == 4096 + 1024 * (16 + 2 * 8)
    finally:
        subprocess.run(["umount", place.usage_dir], check=True)


def test_of_a_share_that_was_left_out_nothing_stays(node: Node, tmp_path: Path) -> None:
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)))
    cache = Cache()
    (gone,) = {
        slice_.pci for share in ledger.load(place.state_dir).shares for slice_ in share.slices
    }
    rest = replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.pci != gone))
    assert store.update(place, rest, lambda before: before, cache).warnings
    assert names_in(place.values_dir) == {"share-0.conf", "share-0.args"}
    store.update(place, rest, partial(step, node, ("remove", 0)), cache)
    assert not names_in(place.values_dir)


def test_what_a_killed_process_left_of_a_living_share_goes(node: Node, tmp_path: Path) -> None:
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)))
    (place.values_dir / ".share-0.conf.new").write_bytes(b"half")
    (place.values_dir / ".somebody.new").write_bytes(b"else's")
    store.update(place, node, lambda before: before)
    assert names_in(place.values_dir) == {"share-0.conf", "share-0.args", ".somebody.new"}


def test_a_clock_that_stands_hides_nothing(node: Node, tmp_path: Path) -> None:
    """A ramfs has the kernel's coarse clock, as other filesystems had before Linux 6.13."""
    need.superuser("mounting")
    place = paths(tmp_path / "ram")
    place.sysroot.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", place.sysroot], check=True)
    cache = Cache()
    try:
        for _ in range(60):
            store.update(place, node, partial(step, node, ("add", 0)), cache)
            store.update(place, node, partial(step, node, ("remove", 0)))
            store.update(place, node, partial(step, node, ("add", 0)), cache)
            assert names_in(place.values_dir) == {"share-0.conf", "share-0.args"}
            store.update(place, node, partial(step, node, ("remove", 0)), cache)
    finally:
        subprocess.run(["umount", place.sysroot], check=True)
