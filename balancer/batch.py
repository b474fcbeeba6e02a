"""Reports of several ranks in one body, as a node's relay sends them.

A batch is columns, so that what a node reports is checked and folded in as arrays. A single
report goes the same way, as a batch of one row.

Shapes: R rows, one a report.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from libra.attention.observer import KernelKind
from libra.balancer.batch_columns import (
    MAX_POINTS,
    MAX_ROWS,
    Counts,
    MomentColumns,
    StepColumns,
    WaveColumns,
    check_moments,
    check_step,
    check_waves,
)
from libra.balancer.batch_packing import (
    KindTable,
    pack_moments,
    pack_steps,
    pack_waves,
    unpack_moments,
    unpack_steps,
    unpack_waves,
)
from libra.balancer.events import Event
from libra.balancer.wire import (
    MAX_KINDS,
    MAX_STEPS,
    MAX_WAVE_TRANSPORTS,
    Coordinates,
    Count,
    Name,
    Rank,
    Report,
    ReportError,
    Run,
    WorldSize,
)

# As many as a single report may carry: who sends one decides what is worth its bytes.
_ALL_POINTS = 1 << 15
Place = tuple[Rank, Rank, Rank, Rank]


class Batch(msgspec.Struct, kw_only=True):
    """Reports of one node's ranks in one launch of a job.

    ``coordinates`` [R] are (dp, cp, pp, pool); the columns of a batch name its kinds by their
    number. ``sent_s`` is Unix time by the sender's clock, which nothing is decided by.
    """

    schema: Literal[2] = 2
    job: Name
    run: Run = ""
    attempt: Count = 0
    node: Name
    world_size: WorldSize
    sent_s: float | None = None
    agents: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]
    sequences: Counts
    ranks: Annotated[list[Rank], msgspec.Meta(max_length=MAX_ROWS)]
    coordinates: Annotated[list[Place], msgspec.Meta(max_length=MAX_ROWS)]
    dropped: Counts
    set_aside: Counts
    kinds: Annotated[list[KernelKind], msgspec.Meta(max_length=MAX_KINDS)] = []
    moments: Annotated[list[MomentColumns], msgspec.Meta(max_length=2 * MAX_KINDS)] = []
    steps: Annotated[list[StepColumns], msgspec.Meta(max_length=MAX_STEPS)] = []
    waves: Annotated[list[WaveColumns], msgspec.Meta(max_length=2 * MAX_WAVE_TRANSPORTS)] = []

    def __len__(self) -> int:
        return len(self.agents)

    @property
    def are_ranks_distinct(self) -> bool:
        return len(set(self.ranks)) == len(self.ranks)

    def node_of(self, row: int) -> str:
        """Return the node of a row."""
        return self.node

    def newest_steps(self) -> list[int | None]:
        """Return [R]: the newest step that each row tells of."""
        newest: list[int | None] = [None] * len(self)
        for columns in self.steps:
            for row in columns.rows:
                newest[row] = max(columns.step, newest[row] or 0)
        return newest

    def reports(self, rows: Sequence[int] | None = None) -> list[Report]:
        """Return the reports of these rows, by default of all."""
        rows = range(len(self)) if rows is None else rows
        moments = unpack_moments(self.moments, self.kinds, rows)
        steps, waves = unpack_steps(self.steps, self.kinds, rows), unpack_waves(self.waves, rows)
        return [
            Report(
                schema=1,
                job=self.job,
                run=self.run,
                attempt=self.attempt,
                node=self.node,
                agent=self.agents[row],
                sequence=self.sequences[row],
                rank=self.ranks[row],
                world_size=self.world_size,
                coordinates=_coordinates(self.coordinates[row]),
                moments=moments[row],
                steps=steps[row],
                waves=waves[row],
                dropped=self.dropped[row],
                set_aside=self.set_aside[row],
                sent_s=self.sent_s,
            )
            for row in rows
        ]

    def only(self, rows: Sequence[int]) -> "Batch":
        """Return a batch of these rows, at least one."""
        return batch_of(self.reports(rows), max_points=_ALL_POINTS)


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a batch that was refused; the fields are those of ``ReportError``, and name a place
    in the row's own report.
    """

    row: int
    field: str
    reason: str
    detail: str


