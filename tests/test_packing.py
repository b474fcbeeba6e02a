"""Packing holds every token of every document once, by seed and epoch only."""

from bisect import bisect_left, insort
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from libra.balancer.best_fit import count_moves
from libra.balancer.packing import Method, PackedSequences, Segments, check_lengths, pack

METHODS: tuple[Method, ...] = ("best_fit", "stream")
lengths = st.lists(st.integers(1, 300), min_size=1, max_size=80)
methods = st.sampled_from(METHODS)


def _everything(packed: PackedSequences) -> tuple[Segments, list[int]]:
    segments, offsets = packed.take(np.arange(len(packed)))
    return segments, offsets.tolist()


def _tokens(packed: PackedSequences) -> Counter[tuple[int, int]]:
    """Count how often every (document, token) is packed."""
    segments, _ = _everything(packed)
    ranges = zip(segments.document, segments.begin, segments.end, strict=True)
    return Counter((int(d), t) for d, b, e in ranges for t in range(int(b), int(e)))


def _columns(segments: Segments) -> list[list[int]]:
    return [column.tolist() for column in (segments.document, segments.begin, segments.end)]


def _rooms(packed: PackedSequences) -> list[int]:
    """Return the tokens that each sequence has left, sorted."""
    segments, offsets = _everything(packed)
    return sorted(packed.tokens - np.add.reduceat(segments.lengths, offsets[:-1]))


