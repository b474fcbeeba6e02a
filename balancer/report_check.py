"""What no honest, healthy agent can report, named by its place in the report."""

import math
from collections.abc import Iterator, Sequence

from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    MAX_FEATURE,
    MAX_HEADS,
    MAX_LABEL,
    MAX_SECONDS,
    WAVE_FEATURES,
    Report,
    ReportError,
)


def check_report(report: Report) -> None:
    """Raise ``ReportError`` for the first fault of a report."""
    if report.rank >= report.world_size:
        detail = f"{report.rank} is not below world_size {report.world_size}"
        raise ReportError("$.rank", "invalid", detail)
    for field, kind in _kinds(report):
        check_kind(field, kind)
    for field, values, most in _figures(report):
        if not all(0 <= value <= most for value in values):
            _refuse(field, values, most)
    for i, moments in enumerate(report.moments):
        fault = Moments(moments.sums).fault()
        if fault:
            raise ReportError(f"$.moments[{i}].sums", "inconsistent", fault)
    for i, waves in enumerate(report.waves):
        fault = Moments(waves.sums, num_features=len(WAVE_FEATURES)).fault()
        if fault:
            raise ReportError(f"$.waves[{i}].sums", "inconsistent", fault)


def check_kind(field: str, kind: KernelKind) -> None:
    """Keep labels short and sizes possible: both end up in metrics and in the store."""
    for name in ("device", "backend", "dtype"):
        if not 0 < len(getattr(kind, name)) <= MAX_LABEL:
            detail = f"must have 1 to {MAX_LABEL} characters"
            raise ReportError(f"{field}.{name}", "invalid", detail)
    for name in ("head_dim", "group_heads"):
        if not 0 < getattr(kind, name) <= MAX_HEADS:
            raise ReportError(f"{field}.{name}", "invalid", f"must be in 1..{MAX_HEADS}")


def _kinds(report: Report) -> Iterator[tuple[str, KernelKind]]:
    for i, moments in enumerate(report.moments):
        yield f"$.moments[{i}].kind", moments.kind
    for i, step in enumerate(report.steps):
        for j, kernel in enumerate(step.kernels):
            yield f"$.steps[{i}].kernels[{j}].kind", kernel.kind


def _figures(report: Report) -> Iterator[tuple[str, Sequence[float], float]]:
    """Yield (field, values, largest allowed) of floating-point figures; ``%d`` in the field is a
    value's place.
    """
    for i, moments in enumerate(report.moments):
        yield f"$.moments[{i}].sums[%d]", moments.sums, math.inf
        for j, point in enumerate(moments.points):
            yield f"$.moments[{i}].points[{j}][%d]", point[:NUM_FEATURES], MAX_FEATURE
            yield f"$.moments[{i}].points[{j}][{NUM_FEATURES}]", point[NUM_FEATURES:], MAX_SECONDS
    for i, step in enumerate(report.steps):
        at = f"$.steps[{i}]"
        yield f"{at}.seconds", (step.seconds,), MAX_SECONDS
        yield f"{at}.wait_seconds", (step.wait_seconds,), MAX_SECONDS
        yield f"{at}.home_features[%d]", step.home_features, MAX_FEATURE
        yield f"{at}.home_pairs[%d]", step.home_pairs, MAX_FEATURE
        for j, kernel in enumerate(step.kernels):
            yield f"{at}.kernels[{j}].seconds", (kernel.seconds,), MAX_SECONDS
            yield f"{at}.kernels[{j}].features[%d]", kernel.features, MAX_FEATURE
    for i, waves in enumerate(report.waves):
        yield f"$.waves[{i}].sums[%d]", waves.sums, math.inf


def _refuse(field: str, values: Sequence[float], most: float) -> None:
    """Raise ``ReportError`` for the first value that cannot be."""
    for place, value in enumerate(values):
        at = field.replace("%d", str(place))
        if not math.isfinite(value):
            raise ReportError(at, "not_finite", f"{value} is not a finite number")
        if value < 0:
            raise ReportError(at, "negative", f"{value} is negative")
        if value > most:
            raise ReportError(at, "absurd", f"{value} is above {most}")
