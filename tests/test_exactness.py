"""Whatever the heads, lengths, mesh and policy, the operator computes what one process computes.

Start here when anything of the operator changes: a failing case shrinks to a few tokens, and is
printed as the ``Case`` to give to ``run_case``.
"""

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from libra.attention.heads import HeadSplit
from tests.attention_case import Case, Mesh, Outcome, Packed, Policy, run_case
from tests.workers import RankError, RankWorkers

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

# Largest difference over the reference's largest value. Sums of some hundred products of unit
# normals round to some tens of units in the last place of float64 and float32. In bfloat16 each
# result is rounded to 8 bits, a relative 2 ** -9 = 0.002; so are the weights and out from which
# backward starts, and a gradient of dk and dv sums several such parts (tiles and heads).
BOUNDS = {"float64": 1e-12, "float32": 3e-6, "bfloat16": 4e-2}

MAX_TOKENS = 384
CASE_TIMEOUT_S = 20.0
# How long to look for a smaller case after a failure.
SHRINK_S: dict[type[BaseException], float] = {
    AssertionError: 40.0,
    RankError: 15.0,
    TimeoutError: 0.0,
}

# (ranks, cp, pool): every way to lay up to four ranks out, the last pool smaller where 3 of 4.
MESHES = [
    Mesh(ranks=1, cp=1, pool=1),
    Mesh(ranks=2, cp=1, pool=2),
    Mesh(ranks=2, cp=2, pool=1),
    Mesh(ranks=4, cp=1, pool=2),
    Mesh(ranks=4, cp=1, pool=3),
    Mesh(ranks=4, cp=1, pool=4),
    Mesh(ranks=4, cp=2, pool=1),
    Mesh(ranks=4, cp=2, pool=2),
    Mesh(ranks=4, cp=4, pool=1),
]
# (H, G): one query head for each kv head, four, eight, one kv head for all, and numbers that
# neither 2 nor 4 divides, so that ranks differ, share kv heads, or have no head at all.
HEADS = [(1, 1), (4, 4), (8, 2), (8, 1), (2, 1), (3, 3), (6, 2), (6, 3), (5, 1), (12, 3)]


def _name(mesh: Mesh) -> str:
    return f"{mesh.ranks}ranks-cp{mesh.cp}-pool{mesh.pool}"


WorkerRanks = Callable[[int], RankWorkers]


def _fitting(runs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Cut runs of (documents, tokens each) so that all together keep to the most tokens."""
    fitting: list[tuple[int, int]] = []
    left = MAX_TOKENS
    for count, length in runs:
        count, length = min(count, max(1, left // length)), min(length, left)
        if length:
            fitting.append((count, length))
            left -= count * length
    return tuple(fitting)


def _packed() -> st.SearchStrategy[Packed]:
    """Draw a sequence: empty, one document, hundreds, or a long-tailed mixture; then padding."""
    length = st.integers(1, 8) | st.integers(1, 64) | st.integers(1, MAX_TOKENS)
    count = st.just(1) | st.integers(1, 40)
    runs = st.one_of(
        st.lists(st.tuples(count, length), max_size=6),
        st.tuples(st.just(1), st.integers(1, MAX_TOKENS)).map(lambda run: [run]),
        st.tuples(st.integers(100, 300), st.integers(1, 3)).map(lambda run: [run]),
    )
    return st.builds(Packed, runs=runs.map(_fitting), padding=st.just(0) | st.integers(0, 40))


def _policies(mesh: Mesh) -> st.SearchStrategy[Policy]:
    speed = st.integers(200, 3000)
    return st.builds(
        Policy,
        pooling=st.sampled_from([True, True, True, False]),
        block_rows=st.sampled_from([1, 16, 64]),
        min_gain_permille=st.sampled_from([0, 20]),
        waves=st.integers(1, 3),
        memory_permille=st.sampled_from([2000, 1000, 1200, 8000]),
        speeds_permille=st.just(()) | st.tuples(*[speed] * mesh.ranks),
        resend_in_backward=st.booleans(),
    )


@st.composite
def _cases(draw: st.DrawFn, mesh: Mesh) -> Case:
    query, kv = draw(st.sampled_from(HEADS))
    return Case(
        mesh=mesh,
        heads=HeadSplit(query_heads=query, kv_heads=kv, cp=mesh.cp),
        head_dim=draw(st.sampled_from([64, 96, 128])),
        sequences=draw(st.tuples(*[_packed()] * mesh.dp)),
        equal_tokens=draw(st.booleans()),
        policy=draw(_policies(mesh)),
        dtype=draw(st.sampled_from(sorted(BOUNDS, reverse=True))),
        seed=draw(st.integers(0, 1000)),
    )


class _Checked:
    """Cases of one mesh: which failed, how long ago the first, and whether tiles moved in any."""

    def __init__(self, workers: RankWorkers) -> None:
        self.moved = False
        self._workers = workers
        self._failed: set[Case] = set()
        self._shrink_until = math.inf

    def check(self, case: Case) -> None:
        """Run a case; none may differ from the reference in any tensor of any rank."""
        if case not in self._failed and time.monotonic() > self._shrink_until:
            reject()
        try:
            self._run(case)
        except BaseException as error:
            # After a case that raised ranks start anew; one that hung costs its whole deadline.
            shrink_s = SHRINK_S.get(type(error), 0.0)
            self._shrink_until = min(self._shrink_until, time.monotonic() + shrink_s)
            self._failed.add(case)
            raise

    def _run(self, case: Case) -> None:
        outcomes: list[Outcome] = self._workers.run(run_case, case, timeout_s=CASE_TIMEOUT_S)
        # Ranks that disagree run home: exact, but not what the case asks for.
        assert not any(outcome.plan_mismatches for outcome in outcomes)
        wrong = {
            f"{name} of rank {rank}": error
            for rank, outcome in enumerate(outcomes)
            for name, error in outcome.errors.items()
            if not error < BOUNDS[case.dtype]
        }
        assert not wrong
        self.moved |= any(outcome.moved for outcome in outcomes)


def _expect_exact(workers: RankWorkers, mesh: Mesh, max_examples: int) -> None:
    checked = _Checked(workers)

    @settings(max_examples=max_examples, report_multiple_bugs=False)
    @given(case=_cases(mesh))
    def operator_is_exact(case: Case) -> None:
        checked.check(case)

    operator_is_exact()
    # Cases in which nothing moves would prove nothing about what moves.
    assert checked.moved or mesh.pool == 1


@pytest.mark.parametrize("mesh", MESHES, ids=_name)
def test_any_case_equals_one_process(worker_ranks: WorkerRanks, mesh: Mesh) -> None:
    """Output, dq, dk and dv of every rank are those of dense attention in float64."""
    _expect_exact(worker_ranks(mesh.ranks), mesh, max_examples=7)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mesh", MESHES, ids=_name)
def test_many_cases_equal_one_process(worker_ranks: WorkerRanks, mesh: Mesh) -> None:
    """The same for several hundred cases."""
    _expect_exact(worker_ranks(mesh.ranks), mesh, max_examples=35)
