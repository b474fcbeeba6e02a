"""Packing holds every token of every document once, by seed and epoch only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.packing import Method, PackedSequences, pack

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=80)
methods = st.sampled_from(["best_fit", "stream"])


def _tokens(packed: PackedSequences) -> list[tuple[int, int]]:
    segments = packed.segments
    ranges = zip(segments.document, segments.begin, segments.end, strict=True)
    return sorted((int(d), t) for d, b, e in ranges for t in range(int(b), int(e)))


@given(lengths, st.integers(1, 128), st.integers(0, 5), methods)
def test_every_token_is_packed_once(
    documents: list[int], tokens: int, epoch: int, method: Method
) -> None:
    """Cut or whole, no token is lost or doubled, and no sequence is over its budget."""
    packed = pack(documents, tokens=tokens, seed=1, epoch=epoch, method=method)

    assert _tokens(packed) == [(d, t) for d, length in enumerate(documents) for t in range(length)]
    for index in range(len(packed)):
        assert 0 < packed.sequence(index).lengths.sum() <= tokens


@given(lengths, st.integers(1, 128))
def test_best_fit_cuts_only_what_is_longer_than_a_sequence(
    documents: list[int], tokens: int
) -> None:
    """A document that fits a sequence is whole."""
    packed = pack(documents, tokens=tokens, seed=1, epoch=0)
    segments = packed.segments
    pieces = np.bincount(segments.document, minlength=len(documents))

    np.testing.assert_array_equal(pieces, -(-np.array(documents) // tokens))


@given(lengths, st.integers(1, 128), methods)
def test_packing_depends_on_seed_and_epoch_only(
    documents: list[int], tokens: int, method: Method
) -> None:
    """The same call gives the same sequences; the number of sequences never varies by epoch."""
    one, two = (pack(documents, tokens=tokens, seed=3, epoch=1, method=method) for _ in range(2))
    other = pack(documents, tokens=tokens, seed=3, epoch=2, method=method)

    np.testing.assert_array_equal(one.segments.document, two.segments.document)
    np.testing.assert_array_equal(one.offsets, two.offsets)
    assert len(one) == len(other)


def test_streams_leave_no_padding_and_best_fit_little() -> None:
    """Streams pad the last sequence only; best fit reports what it pads."""
    documents = np.random.default_rng(0).integers(1, 900, 2000)
    stream = pack(documents, tokens=1024, seed=0, epoch=0, method="stream")
    fitted = pack(documents, tokens=1024, seed=0, epoch=0)

    assert stream.padding_fraction < 1 / len(stream)
    assert 0 < fitted.padding_fraction < 0.01


@pytest.mark.parametrize("bad", [[3, 0], [3, -1], [2.5], []])
def test_bad_lengths_are_refused(bad: list[float]) -> None:
    """A length that is no positive integer is an error that shows it."""
    with pytest.raises(ValueError, match="lengths"):
        pack(bad, tokens=8, seed=0, epoch=0)


def test_unknown_methods_are_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(ValueError, match="'best_fit' or 'stream'"):
        pack([1], tokens=8, seed=0, epoch=0, method="first_fit")  # type: ignore[arg-type]
