"""The audit finds what was lost or given twice, and says that a whole epoch was neither."""

import re
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.agent.audit import Audit
from libra.agent.audit_report import AuditRecord, AuditReport, Finding
from libra.agent.sampler import PoolSampler
from libra.attention.shape import PoolShape
from libra.balancer.packing import Segments
from tests.coordinates import HEADS, LENGTHS, TOKENS, Place, samplers
from tests.ranks import run_ranks


def drained(ranks: list[PoolSampler], epochs: int = 1) -> list[Audit]:
    """Audit whole epochs of a job."""
    audits = [sampler.audit() for sampler in ranks]
    for epoch in range(epochs):
        for sampler in ranks:
            sampler.set_epoch(epoch)
            list(sampler)
    return audits


def judge(audits: list[Audit], **more: Any) -> AuditReport:
    return audits[0].report([audit.record for audit in audits], **more)


@pytest.mark.parametrize("packing", ["best_fit", "stream"])
@pytest.mark.parametrize("last", ["drop", "pad"])
def test_whole_epochs_are_proved_whole(packing: str, last: str) -> None:
    """Every document exactly once, but for the sequences that fill no step, which are counted."""
    ranks = samplers(4, 2, packing=packing, last=last)
    report = judge(drained(ranks, epochs=2))
    left_out = 2 * ranks[0].dropped_sequences

    report.raise_if_wrong()
    assert report.right
    assert report.epochs == (0, 1)
    assert report.left_out == left_out
    assert report.steps == 2 * ranks[0].steps_per_epoch
    assert ("epochs 0, 1 whole" in str(report)) == report.right
    assert (f"but for {left_out} sequences" in str(report)) == (left_out > 0)
    if last == "pad":
        assert report.tokens == 2 * int(LENGTHS.sum())
        assert report.documents == len(LENGTHS)


def spoil(record: AuditRecord, keep: np.ndarray[Any, Any]) -> AuditRecord:
    """Return the record of these of its rows."""
    columns = ("step", "micro_batch", "document", "begin", "end")
    return replace(record, **{name: getattr(record, name)[keep] for name in columns})


@settings(max_examples=25)
@given(st.data())
def test_a_planted_loss_and_a_planted_duplicate_are_named(data: st.DataObject) -> None:
    """Any one range that is missing, doubled or moved to another step is found, and no other."""
    audits = drained(samplers(4, 2))
    records = [audit.record for audit in audits]
    rank = data.draw(st.integers(0, 3))
    record = records[rank]
    row = data.draw(st.integers(0, len(record.step) - 1))
    planted = Finding(*record.rows[row].tolist())
    index = np.arange(len(record.step))

    records[rank] = spoil(record, index[index != row])
    lost = audits[0].report(records)
    records[rank] = spoil(record, np.append(index, row))
    doubled = audits[0].report(records)
    elsewhere = record.step.copy()
    elsewhere[row] = (int(record.step[row]) + 1) % int(record.end_step)
    records[rank] = replace(record, step=elsewhere)
    moved = audits[0].report(records)

    assert (lost.lost, lost.doubled, lost.strange) == ((planted,), (), ())
    assert (doubled.lost, doubled.doubled, doubled.strange) == ((), (planted,), ())
    assert moved.lost == (planted,)
    assert [found[1:] for found in moved.doubled] == [planted[1:]]
    named = f"document {planted.document}[{planted.begin}:{planted.end}] in step {planted.step}"
    for report in (lost, doubled, moved):
        with pytest.raises(RuntimeError, match=re.escape(named)):
            report.raise_if_wrong()


def test_what_no_step_drew_is_strange() -> None:
    """A range that packing never made is told apart from one that came twice."""
    audits = drained(samplers(2, 2))
    record = audits[0].record
    end = record.end.copy()
    end[0] += 1
    report = audits[0].report([replace(record, end=end), audits[1].record])

    assert len(report.lost) == len(report.strange) == 1
    assert not report.doubled


def test_a_rank_that_misses_its_last_cell_has_lost_it() -> None:
    """Steps are judged that any rank has ended: a rank that stops early is found."""
    ranks = samplers(2, 2)
    audits = [sampler.audit() for sampler in ranks]
    list(ranks[0])
    list(islice(ranks[1], len(ranks[1]) - 1))
    report = judge(audits)

    assert {found.step for found in report.lost} == {ranks[0].steps_per_epoch - 1}


