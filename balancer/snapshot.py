"""A job's state in bytes, so that a balancer that died goes on where it was."""

from typing import Any

import msgspec
import numpy as np

from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from libra.balancer.state import JobState

SNAPSHOT_STEPS = 200


def encode_state(state: JobState) -> bytes:
    """Return the snapshot, in msgpack; older steps than ``SNAPSHOT_STEPS`` stay behind."""
    log = msgspec.structs.replace(state.log, records=state.log.records[-SNAPSHOT_STEPS:])
    return msgspec.msgpack.encode(msgspec.structs.replace(state, log=log), enc_hook=_encode)


def decode_state(body: bytes) -> JobState:
    """Return the state of a snapshot; raise ``ValueError`` (msgspec's) for anything else."""
    return msgspec.msgpack.decode(body, type=JobState, dec_hook=_decode)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes(), value.dtype.str
    if isinstance(value, QuadraticCostModel):
        return value.moments_.sums.tolist(), value.num_observations_
    raise NotImplementedError(f"{type(value)} has no place in a snapshot")


def _decode(expected: Any, value: Any) -> Any:
    if expected is QuadraticCostModel:
        first, second = value
        model = QuadraticCostModel()
        model.moments_, model.num_observations_ = Moments(first), second
        return model
    shape, body, dtype = value
    return np.frombuffer(body, dtype=dtype).reshape(shape).copy()
