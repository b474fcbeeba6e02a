"""What an agent tells the balancer: one report, in msgpack or JSON, of one rank's last seconds.

Both sides import these types. A decoded report has the right types and lengths; its figures are
checked where they are folded in. Unknown fields are those of a neighbouring version, and ignored.
Sequence numbers make a report safe to send twice.
"""

import json
import re
from typing import Annotated, Literal, Self

import msgspec

from libra.attention.observer import KernelKind
from libra.balancer.moments import NUM_SUMS, num_sums

SCHEMA = 1
# A step of an hour or a kernel call of more is a broken clock, not a slow rank.
MAX_SECONDS = 3600.0
MAX_FEATURE = 2.0**62
MAX_LABEL = 64
MAX_HEADS = 1 << 16
MAX_MICRO_BATCHES = 256
# Of one report or batch.
MAX_KINDS = 64
MAX_STEPS = 1024
# What a wave of the exchange is described by.
WAVE_FEATURES = ("messages", "sent_bytes")
MAX_WAVE_TRANSPORTS = 8
NUM_WAVE_SUMS = num_sums(len(WAVE_FEATURES))

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:@-]+$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
WorldSize = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
# A scheduler's name of one launch; empty where nobody gave one.
Run = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[A-Za-z0-9._:@-]*$")]
Features = tuple[float, float, float, float, float, float]
# The features of a kernel call, then its seconds.
Point = tuple[float, float, float, float, float, float, float]


class ReportError(ValueError):
    """A report is refused; ``field`` names the place and ``reason`` is of a closed set."""

    def __init__(self, field: str, reason: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.reason = reason
        self.detail = detail

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> Self:
        """Return the refusal of what has a wrong type, or lies outside a type's limits."""
        found = re.search(r"`(\$[^`]*)`$", str(error))
        return cls(found[1] if found else "$", "invalid", str(error).partition(" - at ")[0])


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


class Report(msgspec.Struct, kw_only=True):
    """One rank's news since its last report.

    ``agent`` is drawn anew by each process, so (run, attempt, agent, sequence) names a report
    for good. ``run`` is the scheduler's name of this launch and ``attempt`` counts restarts within
    it. ``dropped`` counts observations and steps that the agent has lost so far, ``set_aside``
    kernel calls that it kept out of the moments as no measure of their cost. ``sent_s`` is Unix
    time by the sender's clock, which nothing is decided by.
    """

    schema: Literal[1]
    job: Name
    run: Run = ""
    attempt: Count = 0
    node: Name
    agent: Name
    sequence: Count
    rank: Rank
    world_size: WorldSize
    coordinates: Coordinates = Coordinates()
    moments: Annotated[list[KernelMoments], msgspec.Meta(max_length=MAX_KINDS)] = []
    steps: Annotated[list[StepTotals], msgspec.Meta(max_length=MAX_STEPS)] = []
    waves: Annotated[list[WaveMoments], msgspec.Meta(max_length=MAX_WAVE_TRANSPORTS)] = []
    dropped: Count = 0
    set_aside: Count = 0
    sent_s: float | None = None

    @property
    def newest_step(self) -> int | None:
        """The newest step that it tells of."""
        return max((totals.step for totals in self.steps), default=None)


def encode_report(report: Report) -> bytes:
    """Return the msgpack body that agents send."""
    return msgspec.msgpack.encode(report)


def decode_report(body: bytes, *, as_json: bool = False) -> Report:
    """Return the report of a body; raise ``ReportError`` for anything else.

    Its figures are not looked at: they are checked where they are folded in.
    """
    try:
        return _decode_json(body) if as_json else msgspec.msgpack.decode(body, type=Report)
    except msgspec.ValidationError as error:
        raise ReportError.of(error) from error
    except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:
        raise ReportError("$", "malformed", str(error) or "too large") from error


def _decode_json(body: bytes) -> Report:
    if b"NaN" in body or b"Infinity" in body:
        # No JSON, but what Python's json writes. Read like this, the fault has a field's name.
        return msgspec.convert(json.loads(body), Report)
    return msgspec.json.decode(body, type=Report)
