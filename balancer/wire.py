"""What an agent tells the balancer: one report, in msgpack or JSON, of one rank's last seconds.

Both sides import these types. A decoded report has the right types and ranges; ``check_report``
finds what types cannot say. Sequence numbers make a report safe to send twice.
"""

import json
import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.moments import NUM_SUMS, Moments, num_sums

SCHEMA = 1
# A step of an hour or a kernel call of more is a broken clock, not a slow rank.
MAX_SECONDS = 3600.0
MAX_FEATURE = 2.0**62
MAX_LABEL = 64
MAX_HEADS = 1 << 16
MAX_MICRO_BATCHES = 256
# What a wave of the exchange is described by.
WAVE_FEATURES = ("messages", "sent_bytes")
MAX_WAVE_TRANSPORTS = 8
NUM_WAVE_SUMS = num_sums(len(WAVE_FEATURES))

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:@-]+$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
Features = tuple[float, float, float, float, float, float]
# The features of a kernel call, then its seconds.
Point = tuple[float, float, float, float, float, float, float]


class ReportError(ValueError):
    """A report is refused; ``field`` names the place and ``reason`` is of a closed set."""

    def __init__(self, field: str, reason: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.reason = reason


class KernelMoments(msgspec.Struct, kw_only=True):
    """Moment sums of the kernel calls of one kind, and a few raw points of them."""

    kind: KernelKind
    sums: Annotated[list[float], msgspec.Meta(min_length=NUM_SUMS, max_length=NUM_SUMS)]
    points: Annotated[list[Point], msgspec.Meta(max_length=256)] = []


class KernelTotals(msgspec.Struct, kw_only=True):
    """One step's kernel calls of one kind, summed: features and seconds."""

    kind: KernelKind
    features: Features
    seconds: float


class StepTotals(msgspec.Struct, kw_only=True):
    """What one rank did in one optimizer step.

    ``home_features`` are those of this rank's tiles under the home plan, for one layer, kv head and
    direction: only their ratios between ranks mean anything. ``home_pairs`` are the causal pairs
    among them, by number of the micro-batch; those from ``MAX_MICRO_BATCHES`` on are left out.
    ``wait_seconds`` is the exposed part of the exchange
    only.
    """

    step: Count
    policy_version: Count
    seconds: float
    kernels: Annotated[list[KernelTotals], msgspec.Meta(max_length=64)]
    home_features: Features
    home_pairs: Annotated[list[float], msgspec.Meta(max_length=MAX_MICRO_BATCHES)] = []
    sent_bytes: Count = 0
    wait_seconds: float = 0.0
    plan_mismatches: Count = 0


class Coordinates(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank stands: index along data parallelism, in its CP group and in its pipeline, and
    its pool.
    """

    dp: Rank = 0
    cp: Rank = 0
    pp: Rank = 0
    pool: Rank = 0


class WaveMoments(msgspec.Struct, kw_only=True):
    """Moment sums of exchanged waves: ``WAVE_FEATURES`` and the seconds a wave took.

    ``transport`` names what carried them; ``sent_bytes`` are those of the busier direction, since
    what one rank receives another sent. Only waves that were waited for are among them: of one
    that kernels hid it is not known when it ended.
    """

    transport: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_LABEL)]
    sums: Annotated[
        list[float],
        msgspec.Meta(min_length=NUM_WAVE_SUMS, max_length=NUM_WAVE_SUMS),
    ]


class Report(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One rank's news since its last report.

    ``agent`` is drawn anew by each process, so (attempt, agent, sequence) names a report for
    good. ``dropped`` counts observations and steps that the agent has lost so far, ``set_aside``
    kernel calls that it kept out of the moments as no measure of their cost.
    """

    schema: Literal[1]
    job: Name
    attempt: Count = 0
    node: Name
    agent: Name
    sequence: Count
    rank: Rank
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    coordinates: Coordinates = Coordinates()
    moments: Annotated[list[KernelMoments], msgspec.Meta(max_length=64)] = []
    steps: Annotated[list[StepTotals], msgspec.Meta(max_length=1024)] = []
    waves: Annotated[list[WaveMoments], msgspec.Meta(max_length=MAX_WAVE_TRANSPORTS)] = []
    dropped: Count = 0
    set_aside: Count = 0

    @property
    def newest_step(self) -> int | None:
        """The newest step that it tells of."""
        return max((totals.step for totals in self.steps), default=None)


def encode_report(report: Report) -> bytes:
    """Return the msgpack body that agents send."""
    return msgspec.msgpack.encode(report)


def decode_report(body: bytes, *, as_json: bool = False) -> Report:
    """Return the checked report of a body; raise ``ReportError`` for anything else."""
    try:
        report = _decode_json(body) if as_json else msgspec.msgpack.decode(body, type=Report)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        raise ReportError(path.strip("`") or "$", "invalid", message) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ReportError("$", "malformed", str(error)) from error
    check_report(report)
    return report


def _decode_json(body: bytes) -> Report:
    if b"NaN" in body or b"Infinity" in body:
        # No JSON, but what Python's json writes. Read like this, the fault has a field's name.
        return msgspec.convert(json.loads(body), Report)
    return msgspec.json.decode(body, type=Report)


def check_report(report: Report) -> None:
    """Raise ``ReportError`` for a figure that no honest, healthy agent can send."""
    if report.rank >= report.world_size:
        detail = f"{report.rank} is not below world_size {report.world_size}"
        raise ReportError("$.rank", "invalid", detail)
    for field, kind in _kinds(report):
        _check_kind(field, kind)
    for field, value, most in _figures(report):
        if not math.isfinite(value):
            raise ReportError(field, "not_finite", f"{value} is not a finite number")
        if value < 0:
            raise ReportError(field, "negative", f"{value} is negative")
        if value > most:
            raise ReportError(field, "absurd", f"{value} is above {most}")
    for i, moments in enumerate(report.moments):
        fault = Moments(moments.sums).fault()
        if fault:
            raise ReportError(f"$.moments[{i}].sums", "inconsistent", fault)
    for i, waves in enumerate(report.waves):
        fault = Moments(waves.sums, num_features=len(WAVE_FEATURES)).fault()
        if fault:
            raise ReportError(f"$.waves[{i}].sums", "inconsistent", fault)


def _kinds(report: Report) -> Iterator[tuple[str, KernelKind]]:
    for i, moments in enumerate(report.moments):
        yield f"$.moments[{i}].kind", moments.kind
    for i, step in enumerate(report.steps):
        for j, kernel in enumerate(step.kernels):
            yield f"$.steps[{i}].kernels[{j}].kind", kernel.kind


def _check_kind(field: str, kind: KernelKind) -> None:
    """Keep labels short and sizes possible: both end up in metrics and in the store."""
    for name in ("device", "backend", "dtype"):
        if not 0 < len(getattr(kind, name)) <= MAX_LABEL:
            detail = f"must have 1 to {MAX_LABEL} characters"
            raise ReportError(f"{field}.{name}", "invalid", detail)
    for name in ("head_dim", "group_heads"):
        if not 0 < getattr(kind, name) <= MAX_HEADS:
            raise ReportError(f"{field}.{name}", "invalid", f"must be in 1..{MAX_HEADS}")


def _figures(report: Report) -> Iterator[tuple[str, float, float]]:
    """Yield (field, value, largest allowed) of every floating-point figure."""
    for i, moments in enumerate(report.moments):
        for j, value in enumerate(moments.sums):
            yield f"$.moments[{i}].sums[{j}]", value, math.inf
        for j, point in enumerate(moments.points):
            for k, value in enumerate(point):
                most = MAX_FEATURE if k < NUM_FEATURES else MAX_SECONDS
                yield f"$.moments[{i}].points[{j}][{k}]", value, most
    for i, step in enumerate(report.steps):
        at = f"$.steps[{i}]"
        yield f"{at}.seconds", step.seconds, MAX_SECONDS
        yield f"{at}.wait_seconds", step.wait_seconds, MAX_SECONDS
        for k, value in enumerate(step.home_features):
            yield f"{at}.home_features[{k}]", value, MAX_FEATURE
        for k, value in enumerate(step.home_pairs):
            yield f"{at}.home_pairs[{k}]", value, MAX_FEATURE
        for j, kernel in enumerate(step.kernels):
            yield f"{at}.kernels[{j}].seconds", kernel.seconds, MAX_SECONDS
            for k, value in enumerate(kernel.features):
                yield f"{at}.kernels[{j}].features[{k}]", value, MAX_FEATURE
    for i, waves in enumerate(report.waves):
        for j, value in enumerate(waves.sums):
            yield f"$.waves[{i}].sums[{j}]", value, math.inf
