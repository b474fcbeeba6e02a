"""Layouts for tests of what watches the operator."""

import numpy as np

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout


def two_sequence_layout(
    *, step: int, micro_batch: int = 0, place: int = 0, policy_version: int = 0
) -> BatchLayout:
    """Return a cell of two sequences: one long document against four short."""
    return make_layout(
        [np.array([512]), np.array([128, 128, 128, 128])],
        place,
        tokens=512,
        heads=HeadSplit(query_heads=1, kv_heads=1),
        step=step,
        micro_batch=micro_batch,
        policy_version=policy_version,
        policy_checksum="0" * 16,
    )