def _plain_best_fit(documents: list[int], tokens: int) -> list[int]:
    """Return the rooms that best-fit decreasing leaves, one document at a time."""
    pieces = [tokens for length in documents for _ in range(length // tokens)]
    pieces += sorted((length % tokens for length in documents if length % tokens), reverse=True)
    rooms: list[int] = []
    for piece in pieces:
        at = bisect_left(rooms, piece)
        insort(rooms, (rooms.pop(at) if at < len(rooms) else tokens) - piece)
    return rooms


@given(lengths, st.integers(1, 128), st.integers(0, 5), methods, st.data())
def test_every_token_is_packed_as_often_as_its_document(
    documents: list[int], tokens: int, epoch: int, method: Method, data: st.DataObject
) -> None:
    """No token is lost or doubled, whatever documents a user's own order repeats or leaves out."""
    indices = st.lists(st.integers(0, len(documents) - 1), min_size=1, max_size=80)
    order = data.draw(st.none() | indices)
    packed = pack(documents, tokens=tokens, seed=1, epoch=epoch, method=method, order=order)
    wanted = range(len(documents)) if order is None else order

    assert _tokens(packed) == Counter((d, t) for d in wanted for t in range(documents[d]))
    for index in range(len(packed)):
        assert 0 < packed.sequence(index).lengths.sum() <= tokens


@given(lengths, st.integers(1, 128), methods, st.data())
def test_sequences_taken_together_are_those_taken_alone(
    documents: list[int], tokens: int, method: Method, data: st.DataObject
) -> None:
    """``take`` answers in the order asked for, repeats included, and -1 is an empty sequence."""
    packed = pack(documents, tokens=tokens, seed=1, epoch=0, method=method)
    indices = data.draw(st.lists(st.integers(-1, len(packed) - 1), max_size=20))

    segments, offsets = packed.take(indices)

    assert offsets[-1] == len(segments)
    for place, index in enumerate(indices):
        own = segments.take(slice(int(offsets[place]), int(offsets[place + 1])))
        assert _columns(own) == _columns(packed.sequence(index))
        assert bool(len(own)) == (index >= 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("index", [-2, 3])
def test_sequences_that_do_not_exist_are_refused(method: Method, index: int) -> None:
    """An index beyond the epoch is an error, not another sequence."""
    packed = pack([5, 5, 5], tokens=5, seed=0, epoch=0, method=method)

    with pytest.raises(IndexError, match=f"sequence {index}: "):
        packed.take([0, index])


@given(lengths, st.integers(1, 128))
def test_best_fit_cuts_only_what_is_longer_than_a_sequence(
    documents: list[int], tokens: int
) -> None:
    """A document that fits a sequence is whole; a longer one has full pieces and a rest."""
    segments, _ = _everything(pack(documents, tokens=tokens, seed=1, epoch=0))
    pieces = np.bincount(segments.document, minlength=len(documents))

    np.testing.assert_array_equal(pieces, -(-np.array(documents) // tokens))


@given(lengths, st.integers(1, 400))
def test_best_fit_is_best_fit_decreasing(documents: list[int], tokens: int) -> None:
    """Deciding by length leaves the very rooms that deciding document by document does."""
    packed = pack(documents, tokens=tokens, seed=1, epoch=0)

    assert _rooms(packed) == sorted(_plain_best_fit(documents, tokens))


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_best_fit_is_best_fit_decreasing_on_many_documents(tokens: int) -> None:
    """The same with thousands of documents, many alike, some longer than a sequence."""
    drawn = np.random.default_rng(0).lognormal(5, 1.5, 20_000).astype(np.int64) + 1
    packed = pack(drawn, tokens=tokens, seed=1, epoch=0)

    assert _rooms(packed) == sorted(_plain_best_fit(drawn.tolist(), tokens))


def test_best_fit_decides_by_length_and_not_by_document() -> None:
    """A hundred times the documents are not a hundred times the decisions."""
    distinct = np.arange(300, 0, -1)
    few, many = (
        len(count_moves(distinct, np.full(300, count), 1024)) for count in (1_000, 100_000)
    )

    assert few < 5 * len(distinct)
    assert many < 2 * few


@given(lengths, st.integers(1, 128), methods)
def test_packing_depends_on_seed_and_epoch_only(
    documents: list[int], tokens: int, method: Method
) -> None:
    """The same call gives the same sequences; the number of sequences never varies by epoch."""
    one, two = (pack(documents, tokens=tokens, seed=3, epoch=1, method=method) for _ in range(2))
    other = pack(documents, tokens=tokens, seed=3, epoch=2, method=method)

    assert _columns(_everything(one)[0]) == _columns(_everything(two)[0])
    assert _everything(one)[1] == _everything(two)[1]
    assert len(one) == len(other)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
def test_another_seed_or_epoch_packs_anew(method: Method, alike: bool) -> None:
    """Documents meet others in another epoch, and sequences come in another order."""
    documents = np.full(500, 7) if alike else np.arange(1, 501)
    packs = [
        _columns(_everything(pack(documents, tokens=512, seed=seed, epoch=epoch, method=method))[0])
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]

    assert packs[0] != packs[1] != packs[2] != packs[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["u1", "<u4", ">i4", "i8", "u8"])
def test_any_integers_pack_alike(method: Method, kind: str) -> None:
    """Small, unsigned and foreign byte orders give the answer of a list of ints."""
    documents = [200, 3, 255, 17, 60, 60, 128]
    plain = pack(documents, tokens=64, seed=0, epoch=0, method=method)
    packed = pack(np.array(documents, dtype=kind), tokens=64, seed=0, epoch=0, method=method)

    assert _columns(_everything(packed)[0]) == _columns(_everything(plain)[0])
    assert packed.report == plain.report


def test_a_users_order_is_the_streams() -> None:
    """Documents follow one another in the order given, whatever happens to it later."""
    order = np.array([2, 0, 2])
    packed = pack([3, 4, 5], tokens=100, seed=0, epoch=0, method="stream", order=order)
    order[:] = 1

    assert packed.sequence(0).document.tolist() == [2, 0, 2]


def test_streams_leave_no_padding_and_best_fit_little() -> None:
    """Streams pad the last sequence only; best fit reports what it pads."""
    documents = np.random.default_rng(0).integers(1, 900, 2000)
    stream = pack(documents, tokens=1024, seed=0, epoch=0, method="stream")
    fitted = pack(documents, tokens=1024, seed=0, epoch=0)

    assert stream.report.padding_fraction < 1 / len(stream)
    assert 0 < fitted.report.padding_fraction < 0.01


@given(lengths, st.integers(1, 128), methods)
def test_the_report_counts_what_is_there(documents: list[int], tokens: int, method: Method) -> None:
    """Every figure is that of the sequences themselves."""
    packed = pack(documents, tokens=tokens, seed=1, epoch=0, method=method)
    segments, _ = _everything(packed)
    stream = pack(documents, tokens=tokens, seed=1, epoch=0, method="stream")
    report = packed.report

    assert (report.documents, report.sequences) == (len(documents), len(packed))
    assert report.document_tokens == sum(documents) == segments.lengths.sum()
    assert report.padding_tokens == len(packed) * tokens - sum(documents)
    assert report.padding_fraction == report.padding_tokens / (len(packed) * tokens)
    assert report.cut_documents == sum(n > 1 for n in Counter(segments.document.tolist()).values())
    assert report.sequences_over_stream == len(packed) - len(stream)


def test_the_report_is_a_sentence() -> None:
    """A user reads what padding costs: the linear layers' time of so many sequences."""
    fitted = pack([6] * 2000 + [25], tokens=10, seed=0, epoch=0)
    stream = pack([5], tokens=10, seed=0, epoch=0, method="stream")

    assert str(fitted.report) == (
        "best_fit: 2,001 documents in 2,003 sequences of 10 tokens, 40.0 % padding "
        "(the linear layers' cost of 800 sequences), 1 document cut"
    )
    assert str(stream.report) == (
        "stream: 1 document in 1 sequence of 10 tokens, 50.0 % padding, 0 documents cut"
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([3, 0], r"lengths\[1\]=0: must be at least 1; drop empty documents"),
        ([3, -1], r"lengths\[1\]=-1: must be at least 1"),
        ([3, 2.5], r"lengths\[1\]=2.5: must be an integer"),
        ([3, float("nan")], r"lengths\[1\]=nan: must be an integer"),
        ([3, True], r"lengths\[1\]=True: must be an integer"),
        ([3, "4"], r"lengths\[1\]='4': must be an integer"),
        ([3, None], r"lengths\[1\]=None: must be an integer"),
        ([3, [4, 5]], r"lengths\[1\]=\[4, 5\]: must be an integer"),
        ([3, np.timedelta64(4, "s")], r"lengths\[1\]=.*: must be an integer"),
        (np.array([3], "m8[s]"), r"lengths\[0\]=3 seconds: timedelta64\[s\] is not an integer"),
        (np.array([3], "M8[s]"), r"lengths\[0\]=1970.*: datetime64\[s\] is not an integer"),
        ([], "lengths: must be a non-empty list"),
        (7, "lengths: must be a non-empty list"),
        (np.ones((2, 2), dtype=np.int64), r"must be a non-empty list .* shape \[2, 2\]"),
        (np.array([3, 2.5]), r"lengths\[1\]=2.5: float64 is not an integer type.*astype"),
        (np.array([3, np.nan]), r"lengths\[1\]=nan: float64 is not"),
        (np.array([3.0]), r"lengths\[0\]=3.0: float64 is not"),
        (np.array([True]), r"lengths\[0\]=True: bool is not"),
        (np.array([3, 0], dtype=np.uint32), r"lengths\[1\]=0: must be at least 1"),
        ([1 << 62, 1 << 62], "lengths: 2 documents of up to 4611686018427387904 tokens"),
        (np.array([(1 << 64) - 1], dtype=np.uint64), "lengths: 1 documents of up to 1844"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_bad_lengths_are_refused(bad: ArrayLike, message: str, method: Method) -> None:
    """What is no positive integer is an error that shows it, where it stands, and the remedy."""
    with pytest.raises(ValueError, match=message):
        pack(bad, tokens=8, seed=0, epoch=0, method=method)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 3, 9], r"order\[1\]=3: must be a document from 0 to 2"),
        ([0, -1], r"order\[1\]=-1: must be a document from 0 to 2"),
        ([0, 1.0], r"order\[1\]=1.0: must be an integer"),
        ([True], r"order\[0\]=True: must be an integer"),
        (np.array([0], "m8[s]"), "order: must be a non-empty list of document indices, not time"),
        (np.array([0.5]), "order: must be a non-empty list of document indices, not float64"),
        ([], "order: must be a non-empty list"),
        (np.array([[0]]), "order: must be a non-empty list"),
    ],
)
def test_bad_orders_are_refused(order: ArrayLike, message: str) -> None:
    """The first item that is no document is named."""
    with pytest.raises(ValueError, match=message):
        pack([1, 2, 3], tokens=8, seed=0, epoch=0, order=order)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 0}, "tokens=0: must be an integer of at least 1"),
        ({"tokens": 8.0}, "tokens=8.0: must be an integer"),
        ({"seed": -1}, "seed=-1: must be an integer of at least 0"),
        ({"epoch": 0.5}, "epoch=0.5: must be an integer"),
        ({"method": "first_fit"}, "'first_fit': must be 'best_fit' or 'stream'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """A setting is named with its value and what is allowed."""
    good: dict[str, object] = {"tokens": 8, "seed": 0, "epoch": 0}

    with pytest.raises(ValueError, match=message):
        pack([1], **(good | settings))  # type: ignore[arg-type]


def test_lengths_are_checked_without_a_copy() -> None:
    """Memory-mapped lengths of any integer type stay what they are."""
    values = np.arange(1, 9, dtype=np.uint32)

    assert check_lengths(values) is values
