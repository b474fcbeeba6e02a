"""Lengths come as they stand in a user's files and data sets, or the error says where not."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import ArrayLike

from libra.balancer import text_lengths
from libra.balancer.lengths import load_lengths

LENGTHS = [7, 300, 1, 70_000, 12]
TOKENS = [list(range(length)) for length in (7, 30, 1, 12)]
Write = Callable[[Path, list[int]], Path]


def _npy(folder: Path, lengths: list[int]) -> Path:
    np.save(folder / "a.npy", np.array(lengths, dtype=np.int32))
    return folder / "a.npy"


def _parquet(folder: Path, lengths: ArrayLike | pa.Array, name: str = "a.parquet") -> Path:
    table = pa.table({"length": lengths, "text": ["x"] * len(lengths)})  # type: ignore[arg-type]
    pq.write_table(table, folder / name, row_group_size=2)
    return folder / name


def _text(folder: Path, lengths: list[int]) -> Path:
    lines = ["# lengths", "", *(f" {length}  # tokens" for length in lengths)]
    (folder / "a.txt").write_text("\r\n".join(lines))
    return folder / "a.txt"


def _text_gz(folder: Path, lengths: list[int]) -> Path:
    with gzip.open(folder / "a.txt.gz", "wt") as file:
        file.write("\n".join(map(str, lengths)))
    return folder / "a.txt.gz"


def _jsonl(folder: Path, values: Sequence[object], field: str = "length") -> Path:
    records = ({"text": "x\n", field: value, "n": None} for value in values)
    (folder / "a.jsonl").write_text("\n\n".join(map(json.dumps, records)))
    return folder / "a.jsonl"


def _jsonl_gz(folder: Path, lengths: list[int]) -> Path:
    packed = folder / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(_jsonl(folder, lengths).read_bytes()))
    (folder / "a.jsonl").unlink()
    return packed


DEEP = '{"length": ' + "[" * 3000 + "]" * 3000 + "}"
WRITERS = [_npy, _parquet, _text, _text_gz, _jsonl, _jsonl_gz]


@pytest.fixture(params=[1 << 22, 8], ids=["whole", "cut"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of lines are read at once, or in chunks of one line or two."""
    monkeypatch.setattr(text_lengths, "_CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("write", WRITERS)
def test_files_hold_what_was_written(write: Write, tmp_path: Path) -> None:
    """Each kind of file gives its lengths, in its order, as integers."""
    path = write(tmp_path, LENGTHS)

    for source in (path, str(path)):
        loaded = load_lengths(source)
        assert np.issubdtype(loaded.dtype, np.integer)
        assert loaded.tolist() == LENGTHS


@pytest.mark.parametrize("write", WRITERS)
def test_folders_and_globs_are_read_in_order_of_names(write: Write, tmp_path: Path) -> None:
    """Several files are one list; files of other kinds beside them do not matter."""
    for name in ("part-1", "part-0", "part-2"):
        (folder := tmp_path / name).mkdir()
        path = write(folder, [len(name), int(name[-1]) + 1])
        path.rename(tmp_path / (name + path.name[1:]))
        folder.rmdir()
    (tmp_path / "README.md").write_text("not lengths")
    suffix = path.name[1:]

    assert load_lengths(tmp_path).tolist() == [6, 1, 6, 2, 6, 3]
    assert load_lengths(tmp_path / f"part-[12]{suffix}").tolist() == [6, 2, 6, 3]


def test_arrays_are_not_copied(tmp_path: Path) -> None:
    """An array stays the same object, and a numpy file stays on disk."""
    values = np.array(LENGTHS, dtype=np.uint32)

    assert load_lengths(values) is values
    assert load_lengths(LENGTHS).tolist() == LENGTHS
    assert isinstance(load_lengths(_npy(tmp_path, LENGTHS)), np.memmap)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 4)]
)
def test_lists_in_parquet_count_their_tokens(kind: Any, tmp_path: Path) -> None:
    """A column such as input_ids is as good as one of lengths."""
    tokens = [[1, 2, 3, 4]] * 3 if pa.types.is_fixed_size_list(kind) else TOKENS
    path = _parquet(tmp_path, pa.array(tokens, type=kind))

    assert load_lengths(path).tolist() == [len(own) for own in tokens]


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int16(), pa.uint64()])
def test_any_integers_of_parquet_do(kind: Any, tmp_path: Path) -> None:
    """The width of the column does not matter."""
    assert load_lengths(_parquet(tmp_path, pa.array([3, 250 % 200], type=kind))).tolist() == [3, 50]


