"""Can a batch's figures be true? A look at whole arrays; only a fault is looked for row by row.

Shapes: n rows of a column; F = 6 features; N sums.
"""

from collections.abc import Sequence

import numpy as np

from libra.attention.cost import NUM_FEATURES
from libra.balancer.batch import Batch, Refused
from libra.balancer.batch_columns import point_table, raw
from libra.balancer.moments import NUM_SUMS, are_plausible
from libra.balancer.report_check import check_kind, check_report
from libra.balancer.wire import (
    MAX_FEATURE,
    MAX_SECONDS,
    NUM_WAVE_SUMS,
    WAVE_FEATURES,
    ReportError,
)

# Unix time; a clock that reads less or more was never set.
_MAX_UNIX_S = 1e11


def check_clock(batch: Batch) -> None:
    """Raise ``ReportError`` for a sender's time that no clock shows."""
    sent_s = batch.sent_s
    if sent_s is not None and not 0 <= sent_s <= _MAX_UNIX_S:
        raise ReportError("$.sent_s", "clock", f"{sent_s} is no Unix time")


def refused_rows(batch: Batch) -> list[Refused]:
    """Return the rows that cannot be true, each with its first fault."""
    if is_sound(batch):
        return []
    refused = []
    for row, report in enumerate(batch.reports()):
        try:
            check_report(report)
        except ReportError as error:
            fault = Refused(row=row, field=error.field, reason=error.reason, detail=error.detail)
            refused.append(fault)
    return refused


def is_sound(batch: Batch) -> bool:
    """Can all of its rows be true? False means that one may be at fault."""
    try:
        for kind in batch.kinds:
            check_kind("$", kind)
    except ReportError:
        return False
    sums: list[bytes] = []
    waves: list[bytes] = []
    seconds: list[bytes] = []
    features: list[bytes] = []
    for moments in batch.moments:
        sums.append(raw(moments.sums))
        points = point_table(moments.points)
        if len(points) and not (
            points.min() >= 0
            and points[:, :NUM_FEATURES].max() <= MAX_FEATURE
            and points[:, NUM_FEATURES].max() <= MAX_SECONDS
        ):
            return False
    for step in batch.steps:
        seconds += (raw(step.seconds), raw(step.wait_seconds))
        features += (raw(step.home_features), raw(step.home_pairs))
        for kernel in step.kernels:
            seconds.append(raw(kernel.seconds))
            features.append(raw(kernel.features))
    for own in batch.waves:
        waves.append(raw(own.sums))
    return (
        max(batch.ranks) < batch.world_size
        and _lie_below(seconds, MAX_SECONDS)
        and _lie_below(features, MAX_FEATURE)
        and _are_plausible(sums, NUM_SUMS, NUM_FEATURES)
        and _are_plausible(waves, NUM_WAVE_SUMS, len(WAVE_FEATURES))
    )


def _lie_below(blobs: Sequence[bytes], most: float) -> bool:
    """Are all numbers in 0..most, and none NaN?"""
    values = np.frombuffer(b"".join(blobs))
    return not len(values) or bool(values.min() >= 0 and values.max() <= most)


def _are_plausible(blobs: Sequence[bytes], width: int, num_features: int) -> bool:
    sums = np.frombuffer(b"".join(blobs)).reshape(-1, width)
    return not len(sums) or are_plausible(sums, num_features)
