"""Reports of single ranks into the columns of a batch, and back.

What a report says twice, a kind or a step, goes into columns of their own, so that a row is in
each column once at most.

Shapes: F = 6 features; N sums; M micro-batches; m raw points.
"""

from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.batch_columns import (
    KernelColumns,
    MomentColumns,
    StepColumns,
    WaveColumns,
    point_table,
    raw,
    raw32,
    table,
)
from libra.balancer.wire import KernelMoments, KernelTotals, Report, StepTotals, WaveMoments

Key = TypeVar("Key")
Item = TypeVar("Item")


class Grouped(Generic[Key, Item]):
    """Items of rows by key and by how often the row has named the key before."""

    def __init__(self) -> None:
        self.groups: dict[tuple[Key, int], tuple[list[int], list[Item]]] = {}

    def add(self, row: int, key: Key, item: Item) -> None:
        """Add an item of a row; rows come in ascending order."""
        nth = 0
        while (group := self.groups.get((key, nth))) is not None and group[0][-1] == row:
            nth += 1
        rows, items = self.groups.setdefault((key, nth), ([], []))
        rows.append(row)
        items.append(item)


class KindTable:
    """The kinds of a batch, each once, and their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[KernelKind, int] = {}

    def number(self, kind: KernelKind) -> int:
        return self.numbers.setdefault(kind, len(self.numbers))


def pack_moments(
    reports: Sequence[Report], kinds: KindTable, max_points: int
) -> list[MomentColumns]:
    """Return the reports' moments; of a kind's points the batch keeps so many, evenly drawn."""
    grouped: Grouped[int, KernelMoments] = Grouped()
    for row, report in enumerate(reports):
        for moments in report.moments:
            grouped.add(row, kinds.number(moments.kind), moments)
    points = {kind: _points(grouped, kind, max_points) for kind in {k for k, _ in grouped.groups}}
    return [
        MomentColumns(
            kind=kind,
            rows=rows,
            sums=raw([value for one in items for value in one.sums]),
            point_rows=points[kind][0] if nth == 0 else [],
            points=points[kind][1] if nth == 0 else b"",
        )
        for (kind, nth), (rows, items) in grouped.groups.items()
    ]


def _points(
    grouped: Grouped[int, KernelMoments], kind: int, max_points: int
) -> tuple[list[int], bytes]:
    """Return the rows and the points of a kind."""
    found = [
        (row, point)
        for (own, _), (rows, items) in grouped.groups.items()
        if own == kind
        for row, one in zip(rows, items, strict=True)
        for point in one.points
    ]
    if len(found) > max_points:
        found = [found[i * len(found) // max_points] for i in range(max_points)]
    return [row for row, _ in found], raw32([value for _, point in found for value in point])


def pack_steps(reports: Sequence[Report], kinds: KindTable) -> list[StepColumns]:
    grouped: Grouped[int, StepTotals] = Grouped()
    for row, report in enumerate(reports):
        for totals in report.steps:
            grouped.add(row, totals.step, totals)
    return [_step(step, rows, items, kinds) for (step, _), (rows, items) in grouped.groups.items()]


def _step(step: int, rows: list[int], items: Sequence[StepTotals], kinds: KindTable) -> StepColumns:
    kernels: Grouped[int, KernelTotals] = Grouped()
    for place, totals in enumerate(items):
        for kernel in totals.kernels:
            kernels.add(place, kinds.number(kernel.kind), kernel)
    micro_batches = max(len(totals.home_pairs) for totals in items)
    return StepColumns(
        step=step,
        rows=rows,
        policy_versions=[totals.policy_version for totals in items],
        seconds=raw([totals.seconds for totals in items]),
        home_features=raw([value for totals in items for value in totals.home_features]),
        home_pairs=raw(
            [
                value
                for totals in items
                for value in (*totals.home_pairs, *[0.0] * (micro_batches - len(totals.home_pairs)))
            ]
        ),
        sent_bytes=[totals.sent_bytes for totals in items],
        wait_seconds=raw([totals.wait_seconds for totals in items]),
        plan_mismatches=[totals.plan_mismatches for totals in items],
        kernels=[
            KernelColumns(
                kind=kind,
                rows=places,
                features=raw([value for kernel in own for value in kernel.features]),
                seconds=raw([kernel.seconds for kernel in own]),
            )
            for (kind, _), (places, own) in kernels.groups.items()
        ],
    )


def pack_waves(reports: Sequence[Report]) -> list[WaveColumns]:
    grouped: Grouped[str, WaveMoments] = Grouped()
    for row, report in enumerate(reports):
        for waves in report.waves:
            grouped.add(row, waves.transport, waves)
    return [
        WaveColumns(
            transport=transport, rows=rows, sums=raw([v for one in items for v in one.sums])
        )
        for (transport, _), (rows, items) in grouped.groups.items()
    ]


def unpack_moments(
    columns: Sequence[MomentColumns], kinds: Sequence[KernelKind], wanted: Collection[int]
) -> dict[int, list[KernelMoments]]:
    """Return the moments of the wanted rows."""
    found: dict[int, list[KernelMoments]] = {row: [] for row in wanted}
    for own in columns:
        sums, points = own.sums_table.tolist(), point_table(own.points).tolist()
        by_row: dict[int, list[Any]] = {}
        for row, point in zip(own.point_rows, points, strict=True):
            by_row.setdefault(row, []).append(tuple(point))
        for row, values in zip(own.rows, sums, strict=True):
            if row in found:
                found[row].append(
                    KernelMoments(kind=kinds[own.kind], sums=values, points=by_row.get(row, []))
                )
    return found


def unpack_steps(
    columns: Sequence[StepColumns], kinds: Sequence[KernelKind], wanted: Collection[int]
) -> dict[int, list[StepTotals]]:
    """Return the steps of the wanted rows."""
    found: dict[int, list[StepTotals]] = {row: [] for row in wanted}
    for own in columns:
        kernels = _unpack_kernels(own, kinds)
        seconds, waits = table(own.seconds, 1)[:, 0].tolist(), table(own.wait_seconds, 1)[:, 0]
        home = table(own.home_features, NUM_FEATURES).tolist()
        pairs = np.frombuffer(raw(own.home_pairs)).reshape(len(own.rows), -1).tolist()
        for place, row in enumerate(own.rows):
            if row in found:
                totals = StepTotals(
                    step=own.step,
                    policy_version=own.policy_versions[place],
                    seconds=seconds[place],
                    kernels=kernels[place],
                    home_features=tuple(home[place]),
                    home_pairs=pairs[place],
                    sent_bytes=own.sent_bytes[place],
                    wait_seconds=float(waits[place]),
                    plan_mismatches=own.plan_mismatches[place],
                )
                found[row].append(totals)
    return found


def _unpack_kernels(columns: StepColumns, kinds: Sequence[KernelKind]) -> list[list[KernelTotals]]:
    """Return the kernels of each of a step's rows."""
    found: list[list[KernelTotals]] = [[] for _ in columns.rows]
    for own in columns.kernels:
        features = table(own.features, NUM_FEATURES).tolist()
        seconds = table(own.seconds, 1)[:, 0].tolist()
        for place, values, value in zip(own.rows, features, seconds, strict=True):
            found[place].append(
                KernelTotals(kind=kinds[own.kind], features=tuple(values), seconds=value)
            )
    return found


def unpack_waves(
    columns: Sequence[WaveColumns], wanted: Collection[int]
) -> dict[int, list[WaveMoments]]:
    """Return the waves of the wanted rows."""
    found: dict[int, list[WaveMoments]] = {row: [] for row in wanted}
    for own in columns:
        for row, values in zip(own.rows, own.sums_table.tolist(), strict=True):
            if row in found:
                found[row].append(WaveMoments(transport=own.transport, sums=values))
    return found
