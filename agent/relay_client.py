"""Hand reports to the node's relay; where it does not answer, report directly for a while."""

import asyncio
import contextlib
import logging
import random
from pathlib import Path

from libra.agent.channel import NoAnswerError
from libra.agent.direct import Direct, Verdict
from libra.agent.follower import Follower
from libra.agent.frames import Hand, Told, encode_frame, read_frame
from libra.agent.meeting_place import peer_is_own
from libra.agent.settings import AgentSettings
from libra.balancer.wire import Report

logger = logging.getLogger(__name__)

# Of the time that a process has for its last report, what the relay may use.
_URGENT_SHARE = 0.4


class RelayClient:
    """An ``Outlet`` through the relay, with another beside it.

    A report is sent directly under the sequence number that the relay may have sent it under, so
    nothing is lost or counted twice. The relay is tried again after a time that doubles up to
    ``max_retry_s``.

    Attributes:
        failures: reports in a row that the relay did not answer.
    """

    def __init__(
        self, settings: AgentSettings, path: Path, direct: Direct, follower: Follower
    ) -> None:
        self.failures = 0
        self._settings = settings
        self._path = path
        self._direct = direct
        self._follower = follower
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._retry_at_s = 0.0
        # A batch leaves within an interval, and has its own deadline then.
        self._timeout_s = settings.interval_s + settings.timeout_s + 1.0
        self._random = random.Random()

    async def send(self, report: Report, *, urgent: bool = False) -> Verdict:
        """Send through the relay, else directly; see ``Outlet``."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._retry_at_s:
            limit_s = _URGENT_SHARE * self._settings.close_timeout_s if urgent else self._timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    told = await self._hand(report, urgent=urgent)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self.close()
                self._retry_at_s = loop.time() + self._pause_s()
                logger.debug("The node's relay does not answer, reporting directly: %r", error)
            else:
                self.failures = 0
                return self._verdict(told)
        return await self._direct.send(report)

    def close(self) -> None:
        """Leave the relay."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _hand(self, report: Report, *, urgent: bool) -> Told:
        version = self._follower.policy.version
        frame = encode_frame(Hand(report=report, policy_version=version, urgent=urgent))
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        writer.write(frame)
        await writer.drain()
        return await read_frame(reader, Told, idle_s=self._timeout_s, timeout_s=self._timeout_s)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(self._settings.connect_timeout_s):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
        if not peer_is_own(writer.get_extra_info("socket")):
            writer.close()
            raise PermissionError(f"{self._path} is another user's")
        return reader, writer

    def _pause_s(self) -> float:
        pause_s = self._settings.interval_s * 2.0 ** min(self.failures, 16)
        self.failures += 1
        return min(self._settings.max_retry_s, pause_s) * self._random.uniform(0.5, 1.0)

    def _verdict(self, told: Told) -> Verdict:
        with contextlib.suppress(NoAnswerError):
            self._follower.relayed(told.policy)
        if told.verdict is None:
            raise NoAnswerError(told.failure, retry_after_s=told.retry_after_s)
        return told.verdict
