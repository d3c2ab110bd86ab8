"""Amounts as users write them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from cdi.errors import PermanentError
from cdi.plan.amount import Amount, format_bytes, parse_memory, parse_percent
from ocihook import environment

# What go-units' RAMInBytes makes of it, which is what `docker run` and `podman run --memory` take,
# and what a Kubernetes resource.Quantity is; None for what they refuse. From their documentation
# and go-units' own tests; 48 * 2^30 = 51539607552.
SIZES = {
    "48g": (51539607552, None),
    "48G": (51539607552, 48000000000),
    "48gb": (51539607552, None),
    "48GB": (51539607552, None),
    "48Gb": (51539607552, None),
    "48GiB": (51539607552, None),
    "48gib": (51539607552, None),
    "48 GiB": (51539607552, None),
    "48 GB": (51539607552, None),
    "48Gi": (51539607552, 51539607552),
    "49152Mi": (51539607552, 51539607552),
    "49152m": (51539607552, Fraction(49152, 1000)),
    "49152M": (51539607552, 49152000000),
    "49152MB": (51539607552, None),
    "50331648k": (51539607552, 50331648000),
    "50331648K": (51539607552, None),
    "50331648Ki": (51539607552, 50331648 * 1024),
    "1t": (1099511627776, None),
    "1T": (1099511627776, 10**12),
    "1Ti": (1099511627776, 1099511627776),
    "1.5Gi": (1610612736, 1610612736),
    "1.5G": (1610612736, 1500000000),
    ".5Gi": (None, 536870912),
    "32.3 mb": (33869004, None),
    "48e9": (None, 48000000000),
    "48E9": (None, 48000000000),
    "51539607552": (51539607552, 51539607552),
    "51539607552b": (51539607552, None),
}


@pytest.mark.parametrize(("text", "readings"), SIZES.items(), ids=repr)
def test_a_size_is_what_docker_and_podman_read(
    text: str, readings: tuple[int | None, int | Fraction | None]
) -> None:
    docker, kubernetes = readings
    amount = parse_memory(text)
    assert amount == Amount(int(docker or kubernetes or 0), percent=False)
    if docker and kubernetes and docker != kubernetes:
        # Nobody gets another amount than he may have meant without a word.
        assert f"({docker} bytes)" in amount.note
        assert "powers of 1000" in amount.note


def test_the_note_says_how_to_have_the_other_reading() -> None:
    note = parse_memory("48G").note
    assert note.startswith("48G is 48 GiB (51539607552 bytes)")
    other = note.split()[-1]
    assert parse_memory(other) == Amount(48000000000, percent=False)
    assert not parse_memory(other).note


@pytest.mark.parametrize("text", ["48GiB", "48Gi", "48e9", "51539607552", "25%"])
def test_what_has_one_reading_needs_no_note(text: str) -> None:
    assert not parse_memory(text).note


@pytest.mark.parametrize("text", ["48g", "48G", "512m", "512M", "4096k", "1t"])
def test_libamvgpu_and_the_hook_read_units_the_same_way(text: str) -> None:
    assert environment.parse_bytes(text) == parse_memory(text).value


@pytest.mark.parametrize("text", ["25%", "25 %", " 25% "])
def test_a_percentage_of_memory(text: str) -> None:
    assert parse_memory(text) == Amount(25, percent=True)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "0",
            "0GiB",
            "-1",
            "-1GiB",
            "+1GiB",
            "GiB",
            "48i",
            "48iB",
            "48P",
            "48Gib/s",
            "48GiBs",
        ],
        *["0%", "101%", "-5%", "%", "2.5%", "٤٨GiB", "9" * 5000, "9" * 5000 + "%", "1_000"],
        *["0x10", "1e999999999", "1e-9", "48 G B", "32m b", "32bm", "1,5GiB", "5 apples", "all"],
    ],
)
def test_memory_that_is_none(text: str) -> None:
    with pytest.raises(PermanentError, match="found"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["1", "48", " 48 ", "16384", "1048575", "48b", "48k"])
def test_bytes_that_were_meant_to_be_more(text: str) -> None:
    number = text.strip(" bk")
    with pytest.raises(PermanentError, match=f"{number}GiB or {number}MiB"):
        parse_memory(text)


def test_bytes_without_a_unit() -> None:
    assert parse_memory("1048576") == Amount(1 << 20, percent=False)


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("100", 100), ("25%", 25), (" 7 ", 7)])
def test_percent(text: str, value: int) -> None:
    assert parse_percent(text) == Amount(value, percent=True)


@pytest.mark.parametrize("text", ["0", "101", "-1", "2.5", "", "abc", "1000000000000000000000"])
def test_percent_that_is_none(text: str) -> None:
    with pytest.raises(PermanentError, match="from 1 to 100"):
        parse_percent(text)


def test_a_percentage_is_rounded_down() -> None:
    assert Amount(25, percent=True).of(304) == 76
    assert Amount(33, percent=True).of(304) == 100


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (51539607552, "48 GiB"),
        (25753026560, "24.0 GiB"),
        (536870912, "512 MiB"),
        (4096, "4096 B"),
        (0, "0 MiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
