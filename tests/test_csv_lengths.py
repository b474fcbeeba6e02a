"""A CSV is read as the list or the histogram that it is, or not at all; nothing is guessed."""

import csv
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.csv_lengths import read_csv
from benchmarks.histogram import Histogram
from tests.benchmark_runs import figures_of, run_benchmark

SIZE = ("--tokens", "4096", "--batch", "16", "--pool", "4", "--steps", "3")
MI = 1 << 20


def bins_of(text: str) -> list[tuple[float, float, float]]:
    """Return low, high and weight of each bin of a histogram, by length."""
    found = read_csv(text)
    assert isinstance(found, Histogram), found
    return sorted(zip(found.low, found.high, found.weights, strict=True))


def lengths_of(text: str) -> list[int]:
    found = read_csv(text)
    assert isinstance(found, np.ndarray), found
    lengths: list[int] = found.tolist()
    return lengths


COUNTS = ["count", "Count", "number", "num_docs", "percent", "percentage(%)", "%", "frequency"]


@pytest.mark.parametrize("name", [*COUNTS, "weight", "# documents", "share of documents"])
@given(st.data())
def test_a_histogram_is_one_in_any_order(name: str, data: st.DataObject) -> None:
    """Neither the order of columns and rows nor columns that say nothing change it."""
    columns = [
        ["range", "[0, 10]", "[11, 50]", "51-100", ">100"],
        [name, "5", "7", "9", "3"],
        ["cumulative-percentage(%)", "20.8", "50", "87.5", "100"],
        ["note", "a", "b, c", "", "2"],
    ]
    header, *rows = zip(*data.draw(st.permutations(columns)), strict=True)
    buffer = io.StringIO()
    csv.writer(buffer).writerows([header, *data.draw(st.permutations(rows))])

    assert bins_of(buffer.getvalue()) == [(0, 10, 5), (11, 50, 7), (51, 100, 9), (101, MI, 3)]


@pytest.mark.parametrize("name", ["upper", "upper_bound", "max_length", "bin_end", "<="])
def test_bins_may_be_known_by_their_last_length(name: str) -> None:
    """Each begins after the one below, in any order of rows; the last may have no end."""
    rows = ("1024,10%", "4096,20%", "2048,60%")

    for last, high in (("inf", MI), (">4096", MI), ("8192", 8192)):
        for order in itertools.permutations((*rows, f"{last},5%")):
            assert bins_of("\n".join((f"{name},percent", *order))) == [
                (1, 1024, 10),
                (1025, 2048, 60),
                (2049, 4096, 20),
                (4097, high, 5),
            ]


def test_bins_may_have_both_ends() -> None:
    """A column of first lengths counts too, so that there may be gaps."""
    text = "count,low,high\n5,1,10\n7,20,30\n1,31,inf\n"

    assert bins_of(text) == [(1, 10, 5), (20, 30, 7), (31, MI, 1)]


@pytest.mark.parametrize("name", [*COUNTS[:2], *COUNTS[4:], "weight"])
def test_lengths_beside_counts_are_weighted(name: str) -> None:
    """A histogram of single lengths, not a list; it draws these lengths and no others."""
    for text in (f"length,{name}\n5,30\n9,10\n", f"id,{name},tokens\n0,30,5\n1,10,9\n"):
        assert bins_of(text) == [(5, 5, 30), (9, 9, 10)]
        found = read_csv(text)
        assert isinstance(found, Histogram)
        drawn = found(np.random.default_rng(0), 4000)
        assert set(drawn.tolist()) == {5, 9}
        assert np.mean(drawn == 5) == pytest.approx(0.75, abs=0.05)


NAMES = ["length", "Lengths", "num_tokens", "numTokens", "token_count", "tokens", "seq-len"]


@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_lengths_is_a_list(name: str) -> None:
    """Columns that can be neither counts nor lengths are passed over, wherever they stand."""
    assert lengths_of(f"{name}\n5\n7\n") == [5, 7]
    for other in ("id", "word_count", "num_turns", "text", "", "score"):
        assert lengths_of(f"{other},{name}\n1,5\n1-2,7\n") == [5, 7]
        assert lengths_of(f'{name},{other}\r\n5,1\r\n"1,024","a,\r\nb"\r\n') == [5, 1024]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("word_count", ("900", "70")),
        ("num_turns", ("3", "4")),
        ("index", ("0", "1")),
        ("doc_id", ("1-2", "3-4")),
        ("when", ("2024-01", "2024-02")),
        ("title", ("1-2", "Chapter 3")),
    ],
)
def test_a_list_stays_one_beside(name: str, fields: tuple[str, str]) -> None:
    """What counts something else than documents, or looks like ranges and is none."""
    assert lengths_of(f"{name},length\n{fields[0]},5\n{fields[1]},7\n") == [5, 7]


def test_counts_are_surer_than_shares_of_them() -> None:
    """Where a histogram has both, the shares were rounded; neighbours may share an end."""
    for header in ("number,range,percent", "count,range,frequency"):
        text = f"{header}\n1,0-10,33.3\n2,10-20,66.7\n"
        assert bins_of(text) == [(0, 10, 1), (10, 20, 2)]


def test_one_column_needs_no_header() -> None:
    """One length a line is text, whatever the file is called."""
    assert lengths_of("# lengths\n5\n\n7\n") == [5, 7]


