"""What each rank is told to do fits together: a mismatch between ranks would abort the job."""

import pickle

import numpy as np
from hypothesis import given

from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.layout import make_layout
from libra.attention.lowering import LoweredPlan, TileBatch, lower
from libra.attention.plan import PlanSettings, plan_cell
from libra.attention.segments import Segments
from tests.cells import Case, cases


def _parts(case: Case) -> list[LoweredPlan]:
    plan = case.plan()
    return [lower(plan, own) for own in range(plan.bins)]


@given(cases())
def test_what_one_bin_sends_another_expects(case: Case) -> None:
    """In every wave each parcel sent is received, with the same tiles, in the same order."""
    parts = _parts(case)

    assert len({len(part.waves) for part in parts}) == 1
    for number in range(len(parts[0].waves)):
        waves = [part.waves[number] for part in parts]
        for source, wave in enumerate(waves):
            for target, other in enumerate(waves):
                sent = [own for own in wave.sent if own.peer == target]
                due = [own for own in other.received if own.peer == source]
                assert [own.heads for own in sent] == [own.heads for own in due]
                for one, two in zip(sent, due, strict=True):
                    for name in ("query_tokens", "key_tokens"):
                        np.testing.assert_array_equal(
                            getattr(one.segments, name), getattr(two.segments, name)
                        )


@given(cases())
def test_parcels_lie_by_peer(case: Case) -> None:
    """Parcels of a wave are sorted by peer, so that each peer's lie together in the buffer."""
    for part in _parts(case):
        for wave in part.waves:
            for parcels in (wave.sent, wave.received):
                peers = [own.peer for own in parcels]
                assert peers == sorted(peers)


def _covers(batches: tuple[TileBatch, ...], shape: tuple[int, int]) -> np.ndarray:
    counts = np.zeros(shape, dtype=int)
    for batch in batches:
        for single in batch.singles:
            counts[single.queries, single.heads] += 1
    return counts


@given(cases())
def test_home_rows_are_local_or_sent_once(case: Case) -> None:
    """Each (row, head) of a bin's own sequence is in one local call or in one sent parcel."""
    plan = case.plan()
    for own in range(plan.bins):
        part = lower(plan, own)
        runs = plan.runs[own % len(plan.runs)]
        shape = (part.tokens, runs[-1].head_end if runs else 0)
        counts = _covers(part.first + part.rest, shape)
        for wave in part.waves:
            for parcel in wave.sent:
                for rows in parcel.query_rows:
                    counts[rows, parcel.heads] += 1
        assert (counts == 1).all()


@given(cases())
def test_segments_lie_where_their_call_says(case: Case) -> None:
    """A call's rows are exactly its segments', and queries are the last rows of their keys."""
    for part in _parts(case):
        received = [own.batch for wave in part.waves for own in wave.received]
        for batch in (*part.first, *part.rest, *received):
            rows = (batch.queries, batch.keys)
            offsets = (batch.segments.query_offsets, batch.segments.key_offsets)
            for own, offset in zip(rows, offsets, strict=True):
                assert own.stop - own.start == offset[-1]
            assert (batch.segments.query_tokens <= batch.segments.key_tokens).all()
            assert (batch.segments.query_tokens > 0).all()


def test_uncut_documents_are_one_call() -> None:
    """Local tiles are neither copied nor called one by one: neighbours share a call."""
    cell = [np.full(100, 16), np.full(100, 16)]
    heads = HeadSplit(query_heads=8, kv_heads=2)
    part = lower(plan_cell(cell, heads, FLOPS_COST, PlanSettings()), 0)

    assert part.first == ()
    assert [len(batch.segments) for batch in part.rest] == [100]
    assert part.rest[0].heads == slice(0, 8)


def test_half_of_the_work_comes_before_what_is_received() -> None:
    """Some of a receiver's own tiles hide the arrival of others, some their return."""
    cell = [np.array([1024]), np.full(64, 8)]
    heads = HeadSplit(query_heads=2, kv_heads=1)
    how = PlanSettings(block_rows=16, memory_permille=4000)
    giver, receiver = (lower(plan_cell(cell, heads, FLOPS_COST, how), own) for own in (0, 1))

    assert giver.first == ()
    assert [len(batch.segments) for batch in receiver.first + receiver.rest] == [32, 32]


def test_a_tile_of_several_heads_is_cut_among_waves() -> None:
    """Half of the heads travel while the other half are computed."""
    cell = [np.array([4096]), np.full(16, 8)]
    heads = HeadSplit(query_heads=8, kv_heads=8)
    settings = PlanSettings(memory_permille=3000, waves=2)
    part = lower(plan_cell(cell, heads, FLOPS_COST, settings), 0)

    sizes = [sum(own.heads.stop - own.heads.start for own in wave.sent) for wave in part.waves]
    assert sizes == [2, 2]


def test_layouts_travel_between_processes() -> None:
    """A layout made in a data-loading worker is the same after pickling."""
    layout = make_layout(
        [[512], [16] * 32],
        0,
        tokens=[512, 600],
        heads=HeadSplit(query_heads=4, kv_heads=2),
        settings=PlanSettings(block_rows=16, memory_permille=3000),
        step=3,
    )
    again = pickle.loads(pickle.dumps(layout))

    assert layout.plan.moved
    assert again.digest == layout.digest
    assert again.plan.moved == layout.plan.moved
    for one, two in zip(layout.plan.waves, again.plan.waves, strict=True):
        assert [own.query_rows for own in one.sent] == [own.query_rows for own in two.sent]


def test_single_tiles_have_the_features_of_their_own() -> None:
    """They are found for all at once, and are what each alone would come to."""
    segments = Segments(query_tokens=np.array([3, 70, 1]), key_tokens=np.array([3, 300, 900]))
    for single in segments.singles:
        alone = Segments(query_tokens=single.query_tokens, key_tokens=single.key_tokens)
        assert single.total_features == alone.total_features
    assert sum(own.total_features[3] for own in segments.singles) == segments.total_features[3]
