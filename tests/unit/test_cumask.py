"""CU masks against what was measured on hardware and read from ROCr."""

from __future__ import annotations

import pytest

from cdi import cumask
from cdi.cumask import MaskError, span


@pytest.mark.parametrize(
    ("version", "xccs", "atom"),
    [
        (90402, 8, 8),  # MI300X in SPX
        (90402, 1, 1),  # a CPX partition
        (90402, 4, 4),  # DPX
        (90010, 1, 1),  # MI210
        (90010, 0, 1),  # an old kernel that does not tell
        (100300, 1, 2),  # RDNA2
        (110001, 1, 2),
        (120001, 1, 2),
    ],
)
def test_atom(version: int, xccs: int, atom: int) -> None:
    assert cumask.atom_size(version, xccs) == atom


def test_a_list_is_compressed_and_read_back() -> None:
    bits = 0b1_1101_0000_1111
    assert cumask.format_cus(bits) == "0-3,8,10-12"
    assert cumask.parse_cus("0-3,8,10-12") == bits


def test_one_set_a_gpu_in_container_order() -> None:
    assert cumask.format_mask([span(0, 76), span(8, 8)]) == "0:0-75;1:8-15"
    assert cumask.parse_mask("0:0-75;1:8-15") == {0: span(0, 76), 1: span(8, 8)}


def test_a_set_can_name_several_gpus() -> None:
    assert cumask.parse_mask("0,2-3:0-7") == {0: 0xFF, 2: 0xFF, 3: 0xFF}


@pytest.mark.parametrize(
    "mask",
    [
        "",
        "0",
        "0:",
        ":0-3",
        "0:0-3;",
        "0:0-3;;1:0-3",
        "0:0x0-0x3",
        "0:0-F",
        "0:A",
        "GPU-8e1bb56457addd1b:0-3",
        "0:0-3;0:4-7",
        "0,0:0-3",
        "0-1:0-3;1:4-7",
        "0: 0-3",
        "0 :0-3",
        " 0:0-3",
        "0:0-3 ",
        "0:0-3\n",
        "0:3-0",
        "0:-3",
        "0:0-",
        "0:0--3",
        "0:0-1-2",
        "0:+1",
        "0:٣",
        "0:1_0",
        "0:4096",
        "1024:0",
        "0:99999999999999999999999",
        "0:0,,1",
    ],
)
def test_what_rocr_drops_silently_is_an_error(mask: str) -> None:
    with pytest.raises(MaskError):
        cumask.parse_mask(mask)


def test_a_mask_has_a_bound() -> None:
    with pytest.raises(MaskError, match="longer than"):
        cumask.parse_mask("0:" + "0," * 40000 + "0")


@pytest.mark.parametrize(
    ("bits", "count", "atom", "legal"),
    [
        (span(0, 14), 60, 2, True),  # 0:0-13 on a gfx1101 occupied 7 of 30 WGPs
        (span(0, 15), 60, 2, False),  # 0:0-14 occupied all of them
        (span(0, 1), 304, 8, False),  # 0:0 occupied 267 CUs
        (span(0, 4), 304, 8, False),  # 0:0-3 occupied 156
        (1 | 1 << 8 | 1 << 16 | 1 << 24, 304, 8, False),  # 0:0,8,16,24 occupied 270
        (span(0, 8), 304, 8, True),  # 0:0-7 occupied exactly 8
        (span(8, 8), 304, 8, True),
        (span(4, 8), 304, 8, False),  # eight CUs that are no atom
        (span(304, 97), 304, 8, False),  # 0:304-400 occupied all 304
        (span(296, 16), 304, 8, False),
        (0, 304, 8, False),
        (span(37, 1), 38, 1, True),
        (span(38, 1), 38, 1, False),
    ],
)
def test_masks_that_were_measured(bits: int, count: int, atom: int, legal: bool) -> None:
    assert (cumask.fault(bits, count, atom) is None) is legal


def test_a_fault_names_the_cus() -> None:
    assert "CU 14 " in str(cumask.fault(span(0, 15), 60, 2))
    assert "CU 304-400 " in str(cumask.fault(span(304, 97), 304, 8))


def test_whole_atoms_leave_out_what_is_orphaned() -> None:
    assert cumask.whole_atoms(span(3, 20), 304, 8) == span(8, 8)
    # Nine CUs in atoms of two: the last one is in no whole atom.
    assert cumask.whole_atoms(span(0, 9), 9, 2) == span(0, 8)
