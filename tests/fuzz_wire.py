"""Feed any bytes to the decoders of reports: refused or checked, and never more memory than that.

``test_wire_fuzz.py`` runs it: ``python -m tests.fuzz_wire CORPUS -max_total_time=60``.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import atheris

with atheris.instrument_imports(["libra.balancer"]):  # pyright: ignore[reportAttributeAccessIssue]
    from libra.balancer.batch import Batch, batch_of_one, decode_batch
    from libra.balancer.job import Job
    from libra.balancer.uploads import RefusedUploadError, inflate
    from libra.balancer.wire import ReportError, decode_report

_NOW_S = 1_700_000_000.0
_LIMIT_BYTES = 1 << 16


def decoded(data: bytes) -> Batch:
    """Return the batch of a body; its first byte says what it is said to be."""
    kind, body = data[0], data[1:]
    if kind & 4:
        body = asyncio.run(inflate(_chunks(body), _LIMIT_BYTES))
        assert len(body) <= _LIMIT_BYTES
    if kind & 2:
        return decode_batch(body, as_json=bool(kind & 1))
    return batch_of_one(decode_report(body, as_json=bool(kind & 1)))


def try_one(data: bytes) -> None:
    """Take in a body twice, as a job of its own."""
    if not data:
        return
    try:
        batch = decoded(data)
        job = Job(batch.job)
        job.take(batch, _NOW_S)
        job.take(batch, _NOW_S)
        job.summary(_NOW_S)
    except (ReportError, RefusedUploadError):
        return


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), 512):
        yield body[begin : begin + 512]


if __name__ == "__main__":
    atheris.Setup(sys.argv, try_one)
    atheris.Fuzz()
