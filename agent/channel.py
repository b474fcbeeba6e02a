"""Ask the balancer over HTTP: one request, one bounded answer, one deadline, one exception.

httpx's transport is used without its client: a client logs every request to the training
job's log and follows its proxy variables. The deadline covers the whole exchange, for a
peer that trickles bytes resets every single read timeout.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import httpx

MAX_ANSWER_BYTES = 1 << 20


class NoAnswerError(Exception):
    """No usable answer came: the message says why, and when it may be worth asking again."""

    def __init__(self, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Answer(NamedTuple):
    """What the balancer said."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def retry_after_s(self) -> float:
        """Seconds that ``Retry-After`` asks for; 0 without one, or where it is a date."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdecimal() else 0.0


class Channel:
    """Requests to one balancer, on the event loop that first uses it.

    Args:
        base: the balancer's address, ``http://host:port`` with an optional path.
        connect_timeout_s: the longest to wait for a connection.
    """

    def __init__(self, base: str, *, connect_timeout_s: float = 1.0) -> None:
        self._base = base.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        body: bytes = b"",
    ) -> Answer:
        """Send a request and return the answer; raise ``NoAnswerError`` within ``timeout_s``."""
        timeout = httpx.Timeout(timeout_s, connect=self._connect_timeout_s)
        request = httpx.Request(
            method,
            self._base + path,
            headers=headers,
            content=body,
            extensions={"timeout": timeout.as_dict()},
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(request)
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise NoAnswerError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def _exchange(self, request: httpx.Request) -> Answer:
        if self._transport is None:
            self._transport = httpx.AsyncHTTPTransport()
        response = await self._transport.handle_async_request(request)
        try:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            body = bytearray()
            async for chunk in response.stream:
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise NoAnswerError(f"The answer is longer than {MAX_ANSWER_BYTES} bytes")
            return Answer(response.status_code, response.headers, bytes(body))
        finally:
            await response.aclose()
