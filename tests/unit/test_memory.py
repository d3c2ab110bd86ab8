"""What is kept between updates changes nothing but their speed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdi.errors import PermanentError
from cdi.files import names_in
from cdi.node import sample, topology
from cdi.node.gpu import Node
from cdi.plan import planner
from cdi.plan.amount import Amount
from cdi.plan.options import Options
from cdi.spec import renderer, spectext
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
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "pod", "pod", "remove", "format"]), st.integers(0, 40)),
        min_size=1,
        max_size=8,
    )
)
def test_the_files_are_the_same_with_and_without_memory(
    node: Node, tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    with_memory, without = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("a")
    memory = Cache()
    for action in actions:
        change = partial(step, node, action)
        store.update(paths(with_memory), node, change, memory)
        store.update(paths(without), node, change)
        assert files(with_memory) == files(without)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes().replace(str(root).encode(), b"ROOT")
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_pieces_make_the_same_text(node: Node, form: str) -> None:
    rendering = renderer.render(node, (), Options(), renderer.HostPaths(Path("/values"), None))
    text = Cache().text_of(rendering.devices, form)
    assert text == spectext.encode(renderer.assemble(rendering.devices), form)


def test_what_another_process_changed_is_seen(node: Node, tmp_path: Path) -> None:
    memory = Cache()
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)), memory)
    store.update(place, node, partial(step, node, ("add", 1)))
    (tmp_path / "state/shares/share-0.conf").unlink()
    made = store.update(place, node, partial(step, node, ("add", 2)), memory)
    assert [share.name for share in made.ledger.shares] == ["share-0", "share-1", "share-2"]
    assert (tmp_path / "state/shares/share-0.conf").exists()


def test_memory_does_not_grow_with_shares_that_are_gone(node: Node, tmp_path: Path) -> None:
    memory = Cache()
    place = paths(tmp_path)
    for number in range(8):
        store.update(place, node, partial(step, node, ("add", number)), memory)
        store.update(place, node, partial(step, node, ("remove", 0)), memory)
    assert not memory.lines
    assert not memory.offers.shares
    assert not memory.written
    assert not memory.offers.beside


def test_nor_with_shares_that_never_came(node: Node, tmp_path: Path) -> None:
    def refuse(_: NodeSpecs) -> None:
        raise RuntimeError

    memory = Cache()
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)), memory)
    for number in range(1, 9):
        with pytest.raises(RuntimeError):
            store.update(place, node, partial(step, node, ("pod", number)), memory, confirm=refuse)
    assert len(memory.lines) <= 2
    assert len(memory.offers.shares) <= 2


def test_what_others_write_during_an_update_is_seen_by_the_next(node: Node, tmp_path: Path) -> None:
    """Other vendors' tools know nothing of our lock."""
    memory = Cache()
    place = paths(tmp_path)
    theirs = place.spec_dir / "vendor.json"
    device = {"name": "0", "containerEdits": {"env": ["A=1"]}}
    document = {"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": [device]}
    store.update(place, node, partial(step, node, ("pod", 0)), memory)
    ours = place.spec_dir / "amd.com-gpu_pod-0.main.yaml"

    def others(_: NodeSpecs) -> None:
        theirs.write_text(json.dumps(document), encoding="utf-8")
        ours.unlink()

    store.update(place, node, partial(step, node, ("pod", 1)), memory, confirm=others)
    made = store.update(place, node, partial(step, node, ("pod", 2)), memory)
    assert any(str(theirs) in warning for warning in made.warnings)
    assert ours.exists()
    change = partial(step, node, ("pod", 3))
    store.update(place, node, change, memory, confirm=lambda _: theirs.unlink())
    assert not store.update(place, node, partial(step, node, ("pod", 4)), memory).warnings


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


def test_a_name_that_two_devices_have_is_refused(node: Node) -> None:
    device = renderer.render(node, (), Options(), renderer.HostPaths(Path("/v"), None)).devices[0]
    memory = Cache()
    memory.text_of((device,), "yaml")
    with pytest.raises(PermanentError, match="two devices have it"):
        memory.text_of((device, device), "yaml")


def test_of_a_share_that_was_left_out_nothing_stays(node: Node, tmp_path: Path) -> None:
    place = paths(tmp_path)
    store.update(place, node, partial(step, node, ("add", 0)))
    memory = Cache()
    (gone,) = {
        slice_.pci for share in ledger.load(place.state_dir).shares for slice_ in share.slices
    }
    rest = replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.pci != gone))
    assert store.update(place, rest, lambda before: before, memory).warnings
    assert names_in(place.values_dir) == {"share-0.conf", "share-0.args"}
    store.update(place, rest, partial(step, node, ("remove", 0)), memory)
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
    memory = Cache()
    try:
        for _ in range(60):
            store.update(place, node, partial(step, node, ("add", 0)), memory)
            store.update(place, node, partial(step, node, ("remove", 0)))
            store.update(place, node, partial(step, node, ("add", 0)), memory)
            assert names_in(place.values_dir) == {"share-0.conf", "share-0.args"}
            store.update(place, node, partial(step, node, ("remove", 0)), memory)
    finally:
        memory.spares.close()
        subprocess.run(["umount", place.sysroot], check=True)


@pytest.mark.parametrize(
    "when", ["before the stamp", "and no list yet", "before the list", "after the list"]
)
def test_what_others_do_while_it_settles_is_seen(node: Node, tmp_path: Path, when: str) -> None:
    memory = Cache()
    place = paths(tmp_path)
    later: list[Callable[[], None]] = []
    theirs = place.spec_dir / "theirs.json"
    device = {"name": "0", "containerEdits": {"env": ["A=b"]}}

    def write(_: object = None) -> None:
        document = {"cdiVersion": "0.5.0", "kind": "amd.com/gpu", "devices": [device]}
        theirs.write_text(json.dumps(document))

    def update(confirm: Callable[[NodeSpecs], None] | None = None) -> tuple[str, ...]:
        change = partial(step, node, ("pod", len(list(place.spec_dir.glob("*_pod-*")))))
        made = store.update(place, node, change, memory, settle=later.append, confirm=confirm)
        return made.warnings

    def settle() -> None:
        while later:
            later.pop()()

    for _ in range(2):
        assert not update()
        settle()
    assert memory.listed_at(memory.stamps) == names_in(place.spec_dir)
    update(write if when in {"before the stamp", "and no list yet"} else None)
    if when == "before the list":
        write()
    if when != "and no list yet":
        settle()
    if when == "after the list":
        write()
    assert "theirs.json already has the amd.com/gpu devices 0" in " ".join(update())
    settle()
    theirs.unlink()
    assert not update()
