"""Lengths to benchmark on are those of the family or file named, packed to the last token."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lengths import FAMILIES, family, packed_cell

LENGTHS = [3, 70, 70, 900]


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(LENGTHS))
    return buffer.getvalue()


FILES: dict[str, bytes] = {
    "own.txt": b"# documents\n3\n70\n70\n900\n",
    "own.json": json.dumps(LENGTHS).encode(),
    "own.npy": _npy(),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_its_own_lengths(tmp_path: Path, name: str, packed: bool) -> None:
    """Draws are the lengths of the file, as often as they stand there, in every format."""
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(FILES[name]) if packed else FILES[name])

    drawn = family(str(path))(np.random.default_rng(0), 4000)

    values, counts = np.unique(drawn, return_counts=True)
    assert drawn.dtype == np.int64
    assert values.tolist() == [3, 70, 900]
    # Twice as often as each of the others; six standard deviations of 4000 fair draws are 190.
    np.testing.assert_allclose(counts, [1000, 2000, 1000], atol=190)


def test_a_histogram_gives_lengths_of_its_ranges(tmp_path: Path) -> None:
    """Lengths lie in the ranges that have a count, as often as the counts say."""
    path = tmp_path / "own.csv"
    path.write_text('range,count\n"[0, 9]",1\n"[10, 99]",0\n"[100, 200]",3\n')

    drawn = family(str(path))(np.random.default_rng(0), 4000)

    short, long = drawn <= 9, drawn >= 100
    assert (short | long).all()
    assert drawn.min() >= 1
    assert drawn.max() <= 200
    # Six standard deviations of 4000 draws.
    assert abs(short.sum() - 1000) < 165


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.json", b"[]"),
        ("zero.json", b"[5, 0]"),
        ("object.json", b'{"a": 1}'),
        ("broken.json", b"[5"),
        ("words.txt", b"five\n"),
        ("binary.txt", b"\xff\xfe\x00"),
        ("columns.csv", b"range\n[0, 9]\n"),
        ("none.csv", b'range,count\n"[0, 9]",0\n'),
        ("plain.txt.gz", b"5\n"),
        ("text.npy", b"5\n"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    """What cannot be read as lengths is a ``ValueError`` that names the file."""
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(ValueError, match=f"lengths={path}: must hold"):
        family(str(path))


def test_an_unknown_family_is_told_the_known_ones() -> None:
    """The message lists what there is."""
    with pytest.raises(ValueError, match="lengths=nothing: must be a file or one of libra, "):
        family("nothing")


@pytest.mark.parametrize("name", FAMILIES)
def test_cells_are_full_and_repeat(name: str) -> None:
    """Every sequence is filled to its last token, and a seed gives the same cell again."""
    cells = [packed_cell(family(name), np.random.default_rng(7), 5000, 3) for _ in range(2)]

    assert [int(part.sum()) for part in cells[0]] == [5000] * 3
    assert min(int(part.min()) for part in cells[0]) >= 1
    for part, again in zip(*cells, strict=True):
        np.testing.assert_array_equal(part, again)


def test_documents_are_cut_only_where_sequences_end() -> None:
    """What a sequence has no room for begins the next one."""
    cell = packed_cell(lambda rng, count: np.full(count, 300), np.random.default_rng(0), 1000, 3)

    assert [part.tolist() for part in cell] == [
        [300, 300, 300, 100],
        [200, 300, 300, 200],
        [100, 300, 300, 300],
    ]


@pytest.mark.parametrize("name", ["libra-like", "wikipedia", "prolong", "wlb", "magi", "sft"])
def test_named_lengths_are_there(name: str) -> None:
    """Each name draws lengths between one token and one Mi."""
    lengths = FAMILIES[name](np.random.default_rng(0), 20_000)

    assert lengths.dtype == np.int64
    assert lengths.min() >= 1
    assert lengths.max() <= 1 << 20


def test_libra_lengths_do_not_pile_up_at_the_end() -> None:
    """Lengths over 1 Mi are drawn again; a clip would leave five in a hundred thousand there."""
    lengths = FAMILIES["libra-like"](np.random.default_rng(0), 400_000)

    assert np.bincount((lengths >= 1 << 20).astype(np.int64))[0] == len(lengths)
