"""Bodies of simulated ranks, encoded once and then patched in place: a generator must be cheap.

Step and sequence numbers are so large that every encoding writes them in eight bytes, and seconds
are drawn, so both can be found again in the encoded body.
"""

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libra.attention.cost import tile_features
from libra.attention.observer import Direction, KernelKind
from libra.balancer.batch import batch_of, decode_batch, encode_batch
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    Coordinates,
    KernelMoments,
    KernelTotals,
    Report,
    StepTotals,
    WaveMoments,
    decode_report,
    encode_report,
)

FIRST_STEP = 0x0000_0A5A_5000_0000
FIRST_SEQUENCE = 0x0000_0B6B_6000_0000
NODE_RANKS = 8
_CALLS = 4
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
# Seconds per causal pair; a rank's kernels take some third of a step of a second.
_PER_PAIR = 1e-10


@dataclass(frozen=True, kw_only=True)
class Node:
    """Ranks of one job that report together."""

    job: str
    world_size: int
    first_rank: int
    ranks: int

    @property
    def name(self) -> str:
        return f"node-{self.first_rank // NODE_RANKS}"


class Body:
    """An encoded body whose step, sequence and seconds can be set."""

    def __init__(self, encoded: bytes, seconds: Iterable[float]) -> None:
        self.data = bytearray(encoded)
        self._steps = _places(encoded, FIRST_STEP)
        self._sequences = _places(encoded, FIRST_SEQUENCE)
        self._seconds = [
            (at, form, value, number)
            for number, value in enumerate(seconds)
            for at, form in _float_places(encoded, value)
        ]
        if not (self._steps and self._sequences and self._seconds):
            raise ValueError("the encoded body writes steps, sequences or seconds in another way")

    @property
    def rank_seconds(self) -> list[float]:
        """Kernel seconds of each rank, as encoded."""
        seconds = {place: value for _, _, value, place in self._seconds}
        kinds = len(_DIRECTIONS)
        ranks = range(len(seconds) // kinds)
        return [sum(seconds[kinds * rank + kind] for kind in range(kinds)) for rank in ranks]

    def fill(self, number: int, factor: float | Sequence[float]) -> bytes:
        """Return the body of a step's number, with seconds times a factor, or each rank's own."""
        data = self.data
        for at, form in self._steps:
            struct.pack_into(form, data, at, FIRST_STEP + number)
        for at, form in self._sequences:
            struct.pack_into(form, data, at, FIRST_SEQUENCE + number)
        for at, form, value, place in self._seconds:
            own = factor if isinstance(factor, float) else factor[place // len(_DIRECTIONS)]
            struct.pack_into(form, data, at, value * own)
        return bytes(data)


def batch_body(node: Node, rng: random.Random) -> Body:
    """Return the body of a node's batch."""
    reports = [_report(node, rank, rng) for rank in _ranks(node)]
    return Body(encode_batch(batch_of(reports)), _seconds(reports))


def single_bodies(node: Node, rng: random.Random) -> list[Body]:
    """Return a body for each of a node's ranks."""
    reports = [_report(node, rank, rng) for rank in _ranks(node)]
    return [Body(encode_report(report), _seconds([report])) for report in reports]


def nodes_of(sizes: Sequence[int]) -> list[Node]:
    """Return the nodes of jobs of these many ranks."""
    return [
        Node(
            job=f"job-{number}-of-{size}",
            world_size=size,
            first_rank=first,
            ranks=min(NODE_RANKS, size - first),
        )
        for number, size in enumerate(sizes)
        for first in range(0, size, NODE_RANKS)
    ]


def job_sizes(ranks: int) -> list[int]:
    """Return the jobs of a cluster: a large one, and the rest in jobs of at most 1,024 ranks."""
    large = 4096 if ranks > 4096 else ranks
    rest = ranks - large
    return [large, *(min(1024, rest - begin) for begin in range(0, rest, 1024))]


def _ranks(node: Node) -> range:
    return range(node.first_rank, node.first_rank + node.ranks)


def _seconds(reports: Sequence[Report]) -> list[float]:
    steps = [step for report in reports for step in report.steps]
    return [kernel.seconds for step in steps for kernel in step.kernels]


def _report(node: Node, rank: int, rng: random.Random) -> Report:
    """Return a rank's report of one step of about a second."""
    moments, totals = [], []
    for direction in _DIRECTIONS:
        kind = KernelKind(
            device="NVIDIA H100 80GB HBM3",
            backend="flash_attn",
            dtype="bfloat16",
            head_dim=128,
            group_heads=4,
            direction=direction,
        )
        calls, sums = [_call(rng) for _ in range(_CALLS)], Moments()
        for features, seconds in calls:
            sums.add(features, seconds)
        moments.append(KernelMoments(kind=kind, sums=sums.sums.tolist()))
        first, second, *others = (
            sum(column) for column in zip(*(c[0] for c in calls), strict=True)
        )
        features = (first, second, *others)
        # Not quite the moments' own sum, or patching one would patch the other.
        seconds = 1.001 * sum(call[1] for call in calls)
        totals.append(KernelTotals(kind=kind, features=features, seconds=seconds))  # type: ignore[arg-type]
    waves = Moments(num_features=2)
    waves.add((7.0, 2.5e7 * rng.uniform(0.5, 1.5)), 0.004 * rng.uniform(0.9, 1.1))
    return Report(
        schema=1,
        job=node.job,
        node=node.name,
        agent=f"{rng.getrandbits(128):032x}",
        sequence=FIRST_SEQUENCE,
        rank=rank,
        world_size=node.world_size,
        coordinates=Coordinates(dp=rank // 8, cp=rank % 8, pool=rank // 64),
        moments=moments,
        steps=[_step(totals, rng)],
        waves=[WaveMoments(transport="nccl", sums=waves.sums.tolist())],
    )


def _step(totals: list[KernelTotals], rng: random.Random) -> StepTotals:
    return StepTotals(
        step=FIRST_STEP,
        policy_version=0,
        seconds=1.0,
        kernels=totals,
        home_features=totals[0].features,
        home_pairs=[totals[0].features[3] * rng.uniform(0.2, 0.3) for _ in range(4)],
        sent_bytes=25_000_000,
        wait_seconds=0.004,
    )


def _call(rng: random.Random) -> tuple[tuple[float, ...], float]:
    """Return features and seconds of a kernel call of one document."""
    features = tuple(tile_features(0, int(rng.lognormvariate(8.5, 0.6))).astype(float).tolist())
    return features, 1e-5 + _PER_PAIR * features[3] * rng.uniform(0.97, 1.03)


def _places(encoded: bytes, number: int) -> list[tuple[int, str]]:
    """Return where an integer stands, and how: in msgpack's order or in a column's."""
    return [(at, form) for form in (">Q", "<Q") for at in _find(encoded, struct.pack(form, number))]


def _float_places(encoded: bytes, value: float) -> list[tuple[int, str]]:
    """Return where a drawn number stands, in double precision or, where not, in single."""
    for forms in ((">d", "<d"), ("<f",)):
        found = [(at, form) for form in forms for at in _find(encoded, struct.pack(form, value))]
        if found:
            return found
    return []


def _find(encoded: bytes, pattern: bytes) -> list[int]:
    places, at = [], encoded.find(pattern)
    while at >= 0:
        places.append(at)
        at = encoded.find(pattern, at + 1)
    return places


def decoded_numbers(body: bytes, *, single: bool) -> set[tuple[int, int]]:
    """Return the (step, sequence) pairs of a body, as the balancer would read them."""
    if single:
        reports = [decode_report(body)]
    else:
        batch = decode_batch(body)
        rows = batch.reports
        reports = rows() if callable(rows) else rows
    found = [(step.step, report.sequence) for report in reports for step in report.steps]
    return {(step - FIRST_STEP, sequence - FIRST_SEQUENCE) for step, sequence in found}
