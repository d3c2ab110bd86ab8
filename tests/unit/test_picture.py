"""Pictures of CUs, checked against a drawing by hand."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from cdi.command import picture
from cdi.cumask import span
from tests.unit.nodes import GIB, gpu, partition, radeon, share, slice_of


def test_a_row_is_an_xcc_and_an_atom_a_column() -> None:
    small = gpu(partitions=(partition(cus=12, xccs=4, memory_bytes=3 * GIB),))
    drawn = picture.draw(
        small,
        small.partitions[0],
        [share("share-a", slice_of(small, span(4, 4), GIB)), share("b", slice_of(radeon(), 1, 1))],
    )
    assert picture.to_text(drawn, colour=False).splitlines() == [
        "GPU 0  AMD Instinct MI300X  gfx942  12 CUs in atoms of 4  3 GiB VRAM",
        "  XCC 0 ·a·",
        "  XCC 1 ·a·",
        "  XCC 2 ·a·",
        "  XCC 3 ·a·",
        "  a share-a: 4 CUs (4-7), 1 GiB",
        "  · free: 8 CUs (0-3,8-11), 2 GiB",
    ]


def test_one_xcc_is_drawn_in_rows_of_64() -> None:
    drawn = picture.draw(radeon(), radeon().partitions[0], [])
    assert picture.to_text(drawn, colour=False).splitlines()[1:3] == [
        f"  CU   0 {'·' * 64}",
        f"  CU  64 {'·' * 32}",
    ]


def test_colours_only_where_they_are_asked_for() -> None:
    small = gpu(partitions=(partition(cus=2, xccs=1),))
    drawn = picture.draw(small, small.partitions[0], [share("s", slice_of(small, 1, GIB))])
    assert "\x1b[" not in picture.to_text(drawn, colour=False)
    assert "  CU   0 \x1b[34ma\x1b[0m·\n" in picture.to_text(drawn, colour=True)


def test_the_svg_has_a_cell_for_every_cu_and_tenant() -> None:
    hostile = share('share-<&">', slice_of(gpu(), span(0, 8), GIB))
    drawn = picture.draw(gpu(), gpu().partitions[0], [hostile])
    root = ET.fromstring(picture.to_svg([drawn]))
    cells = root.findall(".//{*}title")
    assert len(cells) == 304 + 1
    assert cells[-1].text == 'share-<&">'
    fills = [cell.get("fill") for cell in root.findall("{*}rect")]
    assert fills.count("#e8e8e8") == 304 - 8
