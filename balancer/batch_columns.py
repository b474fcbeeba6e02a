"""The columns of a batch: what several ranks report, one array for each kind of figure.

A blob holds an array's numbers row by row, little-endian: bytes in msgpack, a list of numbers in
JSON. What is not a multiple of its row's width, or of another length than its rows, is refused.

Shapes: R rows of the batch; n of them; F = 6 features; N sums; M micro-batches; m raw points.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import NUM_FEATURES
from libra.balancer.moments import NUM_SUMS
from libra.balancer.wire import (
    MAX_LABEL,
    MAX_MICRO_BATCHES,
    NUM_WAVE_SUMS,
    Count,
    ReportError,
)

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

MAX_ROWS = 1024
# Of a kind in all: ten thousand ranks' points would be most of what they send.
MAX_POINTS = 32
_MAX_BLOB = 1 << 17
_FLOAT64, _FLOAT32 = np.dtype("<f8"), np.dtype("<f4")
_POINT = NUM_FEATURES + 1

Blob = bytes | Annotated[list[float], msgspec.Meta(max_length=_MAX_BLOB)]
Row = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ROWS)]
Rows = Annotated[list[Row], msgspec.Meta(max_length=MAX_ROWS)]
Counts = Annotated[list[Count], msgspec.Meta(max_length=MAX_ROWS)]
KindIndex = Annotated[int, msgspec.Meta(ge=0, lt=64)]


def raw(blob: Blob) -> bytes:
    """Return the bytes of a blob of float64."""
    return blob if isinstance(blob, bytes) else np.asarray(blob, dtype=_FLOAT64).tobytes()


def raw32(blob: Blob) -> bytes:
    """Return the bytes of a blob of float32."""
    if isinstance(blob, bytes):
        return blob
    # What is too large becomes infinite, and is refused as that.
    with np.errstate(over="ignore"):
        return np.asarray(blob, dtype=np.float64).astype(_FLOAT32).tobytes()


def table(blob: Blob, width: int) -> Float64:
    """Return a blob of float64 as [n, width]; without rows where it is empty."""
    return np.frombuffer(raw(blob), dtype=_FLOAT64).reshape(-1, width)


def point_table(blob: Blob) -> Float32:
    """Return a blob of float32 as points [m, F + 1]."""
    return np.frombuffer(raw32(blob), dtype=_FLOAT32).reshape(-1, _POINT)


class MomentColumns(msgspec.Struct, kw_only=True):
    """Moments of one kind: sums [n, N] of ascending rows, and points [m, F + 1] of any."""

    kind: KindIndex
    rows: Rows
    sums: Blob
    point_rows: Rows = []
    points: Blob = b""

    @property
    def sums_table(self) -> Float64:
        return table(self.sums, NUM_SUMS)


class KernelColumns(msgspec.Struct, kw_only=True):
    """One step's kernel totals of one kind: ``rows`` count the step's rows, not the batch's."""

    kind: KindIndex
    rows: Rows
    features: Blob
    seconds: Blob

    def only(self, places: Sequence[int]) -> "KernelColumns":
        """Return the columns of some of the step's rows, counted anew."""
        numbers = {place: number for number, place in enumerate(places)}
        kept = [i for i, row in enumerate(self.rows) if row in numbers]
        return KernelColumns(
            kind=self.kind,
            rows=[numbers[self.rows[i]] for i in kept],
            features=table(self.features, NUM_FEATURES)[kept].tobytes(),
            seconds=table(self.seconds, 1)[kept].tobytes(),
        )