@pytest.mark.usefixtures("_chunks")
def test_lists_in_json_lines_count_their_tokens(tmp_path: Path) -> None:
    """The other fields are passed over, whatever they hold."""
    path = _jsonl(tmp_path, TOKENS, field="input_ids")

    assert load_lengths(path, column="input_ids").tolist() == [7, 30, 1, 12]


def _dataset(values: Sequence[object] = LENGTHS) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"length": list(values), "text": ["x"] * len(values)})


@pytest.mark.parametrize("values", [LENGTHS, TOKENS], ids=["integers", "lists"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data,
        lambda data: data.shuffle(seed=1),
        lambda data: data.select([3, 0, 0, 2]),
        lambda data: data.select(range(1, 3)),
        lambda data: data.shuffle(seed=2).filter(lambda row: row["text"] == "x").select([2, 1]),
        lambda data: datasets.concatenate_datasets([data, data.shuffle(seed=3)]),
        lambda data: data.shuffle(seed=4).with_format("numpy"),
    ],
    ids=["plain", "shuffled", "selected", "sliced", "filtered", "joined", "formatted"],
)
def test_data_sets_are_read_in_their_order(
    values: Sequence[object], change: Callable[[datasets.Dataset], datasets.Dataset]
) -> None:
    """Document i is row i of the data set as the user has it."""
    data = change(_dataset(values))
    rows = [data[row]["length"] for row in range(len(data))]
    wanted = [np.size(row) if isinstance(values[0], list) else row for row in rows]

    assert load_lengths(data).tolist() == wanted


def test_data_sets_may_be_longer_than_what_is_selected() -> None:
    """Rows that the user filtered out need no length."""
    data = _dataset([[1, 2], [], None, [3]]).filter(lambda row: bool(row["length"]))

    assert load_lengths(data).tolist() == [2, 1]