class BatchOutcome(msgspec.Struct, kw_only=True):
    """What became of a batch's rows, and what changed in the job."""

    accepted: int = 0
    duplicates: int = 0
    late: int = 0
    refused: list[Refused] = []
    events: list[Event] = []


def batch_of(reports: Sequence[Report], *, max_points: int = MAX_POINTS) -> Batch:
    """Return the batch of these reports of one node's ranks in one launch, at least one.

    Of each kind's points it keeps ``max_points``; job, launch, node and clock are the first's.
    """
    kinds, first = KindTable(), reports[0]
    moments, steps = pack_moments(reports, kinds, max_points), pack_steps(reports, kinds)
    return Batch(
        job=first.job,
        run=first.run,
        attempt=first.attempt,
        node=first.node,
        world_size=first.world_size,
        sent_s=first.sent_s,
        agents=[report.agent for report in reports],
        sequences=[report.sequence for report in reports],
        ranks=[report.rank for report in reports],
        coordinates=[_place(report.coordinates) for report in reports],
        dropped=[report.dropped for report in reports],
        set_aside=[report.set_aside for report in reports],
        kinds=list(kinds.numbers),
        moments=moments,
        steps=steps,
        waves=pack_waves(reports),
    )


def batch_of_one(report: Report) -> Batch:
    """Return the batch of one report, with all of its points."""
    return batch_of([report], max_points=_ALL_POINTS)


def encode_batch(batch: Batch) -> bytes:
    """Return the msgpack body that relays send."""
    return _encoder.encode(batch)


def decode_batch(body: bytes, *, as_json: bool = False) -> Batch:
    """Return the batch of a body, whose sizes fit each other; raise ``ReportError`` otherwise.

    Its figures are not looked at: they are checked where they are folded in.
    """
    try:
        batch = _decode_json(body) if as_json else _decoder.decode(body)
        _check_sizes(batch)
    except ReportError:
        raise
    except msgspec.ValidationError as error:
        raise ReportError.of(error) from error
    except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:
        raise ReportError("$", "malformed", str(error) or "too large") from error
    return batch


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)
_json_decoder = msgspec.json.Decoder(Batch)


def _decode_json(body: bytes) -> Batch:
    if b"NaN" in body or b"Infinity" in body:
        # No JSON, but what Python's json writes. Read like this, the fault has a field's name.
        return msgspec.convert(json.loads(body), Batch)
    return _json_decoder.decode(body)


def _check_sizes(batch: Batch) -> None:
    num_rows, num_kinds = len(batch), len(batch.kinds)
    for name in ("sequences", "ranks", "coordinates", "dropped", "set_aside"):
        if len(getattr(batch, name)) != num_rows:
            raise ReportError(f"$.{name}", "invalid", f"must have {num_rows} values, as agents has")
    points: dict[int, int] = {}
    for i, moments in enumerate(batch.moments):
        _check_kind(f"$.moments[{i}]", moments, num_kinds)
        check_moments(f"$.moments[{i}]", moments, num_rows)
        points[moments.kind] = points.get(moments.kind, 0) + len(moments.point_rows)
        if points[moments.kind] > MAX_POINTS:
            detail = f"must have at most {MAX_POINTS} of a kind"
            raise ReportError(f"$.moments[{i}].points", "invalid", detail)
    for i, step in enumerate(batch.steps):
        for j, kernel in enumerate(step.kernels):
            _check_kind(f"$.steps[{i}].kernels[{j}]", kernel, num_kinds)
        check_step(f"$.steps[{i}]", step, num_rows)
    for i, waves in enumerate(batch.waves):
        check_waves(f"$.waves[{i}]", waves, num_rows)


def _check_kind(at: str, columns: Any, num_kinds: int) -> None:
    if columns.kind >= num_kinds:
        raise ReportError(f"{at}.kind", "invalid", f"must lie below {num_kinds}")


def _place(at: Coordinates) -> Place:
    return at.dp, at.cp, at.pp, at.pool


def _coordinates(place: Place) -> Coordinates:
    dp, cp, pp, pool = place
    return Coordinates(dp=dp, cp=cp, pp=pp, pool=pool)
