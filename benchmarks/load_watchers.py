"""Pages that follow events and agents that wait for a policy, beside a load, in their own process.

It runs until its standard input ends, then prints what was received as one JSON object.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.load_connection import Connection
from benchmarks.load_generator import raise_file_limit
from libra.balancer.policy import decode_policy

_HOST = "127.0.0.1"
_OPEN_AT_ONCE = 50
_WAIT_S = 30
_JOB_THERE_S = 0.2


class Page(asyncio.Protocol):
    """Follow a job's events; begins again, a moment later, where the stream ends."""

    def __init__(self, port: int, job: str) -> None:
        self.events = 0
        self.streams = 0
        self._port = port
        self._request = f"GET /api/v1/jobs/{job}/events HTTP/1.1\r\nHost: {_HOST}\r\n\r\n".encode()
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, _HOST, self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.streams += data.count(b"text/event-stream")
        self.events += data.count(b"event: step")
        if data.startswith(b"HTTP/1.1 404") and self._transport is not None:
            # The job's first report has not come yet: ask again.
            loop = asyncio.get_running_loop()
            loop.call_later(_JOB_THERE_S, self._transport.write, self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Poller:
    """Wait for a policy by long polls, one after the other."""

    def __init__(self, port: int, job: str) -> None:
        self.answers = 0
        self._path = f"/api/v1/jobs/{job}/policy?wait={_WAIT_S}"
        self._etag = '"none"'
        self.connection = Connection(_HOST, port, self._answered)

    def poll(self) -> None:
        request = (
            f"GET {self._path} HTTP/1.1\r\nHost: {_HOST}\r\nIf-None-Match: {self._etag}\r\n\r\n"
        )
        self.connection.send(request.encode())

    def _answered(self, status: int, body: bytes, retry_after_s: float) -> None:
        self.answers += 1
        pause_s = 0.0
        if status == 200:
            self._etag = f'"{decode_policy(body).checksum}"'
        elif status != 304:
            pause_s = max(retry_after_s, _JOB_THERE_S)
        asyncio.get_running_loop().call_later(pause_s, self.poll)


async def watch(args: argparse.Namespace) -> dict[str, Any]:
    """Open everything; return what came when the input has ended."""
    pages = [Page(args.port, args.job) for _ in range(args.sse)]
    pollers = [Poller(args.port, args.job) for _ in range(args.pollers)]
    opens = [page.open for page in pages] + [poller.connection.open for poller in pollers]
    for begin in range(0, len(opens), _OPEN_AT_ONCE):
        await asyncio.gather(*(opened() for opened in opens[begin : begin + _OPEN_AT_ONCE]))
    for poller in pollers:
        poller.poll()
    began_s = time.monotonic()
    await asyncio.to_thread(sys.stdin.read)
    seconds = time.monotonic() - began_s
    for page in pages:
        page.close()
    for poller in pollers:
        poller.connection.close()
    return {
        "pages": sum(page.streams > 0 for page in pages),
        "events_a_second": sum(page.events for page in pages) / seconds,
        "pollers": sum(poller.answers > 0 for poller in pollers),
        "cpu_seconds": time.process_time(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--port", type=int, required=True)
    add("--job", required=True)
    add("--sse", type=int, default=0)
    add("--pollers", type=int, default=0)
    args = parser.parse_args()
    raise_file_limit()
    print(json.dumps(asyncio.run(watch(args))))


if __name__ == "__main__":
    main()
