"""Amounts as users write them."""

from __future__ import annotations

import pytest

from cdi.errors import PermanentError
from cdi.plan.amount import Amount, format_bytes, parse_memory, parse_percent


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("48GiB", Amount(51539607552, percent=False)),
        ("48Gi", Amount(51539607552, percent=False)),
        ("48gib", Amount(51539607552, percent=False)),
        ("512MiB", Amount(536870912, percent=False)),
        ("512 MiB", Amount(536870912, percent=False)),
        ("1073741824", Amount(1073741824, percent=False)),
        ("4096B", Amount(4096, percent=False)),
        ("25%", Amount(25, percent=True)),
        ("100 %", Amount(100, percent=True)),
    ],
)
def test_memory(text: str, amount: Amount) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        *["", "0", "0GiB", "-1", "-1GiB", "1.5GiB", "48GB", "48G", "48KiB", "48TiB", "GiB"],
        *["48GiBs", "0%", "101%", "-5%", "%", "٤٨GiB", "9" * 5000, "9" * 5000 + "%", "1_000"],
        *["1e9", "0x10"],
    ],
)
def test_memory_that_is_none(text: str) -> None:
    with pytest.raises(PermanentError, match="found"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["1", "48", " 48 ", "16384", "1048575"])
def test_bytes_that_were_meant_to_be_more(text: str) -> None:
    with pytest.raises(PermanentError, match=f"{text.strip()}GiB or {text.strip()}MiB"):
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
