"""A job in memory: its brain, its event stream, and the policy that is safe on disk."""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from libra.balancer.broadcast import EventStream
from libra.balancer.events import Event
from libra.balancer.job import Job
from libra.balancer.policy import Policy
from libra.balancer.shown_policy import ShownPolicy
from libra.balancer.step_rows import StepRows
from libra.balancer.tally import Tally
from libra.balancer.waiters import Waiters, Waker

# What agents act on, and so is told only once it is on disk. Reports are told at once.
DECISIONS = frozenset({"policy", "effect", "mode"})
# Decisions of a job that wait for a disk that fails; a page that missed some fetches anew.
_MAX_HELD = 256


class LiveJob:
    """A job with its event stream and the policy that is safe on disk; ``polls`` wait for one.

    Attributes:
        shown: the durable policy, as it is sent.
        tally: what is counted of its events.
        rows: its steps that wait for the disk.
        changes: how often the state has changed; ``stored`` is the count of the durable state.
        used_s: Unix time at which it was last brought back to memory.
        finished: is it kept as one that ended?
        summary: what is stored of it for lists, JSON; short while it is active, since then it is
            in memory.
        gone: it was deleted, and nothing of it may be written.
        writing: is a write of it under way? ``overdue``: was another one due meanwhile?
        waiters: who waits for a change to be durable.
    """

    def __init__(self, job: Job, stream: EventStream, tally: Tally, waker: Waker) -> None:
        self.job = job
        self.stream = stream
        self.tally = tally
        self.rows = StepRows(job)
        self.shown = ShownPolicy(job.policy)
        self.changes = 0
        self.stored = 0
        self.used_s = 0.0
        self.finished = False
        self.summary = msgspec.json.encode({"job": job.name})
        self.gone = False
        self.writing = False
        self.overdue = False
        self.flush_planned = False
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        # Events of decisions that are not durable yet, by the change that they are part of.
        self._held: deque[tuple[int, Event]] = deque(maxlen=_MAX_HELD)
        self._polls = Waiters(waker)

    @property
    def policy(self) -> Policy:
        return self.shown.policy

    @property
    def polls(self) -> int:
        return len(self._polls)

    @property
    def holding(self) -> bool:
        """Does a decision or a request wait for the disk?"""
        return bool(self._held or self.waiters)

    @property
    def dirty(self) -> bool:
        return self.changes > self.stored or len(self.rows) > 0

    def changed(self, events: Sequence[Event], now_s: float) -> bool:
        """Note a change and tell of it; return whether it holds a decision, which is held back."""
        self.changes += 1
        self.rows.collect()
        held = [event for event in events if event.kind in DECISIONS]
        self._held.extend((self.changes, event) for event in held)
        self._tell([event for event in events if event.kind not in DECISIONS], now_s)
        return bool(held)

    def written(self, policy: Policy, changes: int, now_s: float) -> None:
        """The write succeeded: let agents and pages see what it held."""
        self.rows.written()
        self._show(policy, changes, now_s)

    def wake(self) -> None:
        self._polls.wake()

    def retire(self) -> None:
        """Send everyone away who follows it here: it leaves memory, and they find it anew."""
        self.stream.close()
        self.wake()

    async def wait(self, if_none_match: str | None, timeout_s: float) -> ShownPolicy | None:
        """Return the policy if it is not known; else wait for a change or the timeout."""
        if self.shown.is_known(if_none_match) and timeout_s > 0:
            await self._polls.wait(timeout_s)
        return None if self.shown.is_known(if_none_match) else self.shown

    def _show(self, policy: Policy, changes: int, now_s: float) -> None:
        self.stored = max(self.stored, changes)
        if policy != self.policy:
            self.shown = ShownPolicy(policy)
            self.wake()
        durable = []
        while self._held and self._held[0][0] <= changes:
            durable.append(self._held.popleft()[1])
        self._tell(durable, now_s)

    def _tell(self, events: Sequence[Event], now_s: float) -> None:
        """Send events to all that follow the job, and count them."""
        if events:
            self.tally.count(events, next(reversed(self.job.state.log.current(1)), None), now_s)
        for event in events:
            self.stream.publish(event.kind, event.data)
