"""Which of several balancers answers: a task beside the server that stands by, leads, steps down.

Two never answer at once. A leader answers until ``lead_timeout_s`` after it sent the last word
that the database confirmed, by a clock that goes on while it sleeps; its lease in the database
ends later than that, and who takes over answers only after that lease. So a reader that goes from
one balancer to the next never goes back in time: what the first one showed was in the database
when the second one read it. The data does not rest on clocks: the generation guards it.
"""

import asyncio
import logging
import random
from concurrent.futures import Future
from typing import Literal, Protocol, TypeVar

from libra.balancer.lease import Lease
from libra.balancer.storage import Backend, LostLeadError, StoreError, StoreLike

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Role = Literal["active", "standby"]


class SharedBackend(Backend, Protocol):
    """A backend that several balancers share; a transaction without writes holds the lead."""

    @property
    def lease(self) -> Lease | None: ...

    def now_s(self) -> float:
        """Return the time that leases are told in."""
        ...


class Led(Protocol):
    """What a service does when its balancer's role changes."""

    role: Role

    @property
    def store(self) -> StoreLike: ...

    def restore(self) -> None:
        """Read the jobs that the store holds; called in a thread of its own."""
        ...

    def start(self) -> None:
        """Begin what goes on beside requests."""
        ...

    def hang_up(self) -> None:
        """End event streams and long polls; what is in memory stays."""
        ...

    def forget_memory(self) -> None:
        """Drop all jobs, unwritten, and hang up: another balancer has them."""
        ...


class Leadership:
    """Let a service answer while its balancer leads.

    Args:
        lead_timeout_s: the backend's; several words to the database fit into it.
    """

    def __init__(self, service: Led, backend: SharedBackend, lead_timeout_s: float) -> None:
        self._service = service
        self._backend = backend
        self._retry_s = min(1.0, lead_timeout_s / 5)
        self._restored = False
        self._trouble = ""
        service.role = "standby"

    def look(self) -> Role:
        """Return what this balancer is at this moment, and tell the service of a change.

        Every request asks: after a sleep the first one may come before the task runs.
        """
        lease = self._backend.lease
        leads = self._restored and lease is not None and lease.holds(self._backend.now_s())
        role: Role = "active" if leads else "standby"
        if role != self._service.role:
            self._service.role = role
            logger.info("This balancer is %s in the store %s.", role, self._backend.label)
            if role == "standby":
                self._service.hang_up()
        return role

    async def run(self) -> None:
        """Lead whenever nobody else does, until cancelled."""
        while True:
            try:
                if await self._wait(self._service.store.ask(lambda backend: backend.try_lead())):
                    await self._lead()
                self._report("")
            except StoreError as error:
                self._report(str(error))
            except Exception:
                logger.exception("Leading failed; this balancer stands by.")
            await self._pause()

    async def _lead(self) -> None:
        """Read what is stored, and keep the lead until another balancer has it."""
        try:
            await asyncio.to_thread(self._service.restore)
            self._service.start()
            self._restored = True
            while True:
                await self._confirm()
                self.look()
                await self._pause()
        except Exception:
            # Not when cancelled: a balancer that stops writes what it has first.
            self._restored = False
            self.look()
            self._service.forget_memory()
            raise

    async def _confirm(self) -> None:
        """Hear from the database; a silent one is no reason to forget what is in memory."""
        try:
            await self._wait(self._service.store.submit([]))
            self._report("")
        except LostLeadError:
            raise
        except StoreError as error:
            self._report(str(error))

    async def _wait(self, asked: "Future[Answer]") -> Answer:
        """Wait for the store's thread; look at the role however long that takes."""
        answer = asyncio.wrap_future(asked)
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=self._retry_s)
                self.look()
            return answer.result()
        finally:
            answer.cancel()

    async def _pause(self) -> None:
        await asyncio.sleep(self._retry_s * random.uniform(0.8, 1.2))

    def _report(self, trouble: str) -> None:
        """Log what is wrong once, not every second."""
        if trouble and trouble != self._trouble:
            logger.warning("%s.", trouble)
        self._trouble = trouble
