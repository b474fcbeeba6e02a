"""Report what the meter saw: a bounded ring of steps in, one report at a time out.

Training only appends to the ring. Sending, waiting and failing happen on the agent's thread.
"""

import asyncio
import contextlib
import logging
import math
import random
import uuid
from collections import deque

from libra.agent.backoff import Backoff
from libra.agent.channel import NoAnswerError
from libra.agent.direct import Outlet, Verdict
from libra.agent.meter import StepMeter
from libra.agent.settings import AgentSettings
from libra.balancer.wire import Coordinates, Report, StepTotals

logger = logging.getLogger(__name__)

# Steps may take minutes; the balancer takes a job that is silent for 30 s for stale.
HEARTBEAT_S = 10.0
# An outage leaves more steps than the balancer takes in one body.
MAX_REPORT_STEPS = 256


class Reporter:
    """Send one rank's reports, each until it is acknowledged or refused.

    A report is retried unchanged under its own sequence number, whichever way it goes, so the
    balancer can tell a retry from news; meanwhile steps gather in the ring and moments in the
    meter. It ends when the meter has failed.

    Attributes:
        coordinates: where the rank stands; set once it is known.
        launch: its run and attempt; set once the ranks have found them.
        held: nothing is drawn before they are known, for a rank with names of its own would be
            taken for a new launch, in which the others come late.
        attached: the rank has begun, so that it is worth saying that it lives.
        sent: reports acknowledged.
        refused: reports that the balancer will never take; dropped and counted.
    """

    def __init__(self, settings: AgentSettings, meter: StepMeter, outlet: Outlet) -> None:
        self.coordinates = Coordinates(pp=settings.pp_rank)
        self.launch = settings.run, settings.attempt
        self.held = False
        self.attached = settings.world_size == 1
        self.sent = 0
        self.refused = 0
        self._settings = settings
        self._meter = meter
        self._outlet = outlet
        self._agent = uuid.uuid4().hex
        self._sequence = 0
        self._ring: deque[StepTotals] = deque(maxlen=settings.ring_steps)
        self._pushed = 0
        self._drawn = 0
        self._lost = 0
        self._pending: Report | None = None
        self._last_sent_s = -math.inf
        self._random = random.Random()
        self._backoff = Backoff(
            "Reporting to the balancer",
            first_delay_s=settings.first_retry_s,
            max_delay_s=settings.max_retry_s,
        )

    @property
    def dropped(self) -> int:
        """Observations and steps lost so far: out of the ring, refused, or never reportable."""
        # Read in this order against push: a step in between is missed once, never miscounted.
        pushed = self._pushed
        overrun = max(0, pushed - self._drawn - len(self._ring))
        return overrun + self._lost + self._meter.dropped

    @property
    def unsent_steps(self) -> int:
        """Steps that wait in the ring or in the report under way."""
        return len(self._ring) + (len(self._pending.steps) if self._pending else 0)

    def push(self, totals: StepTotals) -> None:
        """Queue a step's totals; the oldest makes room. For the training thread."""
        self._ring.append(totals)
        self._pushed += 1

    async def run(self) -> None:
        """Report every ``interval_s``, as long as the meter works."""
        loop = asyncio.get_running_loop()
        # Ranks start together; they should not report together.
        await asyncio.sleep(self._settings.interval_s * self._random.random())
        while not self._meter.failed:
            began_s = loop.time()
            try:
                await self._send()
                self._backoff.succeeded()
                pause_s = self._pause_s(loop.time() - began_s)
            except NoAnswerError as error:
                pause_s = self._backoff.failed(error, retry_after_s=error.retry_after_s)
            await asyncio.sleep(pause_s)

    async def flush(self) -> None:
        """Send what is pending, then what came since; give up at the first failure."""
        with contextlib.suppress(NoAnswerError):
            if self._pending is not None:
                await self._send(urgent=True)
            await self._send(urgent=True)
            while self._ring and not self.held:
                await self._send(urgent=True)

    def _pause_s(self, taken_s: float) -> float:
        """Return the time to the next report: at least half an interval, for a relay's ticks."""
        pause_s = self._settings.interval_s * self._random.uniform(0.9, 1.1)
        return max(0.5 * pause_s, pause_s - taken_s)

    async def _send(self, *, urgent: bool = False) -> None:
        """Send the pending report or a new one; raise ``NoAnswerError`` if it stays pending."""
        report = self._pending = self._pending or self._draw()
        if report is None:
            return
        verdict = await self._outlet.send(report, urgent=urgent)
        self._pending = None
        if verdict.taken:
            self.sent += 1
            self._last_sent_s = asyncio.get_running_loop().time()
        else:
            self._refuse(report, verdict)

    def _draw(self) -> Report | None:
        """Return a report of what there is; None if that is nothing and none is due."""
        if self.held:
            return None
        moments, waves = self._meter.take_moments(), self._meter.take_waves()
        steps = [self._ring.popleft() for _ in range(min(MAX_REPORT_STEPS, len(self._ring)))]
        self._drawn += len(steps)
        silent_s = asyncio.get_running_loop().time() - self._last_sent_s
        if moments or waves or steps:
            self.attached = True
        elif not self.attached or silent_s < HEARTBEAT_S:
            return None
        self._sequence += 1
        run, attempt = self.launch
        return Report(
            schema=1,
            job=self._settings.job,
            attempt=attempt,
            run=run,
            node=self._settings.node,
            agent=self._agent,
            sequence=self._sequence,
            rank=self._settings.rank,
            world_size=self._settings.world_size,
            coordinates=self.coordinates,
            moments=moments,
            steps=steps,
            waves=waves,
            dropped=self.dropped,
            set_aside=self._meter.set_aside,
        )

    def _refuse(self, report: Report, verdict: Verdict) -> None:
        """Count a report that no retry can mend, and say so the first time."""
        self.refused += 1
        self._lost += len(report.steps) + sum(int(kind.sums[0]) for kind in report.moments)
        if self.refused == 1:
            logger.warning(
                "The balancer refused report %d with status %d, and it is dropped; further "
                "refusals are only counted. It said: %s",
                report.sequence,
                verdict.status,
                verdict.detail,
            )
