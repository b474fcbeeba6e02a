"""Ask the balancer over HTTP: one request, one bounded answer, one deadline, one exception.

The deadline covers the whole exchange, for a peer that trickles bytes resets every single read
timeout. Proxy variables of the training job are not followed.
"""

import asyncio
import logging
import math
import ssl
from collections.abc import Mapping

import httpx

from libra.agent.connection import Answer, Connection, HttpError
from libra.agent.credentials import Certificates, CredentialsError, Stamp, Token
from libra.agent.settings import UNIX_SCHEME, AgentSettings
from libra.balancer.compatibility import VERSION_HEADER, neighbours, refusal
from libra.balancer.version import libra_version

logger = logging.getLogger(__name__)

# Answers that only a person, or a new token, can change.
_DENIED = (401, 403)
_FOREIGN = 426


class NoAnswerError(Exception):
    """No usable answer came: the message says why, and when it may be worth asking again."""

    def __init__(self, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Channel:
    """Requests to one balancer, on the event loop that first uses it.

    Raises what it cannot do as ``NoAnswerError``. A balancer that denies access, or is of a
    version that this one does not work with, is asked again at the slowest pace: a person has to
    act first, and reads one line of log about it.
    """

    def __init__(self, settings: AgentSettings) -> None:
        url = settings.balancer
        self._socket = url.removeprefix(UNIX_SCHEME) if url.startswith(UNIX_SCHEME) else None
        self._base = "http://localhost" if self._socket else url.rstrip("/")
        self._url = httpx.URL(self._base)
        self._path = self._url.raw_path.decode("ascii").rstrip("/")
        self._connect_timeout_s = settings.connect_timeout_s
        self._token = Token(settings.token_file)
        self._certificates = Certificates(settings) if self._base.startswith("https:") else None
        self._stamps: list[Stamp] = []
        self._context: ssl.SSLContext | None = None
        # A report and a long poll are under way at once, and no more.
        self._idle: list[Connection] = []
        self._version = libra_version()
        self._usual = [
            ("host", self._url.netloc.decode("ascii")),
            (VERSION_HEADER, self._version),
        ]
        self._told: set[str] = set()

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
        try:
            async with asyncio.timeout(timeout_s):
                token = self._token.value
                answer = await self._exchange(method, path, headers, body, token)
                if answer.status in _DENIED:
                    # It may have been replaced since: two are valid while one takes over.
                    self._token.forget()
                    if self._token.value != token:
                        token = self._token.value
                        answer = await self._exchange(method, path, headers, body, token)
        except CredentialsError as error:
            raise self._slow("credentials", str(error)) from None
        except (HttpError, TimeoutError, OSError) as error:
            raise NoAnswerError(f"{type(error).__name__}: {error}") from error
        self._check(answer)
        return answer

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _check(self, answer: Answer) -> None:
        """Raise ``NoAnswerError`` for what no retry can mend."""
        balancer = answer.headers.get(VERSION_HEADER.lower(), self._version)
        if answer.status == _FOREIGN or not neighbours(self._version, balancer):
            raise self._slow("version", refusal(self._version, balancer))
        if answer.status in _DENIED:
            what = "no valid token" if answer.status == _DENIED[0] else "a token without the right"
            raise self._slow("access", f"status {answer.status}: {what} in LIBRA_TOKEN_FILE")

    def _slow(self, what: str, reason: str) -> NoAnswerError:
        """Return the error that is retried as rarely as may be, and say so the first time."""
        if what not in self._told:
            self._told.add(what)
            logger.warning(
                "The balancer is of no use now, and training goes on without it: %s", reason
            )
        return NoAnswerError(reason, retry_after_s=math.inf)

    async def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        token: str,
    ) -> Answer:
        own = [*self._usual, *headers.items()]
        if token:
            own.append(("authorization", f"Bearer {token}"))
        connection = await self._connected()
        try:
            answer = await connection.ask(method, self._path + path, own, body)
        except BaseException:
            # Also when the deadline cuts it short: nobody reads the rest.
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connected(self) -> Connection:
        """Return a connection, a new one where none is left or certificates have changed."""
        if self._certificates is not None:
            stamps = self._certificates.stamps
            if self._context is None or stamps != self._stamps:
                await self.close()
                # This takes tens of milliseconds, and is done once.
                self._context = self._certificates.context()
                self._stamps = stamps
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        timeout_s = self._connect_timeout_s
        return await Connection.open(self._url, self._socket, self._context, timeout_s)
