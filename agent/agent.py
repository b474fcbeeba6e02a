"""The agent: ties meter, reporter and follower to one training process.

Nothing here raises into, blocks or slows the training loop, however the balancer behaves.
"""

import asyncio
import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, cast

import msgspec

from libra.agent.background import Background
from libra.agent.channel import Channel
from libra.agent.direct import Direct, Outlet
from libra.agent.follower import Follower
from libra.agent.harmless import harmless
from libra.agent.meeting_place import meeting_place
from libra.agent.meter import Clock, StepMeter
from libra.agent.relay import Relay
from libra.agent.relay_client import RelayClient
from libra.agent.reporter import Reporter
from libra.agent.settings import AgentSettings, settings_from_env
from libra.attention.observer import Observer
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.wire import StepTotals

logger = logging.getLogger(__name__)
_NO_TOTALS = cast("StepTotals | None", None)


class Observed(Protocol):
    """What ``attach`` needs of the attention operator."""

    observer: Observer | None


class PolicyTaker(Protocol):
    """What ``attach`` needs of the sampler."""

    policy_source: Callable[[], Policy]


class Agent:
    """One process's agent: timings out, policies in.

    Without settings it is disabled: its methods do nothing and it has no thread. It is disabled
    in forked children too, which are loader workers, not ranks.

    Args:
        settings: None for a disabled agent.
        clock: of the meter.

    Attributes:
        meter: this rank's timings, also of a disabled agent, whose meter nobody feeds.
        failed: an exception of its own switched the agent off; no method raises one.
    """

    def __init__(self, settings: AgentSettings | None, *, clock: Clock = "wall") -> None:
        self.meter = StepMeter(clock)
        self.failed = False
        self._background: Background | None = None
        self._forked = False
        self._policy: Callable[[], Policy] = lambda: HOME_POLICY
        if settings is not None:
            self._start(settings)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        clock: Clock = "wall",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Self:
        """Return the agent that the environment asks for; never raises on what it says.

        LIBRA_BALANCER is the balancer's address, absent is off; LIBRA_JOB, LIBRA_RUN and
        LIBRA_ATTEMPT name the job, else the scheduler's variables do; LIBRA_PP_RANK is the rank's
        place in a pipeline, and LIBRA_AGENT=off switches off. ``settings_from_env`` has the rest.
        """
        try:
            settings = settings_from_env(environ, rank=rank, world_size=world_size)
        except ValueError as error:
            logger.warning("The agent is off: %s.", error)
            settings = None
        except Exception:
            logger.exception("The agent is off.")
            settings = None
        return cls(settings, clock=clock)

    @property
    def enabled(self) -> bool:
        off = self._forked or self.failed or self.meter.failed
        return self._background is not None and not off

    @property
    def policy(self) -> Policy:
        """The newest policy from the balancer; the home policy until one came."""
        return self._newest()

    @harmless(None)
    def attach(self, attention: Observed, sampler: PolicyTaker) -> None:
        """Watch the attention operator and propose policies to the sampler.

        Reports begin once the ranks of the default group have found which launch this is.
        """
        if not self.enabled:
            return
        attention.observer = self.meter
        sampler.policy_source = self._newest
        pools: Any = getattr(sampler, "pools", None)
        reporter = self._reporter
        if pools is not None:
            reporter.coordinates = msgspec.structs.replace(
                reporter.coordinates, dp=pools.dp_rank, cp=pools.cp_rank, pool=pools.pool
            )
        # Only who has torch loaded has a group; the agent itself never loads it.
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            from libra.agent.joining import join_beside

            join_beside(reporter, getattr(sampler, "store", None))
        reporter.attached = True

    @harmless(_NO_TOTALS)
    def end_step(self, seconds: float | None = None) -> StepTotals | None:
        """Close the meter's step; without this the next step's first batch does."""
        return self.meter.end_step(seconds) if self.enabled else None

    @harmless(None)
    def close(self) -> None:
        """Report what is left and stop, within ``close_timeout_s`` and a little.

        A step still open is not reported: nobody knows how much of it is done.
        """
        if self._background is None or self._forked:
            return
        background, self._background = self._background, None
        self.meter.settle()
        atexit.unregister(self.close)
        self.meter.sink = None
        ended = background.stop(self._close_timeout_s + 0.3)
        unsent = self._reporter.unsent_steps
        if unsent or not ended:
            logger.warning("The agent stopped with %d step(s) not reported.", unsent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @harmless(HOME_POLICY)
    def _newest(self) -> Policy:
        return self._policy()

    @harmless(None)
    def _start(self, settings: AgentSettings) -> None:
        channel = Channel(settings)
        follower = Follower(settings, channel)
        direct = Direct(settings, channel, follower.hint)
        outlet, relay = _outlet(settings, direct, follower)
        reporter = Reporter(settings, self.meter, outlet)

        async def last() -> None:
            try:
                await asyncio.gather(reporter.flush(), *([relay.close()] if relay else []))
            finally:
                if isinstance(outlet, RelayClient):
                    outlet.close()
                await channel.close()
                await asyncio.sleep(0)  # connections end in the loop's next turn

        background = Background(
            *([relay.run] if relay else []),
            reporter.run,
            follower.run,
            last=last,
            last_timeout_s=settings.close_timeout_s,
        )
        try:
            background.start()
        except RuntimeError as error:
            logger.warning("The agent is off: %s.", error)
            return
        self._reporter = reporter
        self._background = background
        self._close_timeout_s = settings.close_timeout_s
        self._policy = lambda: follower.policy
        self.meter.sink = reporter.push
        atexit.register(self.close)
        _disable_in_children(self)


def _outlet(
    settings: AgentSettings, direct: Direct, follower: Follower
) -> tuple[Outlet, Relay | None]:
    """Return where this rank's reports go: the node's relay, which it may be itself."""
    path = meeting_place(settings)
    if path is None:
        return direct, None
    if settings.local_rank > 0:
        return RelayClient(settings, path, direct, follower), None
    relay = Relay(settings, path, direct, follower)
    return relay, relay


def _disable_in_children(agent: Agent) -> None:
    """Switch the agent off in every child that this process forks."""
    reference = weakref.ref(agent)

    def disable() -> None:
        child = reference()
        if child is not None:
            # The background is kept and never closed: its poller is the parent's own.
            child._forked = True
            child.meter.sink = None

    os.register_at_fork(after_in_child=disable)