def test_the_ranks_of_a_cp_group_count_once() -> None:
    """Each rank of a CP group holds the same sequence; that is no duplicate."""
    shape = PoolShape(dp=2, cp=2, sequences_per_pool=2)
    made = [
        PoolSampler(LENGTHS, Place(shape, dp, cp), tokens=TOKENS, global_batch=4, **HEADS)
        for dp in range(2)
        for cp in range(2)
    ]
    audits = [sampler.audit() for sampler in made]
    for sampler, audit in zip(made, audits, strict=True):
        for cell in sampler.cells(0, sampler.policy_source()):
            audit.add(cell)

    assert judge(audits).right
    assert judge(audits).steps == 1


def test_steps_half_seen_are_not_judged() -> None:
    """Switched on in the middle of a step, and asked in the middle of one, the audit is silent."""
    ranks = samplers(2, 2)
    iterators = [iter(sampler) for sampler in ranks]
    for iterator in iterators:
        list(islice(iterator, 6))
    audits = [sampler.audit() for sampler in ranks]
    for iterator in iterators:
        list(islice(iterator, 8))
    report = judge(audits)

    assert report.right
    assert report.steps == 1


def test_what_was_drawn_ahead_and_resumed_is_not_doubled() -> None:
    """A state taken before what loaders drew ahead takes that back; it comes again, once."""
    ranks = samplers(2, 2)
    audits = [sampler.audit() for sampler in ranks]
    for sampler in ranks:
        abandoned = iter(sampler)
        list(islice(abandoned, 11))
        sampler.load_state_dict(sampler.state_dict(step=1))
        list(islice(abandoned, 3))
        list(sampler)

    assert judge(audits).right
    assert judge(audits).epochs == (0,)


def test_steps_drawn_ahead_can_be_left_out() -> None:
    """Ranks whose loaders are some steps apart are judged up to a step that all have trained."""
    ranks = samplers(2, 2)
    audits = [sampler.audit() for sampler in ranks]
    list(islice(ranks[0], 20))
    list(islice(ranks[1], 9))

    assert not judge(audits).right
    assert judge(audits, until=2).right
    assert judge(audits, until=2).steps == 2


def test_an_audit_that_is_off_records_nothing() -> None:
    """Nothing is kept before it is asked for, and asked for twice it is the same one."""
    (sampler, *_) = samplers(2, 2)
    list(sampler)

    assert sampler.recorder is None
    assert sampler.audit() is sampler.audit()
    assert not len(sampler.audit().record.step)


class Broken:
    """Steps of a packing that lost the end of one document and holds another one twice."""

    lengths = np.array([10, 10, 10, 10])
    own_order = False

    def draw(self, step: int) -> tuple[Segments, Any]:
        segments = Segments(
            document=np.array([0, 1, 2, 2]),
            begin=np.array([0, 0, 0, 0]),
            end=np.array([10, 9, 10, 10]),
        )
        return segments, np.array([0, 4])

    def epoch_of(self, step: int) -> int:
        return step

    def first_step(self, epoch: int) -> int:
        return epoch

    def dropped(self, epoch: int) -> int:
        return 0

    def left_out(self, epoch: int) -> Segments:
        none = np.zeros(0, dtype=np.int64)
        return Segments(document=none, begin=none, end=none)


def test_a_packing_that_loses_documents_is_found_too() -> None:
    """Ranks that were given just what steps drew are not enough: an epoch must be all documents."""
    audit = Audit(Broken(), dp_rank=0, cp_rank=0, micro_batches=1)
    (sampler, *_) = samplers(1, 1, global_batch=1)
    (cell,) = sampler.cells(0, sampler.policy_source())
    segments, _ = Broken().draw(0)
    audit.add(replace(cell, segments=segments))
    report = judge([audit])

    assert (report.lost, report.doubled, report.strange) == ((), (), ())
    assert report.uncovered == (1, 2, 3)
    with pytest.raises(RuntimeError, match=r"not packed exactly once: 3 documents \(1, 2, 3\)"):
        report.raise_if_wrong()


def _audited_rank(rank: int) -> list[AuditReport]:
    shape = PoolShape(dp=2, cp=1, sequences_per_pool=2)
    sampler = PoolSampler(LENGTHS, Place(shape, rank), tokens=TOKENS, global_batch=4, **HEADS)
    audit = sampler.audit()
    cells = list(sampler)
    right = audit.gather()
    if rank:
        audit.add(cells[5])
    return [right, audit.gather(dist.group.WORLD)]


@pytest.mark.dist
def test_real_ranks_gather_one_report() -> None:
    """All ranks of a job get the same answer, and learn of another rank's duplicate."""
    one, two = run_ranks(_audited_rank, 2)

    assert one == two
    assert one[0].right
    assert one[0].epochs == (0,)
    assert len(one[1].doubled) > 0
    assert {found.step for found in one[1].doubled} == {2}
