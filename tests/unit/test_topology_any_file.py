"""Any single file of a machine may be missing, empty, unreadable or nonsense: what then is there.

No GPU is lost but the one that the file belongs to, and there is never a traceback.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdi.errors import PermanentError
from cdi.node import sample, topology
from cdi.node.gpu import Node
from tests.cli.host import COMMAND

SAMPLES = ("mixed", "strix-halo", "mi300x-cpx")


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("any")
    for name in SAMPLES:
        sample.expand(name, top / name)
    return {name: top / name for name in SAMPLES}


@cache
def paths(root: Path) -> list[str]:
    """All files, links and folders of a sysfs."""
    found = []
    for folder, folders, files in os.walk(root / "sys"):
        found += [os.path.relpath(f"{folder}/{name}", root) for name in (*folders, *files)]
    return sorted(found)


@cache
def whole(root: Path) -> Node:
    return topology.read_node(root)


def missing(path: Path) -> None:
    """Leave nothing there."""


def empty(path: Path) -> None:
    path.write_bytes(b"")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def folder(path: Path) -> None:
    path.mkdir()


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def nonsense(path: Path) -> None:
    path.write_bytes(b"x7 -3\nsimd_count\n\n99999999999999999999999 1\n")


FAULTS = (missing, empty, loop, dangling, folder, binary, nonsense)


def owners(root: Path, relative: str) -> set[str]:
    """The GPUs that a file belongs to: of one that is no GPU's none, of other folders all."""
    gpus = {gpu.pci: gpu.partitions for gpu in whole(root).gpus}
    if pci := {pci for pci in gpus if pci in relative}:
        return pci
    if match := re.search(r"nodes/(\d+)(/|$)", relative):
        node = int(match[1])
        return {pci for pci, parts in gpus.items() if node in {one.kfd_node for one in parts}}
    if match := re.search(r"platform/[^/]+", relative):
        own = {path.name for path in (root / "sys/devices" / match[0] / "drm").iterdir()}
    elif match := re.search(r"(renderD|card)\d+", relative):
        own = {match[0]}
    else:
        return set() if (root / relative).is_file() else set(gpus)
    return {
        pci
        for pci, parts in gpus.items()
        if own
        & {
            node
            for one in parts
            for node in (f"renderD{one.render_minor}", f"card{one.card_minor}")
        }
    }


def as_told(node: Node, but: set[str]) -> list[tuple[object, ...]]:
    """What other GPUs' faults must not change: all but the links to them, and the position."""
    return [
        (gpu.pci, gpu.uuid, gpu.product, gpu.memory_bytes, gpu.compute_mode, gpu.partitions)
        for gpu in node.gpus
        if gpu.pci not in but
    ]


@contextmanager
def taken(root: Path, relative: str) -> Iterator[Path]:
    """Take something out of a tree for a while, and what came in its place."""
    path, aside = root / relative, root / "aside"
    path.rename(aside)
    try:
        yield path
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), name=st.sampled_from(SAMPLES), fault=st.sampled_from(FAULTS))
def test_it_costs_no_other_gpu(
    roots: dict[str, Path], data: st.DataObject, name: str, fault: Callable[[Path], None]
) -> None:
    root = roots[name]
    before = whole(root)
    relative = data.draw(st.sampled_from(paths(root)))
    its = owners(root, relative)
    refusal = None
    with taken(root, relative) as path:
        fault(path)
        try:
            after = topology.read_node(root)
        except PermanentError as error:
            after, refusal = Node(()), error
    assert as_told(after, its) == as_told(before, its)
    assert all(line.isprintable() for line in (*after.warnings, *map(str, after.unusable)))
    assert refusal is None or (refusal.hint and refusal.message.isprintable())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("mixed", "sys/class/kfd/kfd"),
        ("mixed", "sys/bus/pci/drivers/amdgpu/0000:05:00.0"),
        ("mixed", "sys/devices/virtual/kfd/kfd/topology/nodes/11/properties"),
        ("strix-halo", "sys/devices/virtual/kfd/kfd/topology/nodes/1/properties"),
        ("strix-halo", "sys/devices/virtual/kfd/kfd/topology/nodes/1/mem_banks/0/properties"),
        ("strix-halo", "sys/devices/pci0000:c5/0000:c5:01.1/0000:c6:00.0/mem_info_vram_total"),
    ],
)
def test_the_command_says_what_is_wrong_in_lines(
    roots: dict[str, Path],
    tmp_path: Path,
    name: str,
    relative: str,
    fault: Callable[[Path], None],
) -> None:
    root = Path(shutil.copytree(roots[name], tmp_path / "root", symlinks=True))
    with taken(root, relative) as path:
        fault(path)
        done = subprocess.run(
            [COMMAND, "topology", "--sysroot", root, "--state-dir", tmp_path / "state"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode in {0, 1}
    assert "Traceback" not in done.stderr
    assert "please report it" not in done.stderr
    assert done.returncode == 0 or done.stderr.startswith("amd-cdi: error: ")
    assert (done.returncode == 0) == done.stdout.startswith("GPU ")
