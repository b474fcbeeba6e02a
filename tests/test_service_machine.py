"""Whatever happens in whatever order: no policy goes back in time, no promised one is lost."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libra.balancer.policy import Policy
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.storage import StoreError
from libra.balancer.store import Store
from libra.balancer.store_settings import StoreSettings
from tests.disk import failing_disk
from tests.running import make_report

Result = TypeVar("Result")

JOBS = st.sampled_from(["a", "b", "c"])
MAX_JOBS, MAX_LOADED = 2, 8


class ServiceMachine(RuleBasedStateMachine):
    """A service on a real file, that crashes, fails to write, forgets jobs and is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.now_s = 1e6
        self.sequence = 0
        self.promised: dict[str, Policy] = {}
        self.seen: dict[str, int] = {}
        self.broken: Any = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    @initialize()
    def start(self) -> None:
        storing = StoreSettings(flush_interval_s=1e6, keep_days=1e6)
        store = Store(SqliteBackend(Path(self.folder.name) / "s.sqlite"))
        self.service = Service(
            store, ServiceSettings(max_jobs=MAX_JOBS), lambda: self.now_s, storing=storing
        )
        self.service.restore()

    @rule(job=JOBS)
    def report(self, job: str) -> None:
        self.sequence += 1

        async def go() -> None:
            for rank in range(2):
                await self.service.report(make_report(job, sequence=self.sequence, rank=rank))

        try:
            self.run(go())
        except StoreError:
            full = len(self.service.jobs) >= MAX_JOBS and job not in self.service.jobs
            assert full or self.broken

    @rule(job=JOBS, pooling=st.booleans())
    def publish(self, job: str, pooling: bool) -> None:
        async def go() -> None:
            live = await self.service.find(job)
            if live is not None:
                await self.service.publish(live, Policy(version=0, pooling=pooling))
                self.promised[job] = live.policy

        if not self.broken:
            self.run(self._until_healthy())
        try:
            self.run(go())
        except StoreError:
            assert self.broken

    @rule(job=JOBS)
    def read(self, job: str) -> None:
        async def go() -> None:
            live = await self.service.find(job)
            if live is None:
                assert self.broken or job not in self.promised
                return
            assert live.policy.version >= self.seen.get(job, 0), "a policy went back in time"
            self.seen[job] = live.policy.version
            if job in self.promised:
                assert live.policy.version >= self.promised[job].version
                if live.policy.version == self.promised[job].version:
                    assert live.policy == self.promised[job]

        self.run(go())

    @rule()
    def flush(self) -> None:
        self.run(self.service.flusher.all_durable(list(self.service.jobs.values())))

    @rule()
    def expire(self) -> None:
        self.now_s += 1000

        async def go() -> None:
            await self.service._upkeep.tick()

        try:
            self.run(go())
        except StoreError:
            assert self.broken

    @rule()
    def crash(self) -> None:
        self.service.forget_memory()
        self.run(self.service.close())
        self.start()

    @precondition(lambda self: not self.broken)
    @rule()
    def restart(self) -> None:
        self.run(self.service.close())
        self.start()

    @precondition(lambda self: not self.broken)
    @rule()
    def break_disk(self) -> None:
        self.broken = failing_disk()
        self.broken.__enter__()

    @precondition(lambda self: bool(self.broken))
    @rule()
    def mend_disk(self) -> None:
        self.broken.__exit__(None, None, None)
        self.broken = None

    @invariant()
    def memory_is_bounded(self) -> None:
        if hasattr(self, "service"):
            assert len(self.service.jobs) <= MAX_JOBS
            assert len(self.service.shelf.loaded) <= MAX_LOADED
            assert not self.service.shelf.loaded.keys() & self.service.jobs.keys()

    def teardown(self) -> None:
        if self.broken:
            self.mend_disk()
        for job in "abc":
            self.read(job)
        self.run(self.service.close())
        self.loop.close()
        self.folder.cleanup()

    async def _until_healthy(self) -> None:
        if not self.service.store.healthy:
            await asyncio.wrap_future(self.service.store.submit([]))


TestService = pytest.mark.fault(ServiceMachine.TestCase)
ServiceMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
