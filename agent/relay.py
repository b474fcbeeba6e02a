"""The first rank of a node sends the reports of all: one connection, one request an interval.

Other ranks hand their reports over a Unix socket and wait for the verdict. What this relay cannot
deliver stays theirs: nothing that it holds is lost with it.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libra.agent.backoff import Backoff
from libra.agent.channel import NoAnswerError
from libra.agent.direct import Direct, Verdict
from libra.agent.follower import Follower
from libra.agent.frames import Hand, Told, encode_frame, read_frame
from libra.agent.meeting_place import leave, listen, peer_is_own
from libra.agent.settings import AgentSettings
from libra.agent.thinning import thin_points
from libra.balancer.policy import encode_policy
from libra.balancer.wire import Report

logger = logging.getLogger(__name__)

MAX_RANKS = 256
# A rank speaks every 30 s at least, also where the balancer is away.
IDLE_S = 120.0
# Ranks that end together hand their last reports within this time.
GATHER_S = 0.05
# So many steps and ranks stay well below what the balancer takes in one body.
MAX_BATCH_STEPS = 1024
_RANK_STEPS = 8


@dataclass(kw_only=True, slots=True)
class _Row:
    """A report that waits for the next batch; ``verdict`` is its rank's to await."""

    report: Report
    verdict: "asyncio.Future[Verdict]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Relay:
    """Gather the reports of a node's ranks, this one's among them; an ``Outlet``.

    Attributes:
        batches: requests made so far.
    """

    def __init__(
        self, settings: AgentSettings, path: Path, direct: Direct, follower: Follower
    ) -> None:
        self.batches = 0
        self._settings = settings
        self._path = path
        self._direct = direct
        self._follower = follower
        self._rows: list[_Row] = []
        self._due = asyncio.Event()
        self._urgent = asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._closing = False
        self._retry_at_s = 0.0
        self._random = random.Random()
        self._backoff = Backoff(
            "Relaying reports to the balancer",
            first_delay_s=settings.first_retry_s,
            max_delay_s=settings.max_retry_s,
        )

    async def run(self) -> None:
        """Listen, and send what came every ``interval_s``, for ever."""
        try:
            self._server = await self._listen()
        except OSError as error:
            logger.info("No relay on this node, every rank reports by itself: %s", error)
        next_s = 0.0
        while True:
            await self._due.wait()
            now_s = asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(GATHER_S, next_s - now_s)):
                    await self._urgent.wait()
                    await asyncio.sleep(GATHER_S)
            next_s = asyncio.get_running_loop().time() + self._settings.interval_s
            await self._deliver()

    async def send(self, report: Report, *, urgent: bool = False) -> Verdict:
        """Send the report with the next batch; see ``Outlet``."""
        if self._closing:
            return await self._direct.send(report)
        left_s = self._retry_at_s - asyncio.get_running_loop().time()
        if left_s > 0:
            raise NoAnswerError("the balancer is away", retry_after_s=left_s)
        if len(self._rows) >= MAX_RANKS:
            raise NoAnswerError("too many reports wait for the relay", retry_after_s=1.0)
        row = _Row(report=report)
        self._rows.append(row)
        self._due.set()
        if urgent:
            self._urgent.set()
        return await row.verdict

    async def close(self) -> None:
        """Send what was handed over, then let every rank go."""
        self._closing = True
        try:
            if self._server is not None:
                self._server.close()
                leave(self._path, self._inode)
            await self._deliver()
        finally:
            # A moment for the verdicts to leave; who does not get one reports by itself.
            await asyncio.sleep(0)
            for writer in list(self._connections):
                writer.close()
            await asyncio.sleep(0)

    async def _listen(self) -> asyncio.Server:
        listener = listen(self._path)
        self._inode = self._path.lstat().st_ino
        # asyncio would remove the path at the end, which may be another relay's by then.
        return await asyncio.start_unix_server(self._serve, sock=listener)

    async def _deliver(self) -> None:
        """Send what waits; hand out verdicts, or the one failure to all."""
        rows, self._rows = self._rows, []
        self._due.clear()
        self._urgent.clear()
        rows = [row for row in rows if not row.verdict.done()]
        try:
            for part in _parts(rows):
                await self._send_part(part)
            self._backoff.succeeded()
        except NoAnswerError as error:
            delay_s = self._backoff.failed(error, retry_after_s=error.retry_after_s)
            self._retry_at_s = asyncio.get_running_loop().time() + delay_s
            for row in rows:
                if not row.verdict.done():
                    row.verdict.set_exception(NoAnswerError(str(error), retry_after_s=delay_s))
                    # A rank that is gone does not ask.
                    row.verdict.exception()

    async def _send_part(self, rows: Sequence[_Row]) -> None:
        self.batches += 1
        reports = thin_points([row.report for row in rows], self._random)
        verdicts = await self._direct.send_all(reports)
        for row, verdict in zip(rows, verdicts, strict=True):
            if not row.verdict.done():
                row.verdict.set_result(verdict)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one rank's reports, one at a time, until it leaves."""
        own = peer_is_own(writer.get_extra_info("socket"))
        if not own or self._closing or len(self._connections) >= MAX_RANKS:
            writer.close()
            return
        self._connections.add(writer)
        try:
            while not self._closing:
                timeout_s = self._settings.timeout_s
                hand = await read_frame(reader, Hand, idle_s=IDLE_S, timeout_s=timeout_s)
                writer.write(encode_frame(await self._told(hand)))
                async with asyncio.timeout(timeout_s):
                    await writer.drain()
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            logger.debug("A rank left the relay: %r", error)
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _told(self, hand: Hand) -> Told:
        report = hand.report
        if report.job != self._settings.job:
            raise ValueError(f"a report of job {report.job!r}")
        verdict, failure, retry_after_s = None, "", 0.0
        try:
            verdict = await self.send(report, urgent=hand.urgent)
        except NoAnswerError as error:
            failure, retry_after_s = str(error), error.retry_after_s
        policy = self._follower.policy
        news = encode_policy(policy) if policy.version > hand.policy_version else b""
        return Told(verdict=verdict, failure=failure, retry_after_s=retry_after_s, policy=news)


def _parts(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Return the rows in order, in parts of ``MAX_BATCH_STEPS`` at most where one has fewer.

    A part is of one launch, which its ranks may come to know one after the other.
    """
    parts: list[list[_Row]] = []
    room, launch = 0, ("", -1)
    for row in rows:
        weight = _RANK_STEPS + len(row.report.steps)
        own = row.report.run, row.report.attempt
        if weight > room or own != launch:
            parts.append([])
            room, launch = MAX_BATCH_STEPS, own
        parts[-1].append(row)
        room -= weight
    return parts