class StepColumns(msgspec.Struct, kw_only=True):
    """One step of n ascending rows; the fields are those of ``StepTotals``.

    ``home_features`` is [n, F] and ``home_pairs`` [n, M], zero where a rank had fewer.
    """

    step: Count
    rows: Rows
    policy_versions: Counts
    seconds: Blob
    home_features: Blob
    home_pairs: Blob = b""
    sent_bytes: Counts
    wait_seconds: Blob
    plan_mismatches: Counts
    kernels: Annotated[list[KernelColumns], msgspec.Meta(max_length=64)]

    def only(self, places: Sequence[int]) -> "StepColumns":
        """Return the columns of some of the step's rows, ascending."""
        pairs = table(self.home_pairs, max(1, self.micro_batches))
        return StepColumns(
            step=self.step,
            rows=[self.rows[place] for place in places],
            policy_versions=[self.policy_versions[place] for place in places],
            seconds=table(self.seconds, 1)[places].tobytes(),
            home_features=table(self.home_features, NUM_FEATURES)[places].tobytes(),
            home_pairs=pairs[places].tobytes() if self.micro_batches else b"",
            sent_bytes=[self.sent_bytes[place] for place in places],
            wait_seconds=table(self.wait_seconds, 1)[places].tobytes(),
            plan_mismatches=[self.plan_mismatches[place] for place in places],
            kernels=[kernel.only(places) for kernel in self.kernels],
        )

    @property
    def micro_batches(self) -> int:
        """M, by the length of the blob."""
        return len(raw(self.home_pairs)) // (8 * len(self.rows))


class WaveColumns(msgspec.Struct, kw_only=True):
    """Waves of one transport: sums [n, N] of ascending rows."""

    transport: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_LABEL)]
    rows: Rows
    sums: Blob

    @property
    def sums_table(self) -> Float64:
        return table(self.sums, NUM_WAVE_SUMS)


def check_moments(at: str, columns: MomentColumns, num_rows: int) -> None:
    _check_rows(f"{at}.rows", columns.rows, num_rows)
    _check_size(f"{at}.sums", columns.sums, 8 * NUM_SUMS * len(columns.rows))
    if columns.point_rows and max(columns.point_rows) >= num_rows:
        raise ReportError(f"{at}.point_rows", "invalid", f"must lie below {num_rows}")
    size = len(raw32(columns.points))
    if size != 4 * _POINT * len(columns.point_rows):
        detail = f"has {size} bytes: must have {4 * _POINT} for each of its rows"
        raise ReportError(f"{at}.points", "invalid", detail)


def check_step(at: str, columns: StepColumns, num_rows: int) -> None:
    _check_rows(f"{at}.rows", columns.rows, num_rows)
    count = len(columns.rows)
    for name in ("policy_versions", "sent_bytes", "plan_mismatches"):
        if len(getattr(columns, name)) != count:
            raise ReportError(f"{at}.{name}", "invalid", f"must have {count} numbers")
    _check_size(f"{at}.seconds", columns.seconds, 8 * count)
    _check_size(f"{at}.wait_seconds", columns.wait_seconds, 8 * count)
    _check_size(f"{at}.home_features", columns.home_features, 8 * NUM_FEATURES * count)
    micro_batches = columns.micro_batches
    if micro_batches > MAX_MICRO_BATCHES:
        detail = f"has {micro_batches} numbers a row: must have at most {MAX_MICRO_BATCHES}"
        raise ReportError(f"{at}.home_pairs", "invalid", detail)
    _check_size(f"{at}.home_pairs", columns.home_pairs, 8 * micro_batches * count)
    for i, kernel in enumerate(columns.kernels):
        own = f"{at}.kernels[{i}]"
        _check_rows(f"{own}.rows", kernel.rows, count)
        _check_size(f"{own}.seconds", kernel.seconds, 8 * len(kernel.rows))
        _check_size(f"{own}.features", kernel.features, 8 * NUM_FEATURES * len(kernel.rows))


def check_waves(at: str, columns: WaveColumns, num_rows: int) -> None:
    _check_rows(f"{at}.rows", columns.rows, num_rows)
    _check_size(f"{at}.sums", columns.sums, 8 * NUM_WAVE_SUMS * len(columns.rows))


def _check_rows(field: str, rows: Sequence[int], num_rows: int) -> None:
    if not rows:
        raise ReportError(field, "invalid", "must name a row")
    if rows[-1] >= num_rows or any(a >= b for a, b in pairwise(rows)):
        raise ReportError(field, "invalid", f"must ascend and lie below {num_rows}")


def _check_size(field: str, blob: Blob, num_bytes: int) -> None:
    size = len(raw(blob))
    if size != num_bytes:
        detail = f"has {size} bytes of float64: must have {num_bytes}"
        raise ReportError(field, "invalid", detail)
