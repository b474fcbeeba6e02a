"""What the ranks of a node tell their relay and hear of it: frames of msgpack over a socket."""

import asyncio
from typing import TypeVar

import msgspec

from libra.agent.direct import Verdict
from libra.balancer.wire import Report

# A report holds 256 steps at most, of about a kilobyte.
MAX_FRAME_BYTES = 4 << 20
_LENGTH_BYTES = 4

T = TypeVar("T")


class Hand(msgspec.Struct, kw_only=True):
    """A rank's report, and the version of the policy that it has."""

    report: Report
    policy_version: int
    urgent: bool = False


class Told(msgspec.Struct, kw_only=True):
    """What became of a report, and the encoded policy if it is newer than the rank's.

    Without a verdict the balancer gave no answer, ``failure`` says why, and it may be asked again
    after ``retry_after_s``.
    """

    verdict: Verdict | None
    failure: str = ""
    retry_after_s: float = 0.0
    policy: bytes = b""


def encode_frame(message: Hand | Told) -> bytes:
    """Return a frame; raise ``ValueError`` if it is too long for one."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes: must be {MAX_FRAME_BYTES} at most")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_frame(
    reader: asyncio.StreamReader, expected: type[T], *, idle_s: float, timeout_s: float
) -> T:
    """Read one frame, whose first bytes may take ``idle_s`` and the rest ``timeout_s``.

    Raises:
        ValueError: it is too long, or not what is expected.
        OSError, EOFError, TimeoutError: the other side is gone, or silent.
    """
    async with asyncio.timeout(idle_s):
        head = await reader.readexactly(_LENGTH_BYTES)
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes: must be {MAX_FRAME_BYTES} at most")
    async with asyncio.timeout(timeout_s):
        body = await reader.readexactly(length)
    # msgspec's own errors are ValueErrors.
    return msgspec.msgpack.decode(body, type=expected)
