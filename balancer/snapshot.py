"""A job's state in bytes, so that a balancer that died goes on where it was.

The core is all but the complete steps; each of these is a body of its own. What only pictures and
prices are made of is kept in float32; kernel seconds to the bit, since they are compared by it.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from libra.balancer.cost_model import CostModel
from libra.balancer.moments import Moments
from libra.balancer.state import JobState
from libra.balancer.step_record import StepRecord
from libra.balancer.steps import bounded

SNAPSHOT_STEPS = 200

_NONE = np.zeros(0)


class _StoredStep(msgspec.Struct, kw_only=True):
    """A record without its kernel seconds, and these: float32 where it is compact."""

    record: msgspec.Raw
    kernel_seconds: bytes


def encode_core(state: JobState) -> bytes:
    """Return all but the complete steps, in msgpack."""
    return _encode_state(state, [])


def encode_state(state: JobState) -> bytes:
    """Return the state with its newest ``SNAPSHOT_STEPS`` to the bit, in msgpack."""
    return _encode_state(state, state.log.records[-SNAPSHOT_STEPS:])


def decode_state(body: bytes) -> JobState:
    """Return the state of either encoding; raise ``ValueError`` (msgspec's) for anything else."""
    return msgspec.msgpack.decode(body, type=JobState, dec_hook=_decode)


def encode_step(record: StepRecord) -> bytes:
    """Return a complete step, in msgpack; with its features while it has them."""
    lean = msgspec.structs.replace(record, kernel_seconds=_NONE)
    return msgspec.msgpack.encode(
        _StoredStep(
            record=msgspec.Raw(msgspec.msgpack.encode(lean, enc_hook=_encode_compactly)),
            kernel_seconds=record.kernel_seconds.astype(_dtype(record)).tobytes(),
        )
    )


def decode_step(body: bytes) -> StepRecord:
    """Return the step of a body; raise ``ValueError`` (msgspec's) for anything else."""
    stored = msgspec.msgpack.decode(body, type=_StoredStep)
    record = msgspec.msgpack.decode(stored.record, type=StepRecord, dec_hook=_decode_compact)
    record.kernel_seconds = np.frombuffer(stored.kernel_seconds, _dtype(record)).copy()
    return record


def decode_steps(bodies: Iterable[bytes], attempt: int) -> list[StepRecord]:
    """Return the newest records as a log keeps them: those of ``attempt`` replace what was done
    before from their first step on. Bodies that cannot be read are left out.
    """
    records: list[StepRecord] = []
    for body in bodies:
        try:
            records.append(decode_step(body))
        except ValueError:
            continue
    kept: list[StepRecord] = []
    for record in sorted(records, key=lambda r: (r.attempt, r.step), reverse=True):
        if record.attempt <= attempt and (not kept or record.step < kept[-1].step):
            kept.append(record)
    return bounded(kept[::-1])


def _dtype(record: StepRecord) -> str:
    return "<f4" if record.compact else "<f8"


def _encode_state(state: JobState, records: list[StepRecord]) -> bytes:
    log = msgspec.structs.replace(state.log, records=records)
    return msgspec.msgpack.encode(msgspec.structs.replace(state, log=log), enc_hook=_encode)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes(), value.dtype.str
    if isinstance(value, CostModel):
        return value.moments_.sums.tolist(), value.num_observations_
    raise NotImplementedError(f"{type(value)} has no place in a snapshot")


def _encode_compactly(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        value = value.astype("<f4")
    return _encode(value)


def _decode(expected: Any, value: Any) -> Any:
    if expected is CostModel:
        first, second = value
        model = CostModel()
        model.moments_, model.num_observations_ = Moments(first), second
        return model
    shape, body, dtype = value
    return np.frombuffer(body, dtype=dtype).reshape(shape).copy()


def _decode_compact(expected: Any, value: Any) -> Any:
    array = _decode(expected, value)
    return array.astype(np.float64) if array.dtype == np.float32 else array
