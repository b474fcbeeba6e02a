"""Ranges of lengths are read as people write them in tables."""

import pytest

from benchmarks.csv_lengths import read_csv
from benchmarks.histogram import Histogram
from benchmarks.ranges import number, parse_range

MI = 1 << 20


def bins_of(text: str) -> list[tuple[float, float, float]]:
    """Return low, high and weight of each bin of a histogram."""
    found = read_csv(text)
    assert isinstance(found, Histogram), found
    return list(zip(found.low, found.high, found.weights, strict=True))


RANGES: dict[str, tuple[float, float]] = {
    "[11, 50]": (11, 50),
    "[11,50]": (11, 50),
    "(10, 50]": (11, 50),
    "[11, 51)": (11, 50),
    "(10.0, 50.0]": (11, 50),
    "11-50": (11, 50),
    "11 - 50": (11, 50),
    "11\u201350": (11, 50),
    "11:50": (11, 50),
    "11 to 50": (11, 50),
    "1,000-2,000": (1000, 2000),
    "[1,000, 2,000]": (1000, 2000),
    "1K-2K": (1024, 2048),
    "1k-1M": (1024, MI),
    "1Ki-2Ki": (1024, 2048),
    ">1000": (1001, MI),
    "> 1,000": (1001, MI),
    ">=1000": (1000, MI),
    "≥1000": (1000, MI),
    "1000+": (1000, MI),
    "128K+": (131072, MI),
    "[1, inf]": (1, MI),
    "[1000, ∞)": (1000, MI),
    "1000-inf": (1000, MI),
    f">{2 * MI}": (2 * MI + 1, 2 * MI + 1),
    "<1000": (0, 999),
    "<=1000": (0, 1000),
}


@pytest.mark.parametrize("text", RANGES)
def test_ranges_are_read_as_people_write_them(text: str) -> None:
    """Brackets, dashes, thousands and units; one without an end goes to 1 Mi tokens."""
    low, high = RANGES[text]

    assert bins_of(f'range,count\n"{text}",5\n') == [(low, high, 5)]
    assert bins_of(f'"{text}",5\n') == [(low, high, 5)]


def test_brackets_need_no_quotes() -> None:
    """The comma of a range in brackets parts no columns."""
    wanted = [(0, 10, 5), (11, 20, 6)]

    assert bins_of("range,count\n[0, 10],5\n(10, 20],6\n") == wanted
    assert bins_of("count,range\n5,[0, 10]\n6,(10, 20]\n") == wanted


@pytest.mark.parametrize(
    "text",
    ["", "5", "1,024", "2024-01", "2024-01-05", "[1, 2, 3]", "(1, 2", "1-", "-3", "100,200", "a-b"],
)
def test_other_fields_are_no_ranges(text: str) -> None:
    """Numbers with thousands, dates and lists look like some and are none."""
    assert parse_range(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("1,024", 1024), ("4K", 4096), ("1.5 k", 1536), ("2Mi", 2 * MI), ("1e3", 1000)],
)
def test_numbers_may_have_thousands_and_units(text: str, value: float) -> None:
    """Units are powers of two, as of tokens."""
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "x", "1,02", "-5", "nan", "inf", "5 tokens", "1,000,00"])
def test_other_fields_are_no_numbers(text: str) -> None:
    """Nothing is cut off to make one."""
    assert number(text) is None
