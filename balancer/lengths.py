"""Document lengths from where users keep them: arrays, files, and columns of a data set.

pyarrow is loaded only where a file or data set needs it.
"""

import glob
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from libra.balancer.packed import Integers
from libra.balancer.packing import check_lengths
from libra.balancer.rows import joined
from libra.balancer.text_lengths import begins_with, is_gzipped, read_text

Reader = Callable[[Path, str], Integers]


def load_lengths(source: Any, *, column: str = "length") -> Integers:
    """Return document lengths as an integer array, memory-mapped where the file allows it.

    Args:
        source: lengths, an array of which is not copied; a Hugging Face ``Dataset``, read in its
            current order; or the path of a file, of a folder with files of one kind, or a glob.
            Files are ``.npy`` (memory-mapped), ``.parquet``, ``.jsonl`` or ``.txt`` (one length a
            line, ``#`` begins a comment); the last two may be gzipped. A file that is named itself
            may also be text with the suffix ``.csv``, or anything without a suffix. Several are
            read in the order of their names.
        column: the field of Parquet, JSONL and data sets: integers, or lists (such as input_ids),
            whose lengths then count.

    Raises:
        ValueError: no such file or column, or something that is no length; says where it stands.
        ImportError: the file needs pyarrow, which is not installed.
    """
    if isinstance(source, str | os.PathLike):
        return _read(Path(source), column)
    if _is_dataset(source):
        _need_arrow()
        from libra.balancer.arrow_lengths import read_dataset

        return read_dataset(source, column)
    return check_lengths(source)


def _read(path: Path, column: str) -> Integers:
    files = _files(path)
    kinds = [_kind(file) for file in files]
    if len(set(kinds)) > 1:
        shown = ", ".join(sorted(set(kinds)))
        raise ValueError(f"lengths={path}: holds files of several kinds, {shown}; name one, *.txt")
    parts = [_READERS[kind](file, column) for file, kind in zip(files, kinds, strict=True)]
    return parts[0] if len(parts) == 1 else joined(parts, f"lengths={path}")


def _files(path: Path) -> list[Path]:
    """Return the files that a path stands for, in the order of their names."""
    if path.is_dir():
        # What else lies in a folder of data, README or metadata.csv, is hardly lengths.
        files = sorted(file for file in path.iterdir() if file.is_file() and _suffix(file))
    elif path.is_file():
        files = [path]
    else:
        found = map(Path, glob.glob(str(path), recursive=True))
        files = sorted(file for file in found if file.is_file())
    if not files:
        what = "has no file of lengths" if path.is_dir() else "is no file"
        raise ValueError(f"lengths={path}: {what}; files of lengths are {', '.join(_READERS)}")
    return files


def _suffix(file: Path) -> str:
    name = file.name.lower()
    return next((suffix for suffix in _READERS if name.endswith((suffix, f"{suffix}.gz"))), "")


def _kind(file: Path) -> str:
    """Return the suffix of files of one's kind.

    Raises:
        ValueError: no kind has its suffix.
    """
    known = _suffix(file)
    if known:
        return known
    plain = file.with_suffix("") if file.suffix.lower() == ".gz" else file
    if plain.suffix.lower() == ".csv":
        return ".txt"
    if plain.suffix:
        raise ValueError(
            f"lengths={file}: must end in one of {', '.join(_READERS)}, .csv or no suffix"
        )
    return next((kind for kind, magic in _MAGIC.items() if begins_with(file, magic)), ".txt")


def _read_numpy(path: Path, _column: str) -> Integers:
    _refuse_gzip(path)
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"lengths={path}: is not a numpy array of lengths: {error}") from error
    return check_lengths(values, name=str(path))


def _read_text(path: Path, _column: str) -> Integers:
    return read_text(path)


def _read_parquet(path: Path, column: str) -> Integers:
    _refuse_gzip(path)
    _need_arrow()
    from libra.balancer.arrow_lengths import read_parquet

    return read_parquet(path, column)


def _read_jsonl(path: Path, column: str) -> Integers:
    _need_arrow()
    from libra.balancer.jsonl_lengths import read_jsonl

    return read_jsonl(path, column)


_READERS: dict[str, Reader] = {
    ".npy": _read_numpy,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".txt": _read_text,
}
_MAGIC = {".npy": b"\x93NUMPY", ".parquet": b"PAR1"}


def _refuse_gzip(path: Path) -> None:
    if is_gzipped(path):
        raise ValueError(f"lengths={path}: is gzipped; gunzip it, so that it can be memory-mapped")


def _need_arrow() -> None:
    if find_spec("pyarrow") is None:
        raise ImportError(
            "lengths in Parquet, JSONL or a data set need pyarrow: "
            "pip install 'libra-balancer[data]'"
        )


def _is_dataset(source: Any) -> bool:
    """Tell a ``Dataset``; whoever has one has loaded the package, so that this need not."""
    datasets = sys.modules.get("datasets")
    if datasets is None:
        return False
    others = (datasets.DatasetDict, datasets.IterableDataset, datasets.IterableDatasetDict)
    if isinstance(source, others):
        raise ValueError(
            f"lengths: a {type(source).__name__} has no one order of documents that all ranks "
            'know; pass a Dataset, such as load_dataset(..., split="train")'
        )
    return isinstance(source, datasets.Dataset)
