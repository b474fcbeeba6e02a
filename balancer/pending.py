"""A step that waits for ranks: what came of it so far, kept as it came, and put together once.

What waits takes about the memory that its bodies took: no array is as long as a job says it is.

Shapes: W ranks, n of which are heard; K kernel kinds; F = 6 features; M micro-batches.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import NUM_FEATURES
from libra.balancer.batch_columns import Blob, StepColumns, raw

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class Chunk(msgspec.Struct, kw_only=True):
    """Some ranks' columns; ``kinds`` says which of the job's kinds each of the columns' is."""

    ranks: list[int]
    kinds: list[int]
    columns: StepColumns


class PendingStep(msgspec.Struct, kw_only=True):
    """The chunks of one step, and whose ranks' they are, in the order of arrival."""

    chunks: list[Chunk] = []
    ranks: dict[int, None] = {}
    num_bytes: int = 0

    def add(self, ranks: Sequence[int], kinds: list[int], columns: StepColumns) -> None:
        """Take in columns of different ranks; a rank's first word stands."""
        fresh = [place for place, rank in enumerate(ranks) if rank not in self.ranks]
        if not fresh:
            return
        if len(fresh) < len(ranks):
            ranks, columns = [ranks[place] for place in fresh], columns.only(fresh)
        self.ranks.update(dict.fromkeys(ranks))
        self.chunks.append(Chunk(ranks=list(ranks), kinds=kinds, columns=columns))
        self.num_bytes += _num_bytes(columns)

    def gather(self, num_kinds: int) -> "Gathered":
        """Return what the ranks reported, in the order of ``ranks``."""
        parts = [chunk.columns for chunk in self.chunks]
        kinds, actual, seconds = self._kernels(num_kinds)
        return Gathered(
            ranks=np.array(list(self.ranks), dtype=np.int64),
            versions=np.array([v for part in parts for v in part.policy_versions], dtype=np.int64),
            seconds=_joined([part.seconds for part in parts]),
            waits=_joined([part.wait_seconds for part in parts]),
            sent_bytes=sum(sum(part.sent_bytes) for part in parts),
            mismatches=sum(sum(part.plan_mismatches) for part in parts),
            home=_joined([part.home_features for part in parts]).reshape(-1, NUM_FEATURES),
            pairs=_pairs(parts),
            kinds=kinds,
            actual=actual,
            kernel_seconds=seconds,
        )

    def _kernels(self, num_kinds: int) -> tuple[list[int], Float64, Float64]:
        """Return the kinds that were run [K], features [n, K, F] and seconds [n, K]."""
        # Within a chunk a kind may come again, and only there: each time is one group.
        groups: dict[tuple[int, int], tuple[list[int], list[Blob], list[Blob]]] = {}
        begin = 0
        for chunk in self.chunks:
            times = [0] * num_kinds
            for kernel in chunk.columns.kernels:
                kind = chunk.kinds[kernel.kind]
                rows, features, seconds = groups.setdefault((kind, times[kind]), ([], [], []))
                times[kind] += 1
                rows.extend([begin + row for row in kernel.rows])
                features.append(kernel.features)
                seconds.append(kernel.seconds)
            begin += len(chunk.ranks)
        kinds = sorted({kind for kind, _ in groups})
        actual = np.zeros((begin, len(kinds), NUM_FEATURES))
        spent = np.zeros((begin, len(kinds)))
        for (kind, _), (rows, features, seconds) in groups.items():
            column = kinds.index(kind)
            actual[rows, column] += _joined(features).reshape(-1, NUM_FEATURES)
            spent[rows, column] += _joined(seconds)
        return kinds, actual, spent


class Gathered(msgspec.Struct, eq=False, kw_only=True):
    """What n ranks reported of a step: columns [n, ...], and sums over the ranks.

    ``home`` is [n, F], ``pairs`` [n, M], ``actual`` [n, K, F] and ``kernel_seconds`` [n, K].
    """

    ranks: Int64
    versions: Int64
    seconds: Float64
    waits: Float64
    sent_bytes: int
    mismatches: int
    home: Float64
    pairs: Float64
    kinds: list[int]
    actual: Float64
    kernel_seconds: Float64

    def of_all(self, world_size: int) -> "Gathered":
        """Return the same in the order of all ranks; a typical rank stands for those not heard.

        What it waited and sent is not counted again.
        """
        sources = np.empty(world_size, dtype=np.int64)
        heard = np.zeros(world_size, dtype=np.bool_)
        if len(self.ranks) < world_size:
            by_cost = np.lexsort((self.ranks, self.kernel_seconds.sum(axis=1)))
            sources[:] = by_cost[len(by_cost) // 2]
        sources[self.ranks] = np.arange(len(self.ranks))
        heard[self.ranks] = True
        return Gathered(
            ranks=np.arange(world_size),
            versions=self.versions[sources],
            seconds=self.seconds[sources],
            waits=np.where(heard, self.waits[sources], 0.0),
            sent_bytes=self.sent_bytes,
            mismatches=self.mismatches,
            home=self.home[sources],
            pairs=self.pairs[sources],
            kinds=self.kinds,
            actual=self.actual[sources],
            kernel_seconds=self.kernel_seconds[sources],
        )


def _joined(blobs: Sequence[Blob]) -> Float64:
    return np.frombuffer(b"".join([raw(blob) for blob in blobs]))


def _pairs(parts: Sequence[StepColumns]) -> Float64:
    """Return home pairs [n, M], zero where a rank had fewer micro-batches."""
    widths = [part.micro_batches for part in parts]
    if min(widths) == max(widths):
        rows = sum(len(part.rows) for part in parts)
        return _joined([part.home_pairs for part in parts]).reshape(rows, widths[0])
    pairs = np.zeros((sum(len(part.rows) for part in parts), max(widths)))
    begin = 0
    for part, width in zip(parts, widths, strict=True):
        end = begin + len(part.rows)
        pairs[begin:end, :width] = _joined([part.home_pairs]).reshape(-1, width) if width else 0.0
        begin = end
    return pairs


def _num_bytes(columns: StepColumns) -> int:
    blobs = [columns.seconds, columns.home_features, columns.home_pairs, columns.wait_seconds]
    blobs += [blob for kernel in columns.kernels for blob in (kernel.features, kernel.seconds)]
    # Objects and lists take as much again where a chunk is one rank's.
    return 1024 + 64 * len(columns.rows) + sum(len(raw(blob)) for blob in blobs)
