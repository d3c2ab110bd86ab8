"""What is documented is what is there."""

from __future__ import annotations

import re

import pytest

from tests import need
from tests.libamvgpu import region, runtime, table
from tests.libamvgpu.runtime import SOURCE


@pytest.fixture(scope="module")
def trees():
    return need.fetched(lambda: {suite: runtime.hip_tree(suite) for suite in table.HIP})


def test_table_is_current(trees) -> None:
    assert table.TABLE.read_text() == table.render(trees), "python -m tests.libamvgpu.table"


def test_every_suspect_function_is_classified(trees) -> None:
    driven = (*table.CASES, *table.UNCOUNTED, *table.IMPORTS)
    cases = {name for case in driven for name in case.takes}
    for tree in trees.values():
        assert not table.declared(tree) - cases - set(table.OTHERS)


def test_libraries_have_what_the_headers_declare(trees) -> None:
    """And nothing beside it, that a program could find by its name."""
    nowhere = {name for name, counted in table.OTHERS.items() if counted == table.NOWHERE}
    assert nowhere
    for tree in trees.values():
        assert table.defined(tree) == table.declared(tree) - nowhere


def test_formula_of_the_region_is_everywhere_the_same() -> None:
    text = (SOURCE / "region.md").read_text()
    assert "4096 + 1024 * (16 + 8 * devices)" in text
    for devices, size in re.findall(r"^\| (\d+) \| ([\d,]+) \|$", text, re.MULTILINE):
        assert region.region_size(int(devices)) == int(size.replace(",", ""))