UNCLEAR = {
    "counts alone": "count\n5\n6\n",
    "a name of nothing": "x\n5\n6\n",
    "two unknown columns": "a,b\n1,2\n",
    "two columns without header": "1,2\n3,4\n",
    "two columns of lengths": "length,length\n1,2\n",
    "two names of lengths": "tokens,length\n1,2\n",
    "only an id": "id\n1\n2\n",
    "bins without ends": "bin,count\n1,10\n2,20\n",
    "only first lengths": "lower,count\n1,10\n20,20\n",
    "counts of labels": "name,count\na,5\nb,6\n",
    "a number that may be an index": "number,length\n1,5\n2,6\n",
    "documents, or their numbers": "length,documents\n5,3\n",
    "running sums": "length,cumulative_count\n5,3\n6,7\n",
    "an unknown kind of count": "length,train_count\n5,3\n",
    "two counts": "length,count,weight\n5,3,2\n",
    "ranges and two counts": "range,count,counts\n1-2,3,4\n",
    "ranges and no count": "range,tokens\n1-2,5\n",
    "ranges and an unknown number": "range,x\n1-2,5\n",
    "ranges called lengths": "length\n1-2\n",
    "two columns of ranges": "a,b,count\n1-2,3-4,5\n",
    "ranges and two numbers without header": "1-10,5,6\n",
    "ends and lengths": "length,upper,count\n5,10,3\n",
    "another separator": "range;count\n1-2;5\n",
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_may_be_either_is_refused(name: str) -> None:
    """The message lists the columns and both forms that are understood."""
    with pytest.raises(ValueError, match=r"a list has one column named length.*histogram") as error:
        read_csv(UNCLEAR[name])
    header = UNCLEAR[name].splitlines()[0]
    shown = header.replace(",", ", ") if not header[0].isdigit() else "1, 2"
    assert str(error.value).startswith(f"columns {shown}")


WORDS = [
    *("length", "count", "range", "upper", "percent", "low", ",", ",", ",", "\n", "\n", "\n"),
    *("1", "20", "999", "1-10", "[11, 20]", ">20", "21+", "inf", "1e400", "-3", "0", "%", '"'),
    *("2.5", "K", "#", "\r", " "),
]
BAD = {
    'range,count\n"[0, 9]",1\n"x",2\n': "line 3: 'x' is not a range",
    "range,count\n1-10,5\nTOTAL,5\n": "line 3: 'TOTAL' is not a range",
    "range,count\n1-10,5\n11,5\n": "line 3: '11' is not a range",
    "range,count\n1-10,5\n11-20,many\n": "line 3: 'many' is not a count",
    "range,count\n1-10,5\n11-20\n": "line 3: '' is not a count",
    "range,count\n1-10,5\n5-20,5\n": "ranges [1, 10] and [5, 20] overlap",
    "range,count\n<10,5\n<20,5\n": "ranges [0, 9] and [0, 19] overlap",
    "range,count\n0-0,5\n": "range [0, 0] holds no length",
    'range,count\n"[50, 11]",5\n': "range [50, 11] holds no length",
    "range,count\n1-1e30,5\n": "goes beyond",
    "range,percent\n1-2,10\n3-4,50\n5-6,100\n": "column percent: rises to 100, as sums",
    "range,share\n1-2,0.1\n3-4,0.5\n5-6,1.0\n": "column share: rises to 1, as sums",
    "upper,count\n10,5\n10,6\n": "holds no length",
    "length,count\n0,5\n": "range [0, 0] holds no length",
    "length,count\n5,0\n": "counts [0.0] are not of lengths",
    "length,count\n5.5,1\n": "line 2: '5.5' is not an integer",
    "length\n5\n7.5\n": "line 3: '7.5' is not an integer",
    "id,length\n1,5\n2\n": "line 3: '' is not an integer",
    "id,length\n1,5\n2,6,7\n": "line 3: 3 fields, the first row has 2",
    'length\n"5\n6\n': "unexpected end of data; a quote is open",
    "length,text\n5,a\rb\n": "line 2: new-line character",
    f"length,text\n5,{'x' * (1 << 17)}x\n": "line 2: field larger than field limit",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: BAD[text])
def test_what_is_wrong_is_named(text: str) -> None:
    """One field among many is named with its line."""
    with pytest.raises(ValueError, match=re.escape(BAD[text])):
        read_csv(text)


@given(st.lists(st.sampled_from(WORDS), max_size=30).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Lengths are integers and bins hold some, or it is a ``ValueError``."""
    try:
        found = read_csv(text)
    except (ValueError, OverflowError):
        return
    if isinstance(found, Histogram):
        drawn = found(np.random.default_rng(0), 20)
        assert drawn.min() >= 1
        assert (drawn <= found.high.max()).all()
    else:
        assert found.dtype == np.int64


def test_only_newlines_end_rows() -> None:
    """Other characters that end lines in a text are part of a field."""
    odd = "a\u2028b\x0cc\x85d"

    assert lengths_of(f"length,text\n5,{odd}\n7,{odd}\n") == [5, 7]


def test_the_command_takes_a_histogram_in_any_order(tmp_path: Path) -> None:
    """Figures depend on what the columns are, not on where they stand."""
    rows = [("range", "number", "percent"), ("[0, 100]", "300", "75"), ("101-4K", "100", "25")]
    path = tmp_path / "own.csv"
    found = []
    for order in (slice(None), slice(None, None, -1)):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(row[order] for row in rows)
        found.append(figures_of("--lengths", str(path), *SIZE))
        del found[-1]["seconds"]

    assert found[0] == found[1]
    assert found[0]["in_order"]["mean"] > 0


def test_the_command_refuses_what_may_be_either(tmp_path: Path) -> None:
    """It ends with code 2 and one line, and prints no figures."""
    path = tmp_path / "counts.csv"
    path.write_text("count\n30254\n391188\n")
    done = run_benchmark("placement", "--lengths", str(path), *SIZE, "--json")

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f"lengths={path}" in done.stderr
