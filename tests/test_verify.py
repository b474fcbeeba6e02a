"""The verify mode compares both plans for as long as asked, and all ranks of a pool stop as one."""

import logging
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from libra.attention.pooled import PooledAttention
from libra.attention.sdpa import SdpaCpuKernel
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec
from libra.attention.verify import VerificationError, VerifySettings
from tests.attention_case import Mesh, mesh_pools
from tests.small_case import attend, small_case, small_layout
from tests.workers import RankWorkers

WorkerRanks = Callable[[int], RankWorkers]

MESH = Mesh(ranks=4, cp=2, pool=2)
ELASTIC = Mesh(ranks=6, cp=1, pool=2, largest=4)
Wrong = Literal["", "forward", "backward"]


class _WrongKernel(SdpaCpuKernel):
    """Adds something to what it computes for received tiles: they begin amid a document."""

    def __init__(self, wrong: Wrong, added: float) -> None:
        self.calls = self.struck = 0
        self._wrong, self._added = wrong, added

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Segments,
        spec: AttentionSpec,
        out: Tensor,
        logsumexp: Tensor,
    ) -> None:
        super().forward(q, k, v, segments, spec, out, logsumexp)
        self._strike("forward", q, k, out)

    def backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        segments: Segments,
        spec: AttentionSpec,
        grads: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        super().backward(grad_out, q, k, v, out, logsumexp, segments, spec, grads)
        self._strike("backward", q, k, grads[1])

    def _strike(self, direction: Wrong, q: Tensor, k: Tensor, result: Tensor) -> None:
        self.calls += 1
        if self._wrong == direction and len(q) < len(k):
            self.struck += 1
            result += self._added


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _compare(rank: int) -> tuple[list[int], list[list[str]], float, bool]:
    """Return, of three steps, kernel calls and log lines; the largest difference; if equal."""
    pools, kernel, lines = mesh_pools(MESH), _WrongKernel("", 0.0), _Lines()
    log = logging.getLogger("libra.attention.verify")
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    attention = PooledAttention(pools, kernel=kernel, verify=VerifySettings(steps=2))
    plain = PooledAttention(pools)
    calls, logged, equal = [], [], True
    for step in range(3):
        kernel.calls, lines.lines = 0, []
        small = small_case(small_layout(pools, step=step), pools, seed=step, dtype=torch.float32)
        assert small.layout.plan.moved
        got = attend(attention, small)
        calls.append(kernel.calls)
        logged.append(lines.lines)
        equal &= all(map(torch.equal, got, attend(plain, small)))
    log.removeHandler(lines)
    return calls, logged, attention.verifier.largest, equal


@pytest.mark.dist
def test_the_first_steps_are_compared_and_no_more(worker_ranks: WorkerRanks) -> None:
    """Differences are logged by tensor, results are the pooled plan's, later steps cost nothing."""
    for calls, logged, largest, equal in worker_ranks(4).run(_compare):
        assert [len(lines) for lines in logged] == [2, 2, 0]
        for step, lines in enumerate(logged[:2]):
            assert lines[0].startswith(f"Step {step}, pooled against plain Ulysses: out ")
            assert all(f"{name} " in lines[1] for name in ("dq", "dk", "dv"))
        assert calls[0] == calls[1] > calls[2] > 0
        # Rounding: float32 sums of some hundred terms.
        assert 0.0 < largest < 1e-5
        assert equal


def _stop(rank: int, wrong: Wrong, added: float, which: int) -> tuple[str, int]:
    """Return the message of the error, and how often this rank's kernel was wrong."""
    pools = mesh_pools(MESH)
    kernel = _WrongKernel(wrong if rank == which else "", added)
    attention = PooledAttention(pools, kernel=kernel, verify=VerifySettings(steps=1))
    small = small_case(small_layout(pools), pools, dtype=torch.float32)
    with pytest.raises(VerificationError) as raised:
        attend(attention, small)
    return str(raised.value), kernel.struck


@pytest.mark.dist
@pytest.mark.fault
@pytest.mark.parametrize("added", [1e-3, float("nan"), float("inf")])
@pytest.mark.parametrize(("wrong", "names"), [("forward", "out "), ("backward", "dk ")])
def test_all_ranks_stop_when_one_is_wrong(
    worker_ranks: WorkerRanks, wrong: Wrong, names: str, added: float
) -> None:
    """One rank's kernel is wrong on what it receives: both planes stop, in the same call."""
    # Short documents are at place 1, so rank 3 receives.
    seen = worker_ranks(4).run(_stop, wrong, added, 3)

    assert [struck > 0 for _, struck in seen] == [False, False, False, True]
    assert len({message for message, _ in seen}) == 1
    assert seen[0][0].startswith("In step 0 the pooled plan differs from plain Ulysses by ")
    assert names in seen[0][0]
    assert added < 1 or "inf" in seen[0][0]


def _stop_elastic(rank: int) -> str:
    """Return the message of the error, empty where there is none; rank 3's kernel is wrong."""
    pools = mesh_pools(ELASTIC)
    kernel = _WrongKernel("forward" if rank == 3 else "", 1e-3)
    attention = PooledAttention(pools, kernel=kernel, verify=VerifySettings(steps=1))
    layout = small_layout(pools, size=4 if rank < 4 else 2)
    assert layout.plan.moved
    try:
        attend(attention, small_case(layout, pools, dtype=torch.float32))
    except VerificationError as error:
        return str(error)
    return ""


@pytest.mark.dist
@pytest.mark.fault
def test_only_the_elastic_pool_that_is_wrong_stops(worker_ranks: WorkerRanks) -> None:
    """All four of its ranks stop as one; the pool beside it compares among its own, and goes on."""
    messages = worker_ranks(6).run(_stop_elastic)

    assert len(set(messages[:4])) == 1
    assert messages[0].startswith("In step 0 the pooled plan differs from plain Ulysses by out ")
    assert messages[4:] == ["", ""]


def _nan_inputs(rank: int) -> float:
    """Return the largest difference when a whole document is NaN to begin with."""
    pools = mesh_pools(MESH)
    attention = PooledAttention(pools, verify=VerifySettings(steps=1))
    small = small_case(small_layout(pools), pools, dtype=torch.float32)
    with torch.no_grad():
        small.own[2][:8] = torch.nan
    with pytest.raises(VerificationError):
        attend(attention, small)
    return attention.verifier.largest


@pytest.mark.dist
@pytest.mark.fault
def test_nan_is_a_difference(worker_ranks: WorkerRanks) -> None:
    """Where both plans give NaN nothing is known to be equal, so all ranks stop."""
    assert worker_ranks(4).run(_nan_inputs) == [float("inf")] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "steps=-1: must be at least 0"),
        ({"bound": 0.0}, r"bound=0.0: must be positive"),
        ({"bound": float("nan")}, r"bound=nan: must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], message: str) -> None:
    """The error names the setting and what is allowed."""
    with pytest.raises(ValueError, match=message):
        VerifySettings(**settings)  # type: ignore[arg-type]
