"""Several nodes' batches as one, so that arrays are long where many nodes report at a time.

Shapes: R rows of all batches together.
"""

from collections.abc import Sequence

from libra.balancer.batch import Batch
from libra.balancer.batch_columns import (
    KernelColumns,
    MomentColumns,
    StepColumns,
    WaveColumns,
    raw,
    raw32,
)
from libra.balancer.batch_packing import KindTable


class MergedBatch(Batch, kw_only=True):
    """A batch of rows of several nodes; ``nodes`` [R] are their names. It never travels."""

    nodes: list[str]

    def node_of(self, row: int) -> str:
        return self.nodes[row]


def can_merge(batches: Sequence[Batch]) -> bool:
    """Are these of one launch of one job, and of different ranks?"""
    first = batches[0]
    launch = (first.job, first.run, first.attempt, first.world_size)
    if any((b.job, b.run, b.attempt, b.world_size) != launch for b in batches):
        return False
    return len({rank for b in batches for rank in b.ranks}) == sum(map(len, batches))


def merge(batches: Sequence[Batch]) -> MergedBatch:
    """Return the batches' rows, one batch after the other; they must fit together."""
    merger = _Merger()
    for batch in batches:
        merger.add(batch)
    first = batches[0]
    return MergedBatch(
        job=first.job,
        run=first.run,
        attempt=first.attempt,
        node=first.node,
        nodes=[batch.node for batch in batches for _ in batch.agents],
        world_size=first.world_size,
        agents=[agent for batch in batches for agent in batch.agents],
        sequences=[number for batch in batches for number in batch.sequences],
        ranks=[rank for batch in batches for rank in batch.ranks],
        coordinates=[place for batch in batches for place in batch.coordinates],
        dropped=[count for batch in batches for count in batch.dropped],
        set_aside=[count for batch in batches for count in batch.set_aside],
        kinds=list(merger.kinds.numbers),
        moments=[own.joined() for own in merger.moments.values()],
        steps=[own.joined() for own in merger.steps.values()],
        waves=[own.joined() for own in merger.waves.values()],
    )


class _Merger:
    """Columns of the same thing, gathered. What a batch says twice stays apart, as it was."""

    def __init__(self) -> None:
        self.kinds = KindTable()
        self.moments: dict[tuple[int, int], _Moments] = {}
        self.steps: dict[tuple[int, int, int], _Step] = {}
        self.waves: dict[tuple[str, int], _Waves] = {}
        self._num_rows = 0

    def add(self, batch: Batch) -> None:
        begin, numbers = self._num_rows, [self.kinds.number(kind) for kind in batch.kinds]
        self._num_rows += len(batch)
        seen: dict[object, int] = {}
        for moments in batch.moments:
            kind = numbers[moments.kind]
            key = (kind, _nth(seen, ("moments", kind)))
            self.moments.setdefault(key, _Moments(kind)).add(moments, begin)
        for step in batch.steps:
            width = step.micro_batches
            nth = _nth(seen, ("step", step.step, width))
            own = self.steps.setdefault((step.step, width, nth), _Step(step.step))
            own.add(step, begin, numbers)
        for waves in batch.waves:
            nth = _nth(seen, ("waves", waves.transport))
            at = self.waves.setdefault((waves.transport, nth), _Waves(waves.transport))
            at.add(waves, begin)


def _nth(seen: dict[object, int], key: object) -> int:
    """Return how often the key has come before."""
    nth = seen.get(key, 0)
    seen[key] = nth + 1
    return nth


class _Moments:
    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.rows: list[int] = []
        self.point_rows: list[int] = []
        self.sums: list[bytes] = []
        self.points: list[bytes] = []

    def add(self, columns: MomentColumns, begin: int) -> None:
        self.rows += [begin + row for row in columns.rows]
        self.point_rows += [begin + row for row in columns.point_rows]
        self.sums.append(raw(columns.sums))
        self.points.append(raw32(columns.points))

    def joined(self) -> MomentColumns:
        return MomentColumns(
            kind=self.kind,
            rows=self.rows,
            sums=b"".join(self.sums),
            point_rows=self.point_rows,
            points=b"".join(self.points),
        )


class _Step:
    def __init__(self, step: int) -> None:
        self.step = step
        self.rows: list[int] = []
        self.parts: list[StepColumns] = []
        self.kernels: dict[tuple[int, int], tuple[list[int], list[KernelColumns]]] = {}

    def add(self, columns: StepColumns, begin: int, numbers: Sequence[int]) -> None:
        place = len(self.rows)
        self.rows += [begin + row for row in columns.rows]
        self.parts.append(columns)
        seen: dict[object, int] = {}
        for kernel in columns.kernels:
            kind = numbers[kernel.kind]
            rows, parts = self.kernels.setdefault((kind, _nth(seen, kind)), ([], []))
            rows += [place + row for row in kernel.rows]
            parts.append(kernel)

    def joined(self) -> StepColumns:
        parts = self.parts
        return StepColumns(
            step=self.step,
            rows=self.rows,
            policy_versions=[version for part in parts for version in part.policy_versions],
            seconds=b"".join([raw(part.seconds) for part in parts]),
            home_features=b"".join([raw(part.home_features) for part in parts]),
            home_pairs=b"".join([raw(part.home_pairs) for part in parts]),
            sent_bytes=[count for part in parts for count in part.sent_bytes],
            wait_seconds=b"".join([raw(part.wait_seconds) for part in parts]),
            plan_mismatches=[count for part in parts for count in part.plan_mismatches],
            kernels=[
                KernelColumns(
                    kind=kind,
                    rows=rows,
                    features=b"".join([raw(kernel.features) for kernel in kernels]),
                    seconds=b"".join([raw(kernel.seconds) for kernel in kernels]),
                )
                for (kind, _), (rows, kernels) in self.kernels.items()
            ],
        )


class _Waves:
    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.rows: list[int] = []
        self.sums: list[bytes] = []

    def add(self, columns: WaveColumns, begin: int) -> None:
        self.rows += [begin + row for row in columns.rows]
        self.sums.append(raw(columns.sums))

    def joined(self) -> WaveColumns:
        return WaveColumns(transport=self.transport, rows=self.rows, sums=b"".join(self.sums))
