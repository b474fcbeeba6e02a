"""What people decide about a job: done once it is on disk, or refused with nothing changed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from libra.balancer.drafts import RollbackRequest
from libra.balancer.events import Event
from libra.balancer.flush import Flusher
from libra.balancer.live_job import LiveJob
from libra.balancer.policy import Policy
from libra.balancer.state import Mode
from libra.balancer.storage import DropJob, StoreError, StoreFullError, StoreLike


class Commands:
    """Change jobs by hand. While the store fails everything is refused."""

    def __init__(self, store: StoreLike, flusher: Flusher, clock: Callable[[], float]) -> None:
        self.store = store
        self.flusher = flusher
        self._clock = clock

    def now_s(self) -> float:
        """Return Unix time."""
        return self._clock()

    async def set_mode(self, live: LiveJob, mode: Mode) -> None:
        """Change a job's mode; return once stored. See ``publish`` for a store that fails."""
        self._check_store()
        await self._decide(live, live.job.set_mode(mode, self.now_s()))

    async def publish(
        self, live: LiveJob, policy: Policy, *, author: str = "operator"
    ) -> dict[str, Any]:
        """Publish a policy by hand; return its row once stored.

        Raises:
            StoreError: nothing was changed, or, where the message says so, the write of the change
                failed: it is in force only once a later write succeeds, and until then shown to
                nobody.
        """
        self._check_store()
        events = live.job.publish(policy, self.now_s(), author=author)
        await self._decide(live, events)
        return events[-1].data

    async def roll_back(self, live: LiveJob, request: RollbackRequest) -> dict[str, Any]:
        """Bring back an earlier policy; return its row once stored. See ``publish``, too.

        Raises ``ValueError``, with nothing changed, for a version that is not known.
        """
        self._check_store()
        events = live.job.rollback(
            self.now_s(),
            to_version=request.to_version,
            author=request.author,
            reason=request.reason,
        )
        await self._decide(live, events)
        return events[-1].data

    async def delete(self, live: LiveJob) -> None:
        """Delete all that is stored of a job; raise ``StoreError``, with nothing deleted."""
        self._check_store()
        self.flusher.abandon(live)
        try:
            await asyncio.wrap_future(self.store.submit([DropJob(job=live.job.name)]))
        except StoreError:
            live.gone = False
            self.flusher.changed(live)
            raise

    async def _decide(self, live: LiveJob, events: Sequence[Event]) -> None:
        live.changed(events, self.now_s())
        try:
            await self.flusher.durable(live)
        except StoreError as error:
            raise StoreError(
                f"{error}; the change is not in force, and will be once the store can be written"
            ) from error

    def _check_store(self) -> None:
        # Before the job changes: what is refused must leave no trace.
        if not self.store.healthy:
            raise StoreError("the store cannot be written: nothing was changed")
        if self.store.full:
            raise StoreFullError(f"{self.store.capacity} writes wait for the disk already")
