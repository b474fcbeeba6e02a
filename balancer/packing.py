"""Pack documents into sequences of a fixed number of tokens, by seed and epoch only.

Packing decides what an optimizer step trains on, so nothing that Libra measures or decides may
touch it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.balancer.fitted import Fitted
from libra.balancer.packed import Integers, Method, PackedSequences, PackingReport, Segments
from libra.balancer.stream import Stream

__all__ = ["Method", "PackedSequences", "PackingReport", "Segments", "check_lengths", "pack"]

# Sums of lengths stay this far below the end of int64, so that none of them can overflow.
_MOST_TOKENS = 1 << 62


def pack(
    lengths: ArrayLike,
    *,
    tokens: int,
    seed: int,
    epoch: int,
    method: Method = "best_fit",
    order: ArrayLike | None = None,
) -> PackedSequences:
    """Pack one epoch: every token of every document exactly once.

    Both methods cut a document that is longer than a sequence; none is lost.

    Args:
        lengths: document lengths in tokens, positive integers; kept, not copied, where they come
            as an array, memory-mapped ones too.
        tokens: tokens of a sequence.
        seed, epoch: at least 0; with lengths and order, all that the answer depends on.
        method: "best_fit" keeps documents whole and pads; "stream" cuts at sequence ends.
        order: documents to pack, in this order; they may repeat or be left out. All of them in an
            order drawn by seed and epoch when ``None``.

    Raises:
        ValueError: no documents, a length that is not a positive integer, an unknown method, a
            document that does not exist.
    """
    checked = check_lengths(lengths)
    tokens = _integer("tokens", tokens, least=1)
    if method not in ("best_fit", "stream"):
        raise ValueError(f"packing={method!r}: must be 'best_fit' or 'stream'")
    rng = np.random.default_rng((_integer("seed", seed), _integer("epoch", epoch)))
    count = len(checked)
    documents = _shuffled(count, rng) if order is None else _check_order(order, count)
    if int(checked.max()) * len(documents) + tokens > _MOST_TOKENS:
        raise ValueError(
            f"lengths: {len(documents)} documents of up to {checked.max()} tokens, in sequences of "
            f"tokens={tokens}, cannot be counted; are these tokens?"
        )
    sequences = (Stream if method == "stream" else Fitted)(checked, documents, tokens)
    return PackedSequences(sequences, _shuffled(sequences.report.sequences, rng))


def check_lengths(lengths: ArrayLike, *, name: str = "lengths") -> Integers:
    """Return lengths as an array of their own integer type, not copied where they are one.

    Raises:
        ValueError: not a non-empty list of integers of at least 1; it shows the first that is none,
            as an item of ``name``.
    """
    if isinstance(lengths, list | tuple):
        _check_kinds(lengths, name)
    # numpy's asarray would forget that an array is memory-mapped.
    values: Any = lengths if isinstance(lengths, np.memmap) else np.asarray(lengths)
    if values.ndim != 1 or not len(values):
        shape = f"an array of shape {list(values.shape)}"
        raise ValueError(f"{name}: must be a non-empty list of document lengths, not {shape}")
    # numpy counts spans of time among integers.
    if values.dtype.kind not in "iu":
        first = _first_fraction(values)
        raise ValueError(
            f"{name}[{first}]={values[first]}: {values.dtype} is not an integer type; tokens are "
            "counted, so convert what is whole with .astype(np.int64)"
        )
    if values.min() < 1:
        first = int(np.argmax(values < 1))
        raise ValueError(
            f"{name}[{first}]={values[first]}: must be at least 1; drop empty documents"
        )
    checked: Integers = values
    return checked


def _check_kinds(values: Sequence[Any], name: str) -> None:
    """Refuse what numpy would turn into integers, or fail on without saying where."""
    wrong = {kind for kind in set(map(type, values)) if not _is_integer(kind)}
    if wrong:
        first = next(index for index, value in enumerate(values) if type(value) in wrong)
        raise ValueError(f"{name}[{first}]={values[first]!r}: must be an integer")


def _is_integer(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and not issubclass(kind, bool | np.timedelta64)


def _first_fraction(values: NDArray[Any]) -> int:
    """Return the index of the first value that is not whole, else 0."""
    if not np.issubdtype(values.dtype, np.floating):
        return 0
    return int(np.argmax(values != np.floor(values)))


def _check_order(order: ArrayLike, documents: int) -> Integers:
    """Return a copy of ``order`` in a small type; name its first item that is no document."""
    if isinstance(order, list | tuple):
        _check_kinds(order, "order")
    values = np.asarray(order)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise ValueError(
            f"order: must be a non-empty list of document indices, not {values.dtype} of shape "
            f"{list(values.shape)}"
        )
    if values.min() < 0 or values.max() >= documents:
        first = int(np.argmax((values < 0) | (values >= documents)))
        raise ValueError(
            f"order[{first}]={values[first]}: must be a document from 0 to {documents - 1}"
        )
    return values.astype(_index_type(documents))


def _shuffled(count: int, rng: np.random.Generator) -> Integers:
    order: Integers = np.arange(count, dtype=_index_type(count))
    rng.shuffle(order)
    return order


def _index_type(count: int) -> type[np.signedinteger[Any]]:
    return np.int32 if count <= 1 << 31 else np.int64


def _integer(name: str, value: int, *, least: int = 0) -> int:
    """Return a setting as an int; raise ``ValueError`` where it is none or too small."""
    if not _is_integer(type(value)) or value < least:
        raise ValueError(f"{name}={value!r}: must be an integer of at least {least}")
    return int(value)
