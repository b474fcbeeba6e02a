"""Bodies of reports: their type and encoding, their limits, and how they are read.

Everything is limited before it is kept: the length that is announced, what arrives, and what it
decompresses to.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from libra.balancer.problems import ProblemError

MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
JSON = "application/json"
ENCODINGS = ("gzip", "identity")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class RefusedUploadError(ProblemError):
    """A body that is refused unread; ``reason`` is of the closed set of results."""

    def __init__(self, status: int, reason: str, detail: str, *, field: str | None = None) -> None:
        headers = {"Accept-Encoding": ENCODINGS[0]} if reason == "encoding" else None
        super().__init__(status, detail, field=field, headers=headers)
        self.reason = reason


async def read_upload(request: Request, limit_bytes: int, timeout_s: float) -> tuple[bytes, bool]:
    """Return a request's decompressed body, and whether it is JSON.

    Raises ``RefusedUploadError``.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON and kind not in MSGPACK:
        detail = f"content type {kind!r}: must be {MSGPACK[0]} or {JSON}"
        raise RefusedUploadError(415, "media_type", detail)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        detail = f"content encoding {encoding!r}: must be one of {', '.join(ENCODINGS)}"
        raise RefusedUploadError(415, "encoding", detail)
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            if encoding == "gzip":
                body = await inflate(request.stream(), limit_bytes)
            else:
                body = await _gather(request.stream(), limit_bytes)
    except TimeoutError:
        detail = f"the body did not arrive within {timeout_s:g} s"
        raise RefusedUploadError(408, "too_slow", detail) from None
    return body, kind == JSON


async def _gather(chunks: AsyncIterator[bytes], limit_bytes: int) -> bytes:
    """Return what arrives; most bodies are one chunk."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if chunk:
            parts.append(chunk)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def inflate(chunks: AsyncIterator[bytes], limit_bytes: int) -> bytes:
    """Return what one gzip member inflates to; nothing is inflated beyond the limit."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    body = bytearray()
    arrived = 0
    async for chunk in chunks:
        arrived += len(chunk)
        if arrived > limit_bytes:
            raise _too_large(limit_bytes)
        if chunk and inflater.eof:
            raise RefusedUploadError(
                400, "malformed", "something follows the gzip member", field="$"
            )
        try:
            # One byte more than may be tells a body at the limit from one beyond it.
            body += inflater.decompress(chunk, limit_bytes + 1 - len(body))
        except zlib.error as error:
            raise RefusedUploadError(400, "malformed", f"no gzip: {error}", field="$") from error
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    if not inflater.eof or inflater.unused_data:
        raise RefusedUploadError(
            400, "malformed", "the gzip body must be one whole member", field="$"
        )
    return bytes(body)


def _too_large(limit_bytes: int) -> RefusedUploadError:
    return RefusedUploadError(413, "too_large", f"the body is larger than {limit_bytes} bytes")