def test_data_sets_on_disk_are_read(tmp_path: Path) -> None:
    """A data set in several Arrow files is one column."""
    _dataset(TOKENS).save_to_disk(tmp_path / "data", num_shards=3)

    assert load_lengths(datasets.load_from_disk(tmp_path / "data")).tolist() == [7, 30, 1, 12]


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "5\n\n3.5\n", r"a.txt, line 3: '3.5' must be one integer"),
        ("a.txt", "5\n7 8\n", r"a.txt, line 2: '7 8' must be one integer"),
        ("a.txt", "5\n#\n0\n", r"a.txt, line 3: length 0 must be at least 1; drop empty"),
        ("a.txt", "5\n-2\n", r"a.txt, line 2: length -2 must be at least 1"),
        ("a.txt", "5\n99999999999999999999\n", r"a.txt, line 2: '9999.*' must be one integer"),
        ("a.txt", "# none\n", r"a.txt: holds no lengths"),
        ("a.txt.gz", "5\n", r"a.txt.gz: is not a whole gzip file"),
        ("a.npy", "", r"a.npy: is not a numpy array"),
        ("a.parquet", "PAR1 or not", r"a.parquet: cannot be read as Parquet"),
        ("a.jsonl", '{"length": 1}\n\n{"length": 0}\n', r"line 3: length 0 must be at least 1"),
        ("a.jsonl", '{"length": 1}\n{"length": 2.5}\n', r"line 2: length=2.5 must be an integer"),
        ("a.jsonl", '{"length": true}\n', r"line 1: length=True must be an integer"),
        ("a.jsonl", '{"length": 1}\n{"length": null}\n', r"line 2: length=None must be an integer"),
        ("a.jsonl", '{"length": 1}\n{"n": 1, "m": 2}\n', r"line 2: has no column.*'n', 'm'"),
        ("a.jsonl", '{"length": "long"}\n', r"line 1: length='long' must be an integer"),
        ("a.jsonl", '{"length": [1]}\n{"length": []}\n', r"line 2: length 0 must be at least 1"),
        ("a.jsonl", '{"length": []}\n{"length": [1]}\n', r"line 1: length 0 must be at least 1"),
        ("a.jsonl", '{"length": 1}\n{"length": 1} {"length": 1}\n', r"line 2: is not JSON"),
        ("a.jsonl", '{"length": 1}\n[1]\n', r"line 2: must be a JSON object, not list"),
        (
            "a.jsonl",
            '{"length": 1}\n{"length": [1]}\n',
            r"line 2: must be an integer, as lines before",
        ),
        ("a.jsonl", '{"length": [1]}\n{"length": ["a"]}\n', r"a.jsonl, from line \d: "),
        ("a.jsonl", '{"length": [1, "a"]}\n', r"a.jsonl, from line 1: "),
        ("a.jsonl", '{"length": [{"role": "user"}]}\n', r"is list<.*struct.*must be integers"),
        ("a.jsonl", "\n", r"a.jsonl: holds no lengths"),
        ("a.dat", "5\n", r"a.dat: must end in one of .npy, .parquet, .jsonl, .txt, .csv or no"),
        ("a.csv", "5\n6,7\n", r"a.csv, line 2: '6,7' must be one integer"),
        ("a.csv", "length\n5\n", r"a.csv, line 1: 'length' must be one integer"),
        ("lengths", "5\n\nfive\n", r"lengths, line 3: 'five' must be one integer"),
        ("a.txt", "5\n6\u20287\n", r"a.txt, line 2: '6\\u20287' must be one integer"),
        ("a.jsonl", '{"length": 9223372036854775808}\n', r"line 1: length must be at most 92.*07;"),
        ("a.jsonl", '{"length": 1}\n{"length": 36893488147419103232}\n', r"line 2: length must be"),
        ("a.jsonl", f'{{"length": 1}}\n{DEEP}\n', r"a.jsonl, line 2: is nested too deeply"),
        ("a.jsonl", f"{DEEP}\n", r"a.jsonl, line 1: is nested too deeply"),
    ],
)
def test_bad_files_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    """The file, its line, what stands there and the remedy are named."""
    (tmp_path / name).write_text(content)

    with pytest.raises(ValueError, match=message) as caught:
        load_lengths(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_lines_are_counted_over_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line far down a file is named by its own number."""
    monkeypatch.setattr(text_lengths, "_CHUNK_BYTES", 64)
    (tmp_path / "a.txt").write_text("12\n" * 1000 + "-1\n")

    with pytest.raises(ValueError, match="line 1001: length -1"):
        load_lengths(tmp_path / "a.txt")


def test_rows_are_counted_over_batches(tmp_path: Path) -> None:
    """A row far down a column of tokens is named by its own number."""
    with pytest.raises(ValueError, match="row 1000: length 0"):
        load_lengths(_parquet(tmp_path, pa.array([[1, 2]] * 1000 + [[]])))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([3, 4, 5, None]), r"row 3: has no value; drop such rows"),
        (pa.array([3, 4, 0]), r"row 2: length 0 must be at least 1; drop empty documents"),
        (pa.array([[1], [2], []]), r"row 2: length 0 must be at least 1"),
        (pa.array([3.0, 4.0]), r"row 0, column 'length': 3.0 is double; must be integers, or"),
        (pa.array([3.0, 4.0, 5.0, 4.5]), r"row 3, column 'length': 4.5 is double; must be"),
        (pa.array([3.0, None, 4.5]), r"row 1, column 'length': None is double; must be integers"),
        (pa.array([3.0, 4.0, float("nan")]), r"row 2, column 'length': nan is double; must be"),
        (pa.array(["a"]), r"row 0, column 'length': 'a' is string; must be integers"),
        (pa.array([[{"role": "user"}]]), r"row 0, column 'length': .* is list<.*struct.*must be"),
        (pa.array([5], type=pa.duration("s")), r"row 0, .* is duration\[s\]; must be integers"),
        (pa.array([5], type=pa.date32()), r"row 0, .* is date32\[day\]; must be integers"),
        (pa.array([True]), r"row 0, column 'length': True is bool; must be integers"),
        (pa.array([], type=pa.float64()), r", column 'length': is double; must be integers"),
        (pa.array([3, 4, 1 << 63], type=pa.uint64()), r"row 2: length must be at most 92.*07;"),
        (pa.array([], type=pa.int64()), r"holds no lengths"),
    ],
)
def test_bad_columns_are_refused(values: pa.Array, message: str, tmp_path: Path) -> None:
    """Parquet's rows and columns are named, over the borders of row groups; so are a data set's."""
    path = _parquet(tmp_path, values)
    data = datasets.Dataset(pa.table({"length": values}))

    with pytest.raises(ValueError, match=f"lengths={path}.*{message}"):
        load_lengths(path)
    with pytest.raises(ValueError, match=f"lengths: the data set.*{message}"):
        load_lengths(data)


def test_rows_are_those_that_are_selected() -> None:
    """A data set's wrong row is counted in the user's order, and rows left out do not matter."""
    numbers = pa.array([3, 4, 1 << 63], type=pa.uint64())
    large = datasets.Dataset(pa.table({"length": numbers})).select([1, 0])
    fractions = _dataset([0.5, 4.0, 3.0, 1.5]).select([1, 2, 3, 0])

    assert load_lengths(large).tolist() == [4, 3]
    with pytest.raises(ValueError, match=r"row 2, column 'length': 1\.5 is double"):
        load_lengths(fractions)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """Which of them holds lengths is the user's to say; others may be there twice."""
    table = pa.table([pa.array([own]) for own in (1, 2, 3)], ["length", "length", "n"])
    pq.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(ValueError, match="has 2 columns 'length'; rename all but one"):
        load_lengths(tmp_path / "a.parquet")
    assert load_lengths(tmp_path / "a.parquet", column="n").tolist() == [3]


def test_missing_columns_show_what_there_is(tmp_path: Path) -> None:
    """A user who named the wrong column can read the right one."""
    for source in (_parquet(tmp_path, LENGTHS), _dataset()):
        with pytest.raises(ValueError, match="has no column 'size'; name one of 'length', 'text'"):
            load_lengths(source, column="size")


def test_bad_numpy_files_are_refused(tmp_path: Path) -> None:
    """Only one row of positive integers is lengths."""
    path = tmp_path / "a.npy"
    for values, message in [
        (np.array([3, 0]), r"a.npy\[1\]=0: must be at least 1"),
        (np.array([3.0, 0.5]), r"a.npy\[1\]=0.5: float64 is not an integer type"),
        (np.array([3], dtype="m8[s]"), r"a.npy\[0\]=3 seconds: timedelta64\[s\] is not an integer"),
        (np.array([3], dtype="M8[s]"), r"a.npy\[0\]=1970.*: datetime64\[s\] is not an integer"),
        (np.array([True]), r"a.npy\[0\]=True: bool is not an integer type"),
        (np.ones((2, 2), dtype=int), r"a.npy: must be a non-empty list"),
        (np.zeros(0, dtype=int), r"a.npy: "),
        (np.array([{}]), r"a.npy: is not a numpy array of lengths"),
    ]:
        np.save(path, values)
        with pytest.raises(ValueError, match=message):
            load_lengths(path)


def test_paths_without_lengths_are_refused(tmp_path: Path) -> None:
    """A missing file, an empty folder and a mixed one are told apart."""
    with pytest.raises(ValueError, match=r"none.npy: is no file; files of lengths are .npy"):
        load_lengths(tmp_path / "none.npy")
    with pytest.raises(ValueError, match="has no file of lengths; files of lengths are"):
        load_lengths(tmp_path)
    _npy(tmp_path, LENGTHS)
    _text(tmp_path, LENGTHS)
    with pytest.raises(ValueError, match=r"files of several kinds, .npy, .txt; name one"):
        load_lengths(tmp_path)


def test_data_sets_without_an_order_are_refused() -> None:
    """Splits and streams are no list of documents; the message says what is."""
    data = _dataset()
    for source in (datasets.DatasetDict({"train": data}), data.to_iterable_dataset()):
        with pytest.raises(ValueError, match="pass a Dataset, such as load_dataset"):
            load_lengths(source)


@pytest.mark.parametrize("write", [_parquet, _jsonl])
def test_a_missing_package_is_named(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pyarrow the error is the command that installs it."""
    path = write(tmp_path, LENGTHS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ImportError, match=r"pip install 'libra-balancer\[data\]'"):
        load_lengths(path)


def test_plain_lengths_load_no_data_packages(tmp_path: Path) -> None:
    """Who has arrays and text waits for neither pyarrow nor datasets."""
    paths = [str(_npy(tmp_path, LENGTHS)), str(_text(tmp_path, LENGTHS))]
    script = (
        "import sys; from libra.balancer.lengths import load_lengths\n"
        f"for path in {paths}: load_lengths(path)\n"
        "print(*{'pyarrow', 'datasets', 'pandas', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=dict(os.environ),
    )

    assert done.stdout.strip() == ""
