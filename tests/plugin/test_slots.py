"""HAMi's slot grammar: vectors of its encoder, and decode as the inverse of encode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdi.errors import PermanentError
from deviceplugin.slots import Booking, decode, emptied, encode

# Each container is a slot that ends with ';', each device 'id,type,MiB,CUs:' (HAMi's encoder).
VECTORS = [
    (
        "U1,AMD Instinct MI300X,49152,76:;",
        ((Booking("U1", "AMD Instinct MI300X", 49152, 76),),),
    ),
    (
        ";U1,T,4096,76:U2,T,4096,76:;",
        ((), (Booking("U1", "T", 4096, 76), Booking("U2", "T", 4096, 76))),
    ),
    (";", ((),)),
    (";;;", ((), (), ())),
    (
        "GPU-8e1bb56457addd1b-3#cpx,AMD Instinct MI300X VF,24574,38:;;",
        ((Booking("GPU-8e1bb56457addd1b-3#cpx", "AMD Instinct MI300X VF", 24574, 38),), ()),
    ),
    ("U1,,0,0:;", ((Booking("U1", "", 0, 0),),)),
    ("U1,Radeon™ PRO (W7900)/48GB,1,1:;", ((Booking("U1", "Radeon™ PRO (W7900)/48GB", 1, 1),),)),
]


@pytest.mark.parametrize(("text", "slots"), VECTORS)
def test_vectors(text: str, slots: tuple[tuple[Booking, ...], ...]) -> None:
    assert decode(text) == slots
    assert encode(slots) == text


@pytest.mark.parametrize(
    "text",
    ["", "U1,T,1,1:", "U1,T,1,1;", "U1,T,1:;", "U1,T,1,1,1:;", ",T,1,1:;", "U1,T,x,1:;",
     "U1,T,-1,1:;", "U1,T,1, 1:;", "U1,T,01,1:;", "U1,T,٣,1:;", "U1,T,1,99999999999:;",
     "U1,T,2147483648,1:;", ":;", "U1,T,1,1::;", "x;" * 200_000],
)  # fmt: skip
def test_what_hami_does_not_write_is_refused(text: str) -> None:
    with pytest.raises(PermanentError, match="were expected"):
        decode(text)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters=",:;", exclude_categories=["Cs"]), min_size=1
)
NUMBERS = st.integers(0, (1 << 31) - 1)
BOOKINGS = st.builds(Booking, NAMES, NAMES | st.just(""), NUMBERS, NUMBERS)
SLOTS = st.lists(st.lists(BOOKINGS, max_size=3).map(tuple), min_size=1, max_size=5).map(tuple)


@given(SLOTS)
def test_decode_is_the_inverse_of_encode(slots: tuple[tuple[Booking, ...], ...]) -> None:
    assert decode(encode(slots)) == slots


@given(st.text("U1T,:;0 ", max_size=30))
def test_encode_is_the_inverse_of_decode(text: str) -> None:
    try:
        slots = decode(text)
    except PermanentError:
        return
    assert encode(slots) == text


@given(SLOTS, st.data())
def test_only_the_served_slot_is_emptied(
    slots: tuple[tuple[Booking, ...], ...], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(slots) - 1))
    after = emptied(slots, index)
    assert after[index] == ()
    assert [slot for position, slot in enumerate(after) if position != index] == [
        slot for position, slot in enumerate(slots) if position != index
    ]
