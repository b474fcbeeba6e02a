"""The whole control loop under a seeded simulation: real job, planner, placement and moments.

Clock, network, kernels and their noise are drawn; nothing sleeps, no thread runs, torch is not
loaded. One tick is one training step of all ranks.

Shapes: W = dp C ranks; N = dp sequences of a step.
"""

import numpy as np

from libra.attention.cost import tile_features
from libra.attention.shape import PoolShape
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.state import Mode
from libra.balancer.wire import Coordinates
from tests.loop_balancer import JOB, Balancer
from tests.loop_checks import Checks
from tests.loop_course import Course, Moment
from tests.loop_harm import harmful_policy
from tests.loop_lies import Liar
from tests.loop_network import Wire
from tests.loop_plans import Work, plan_step
from tests.loop_reading import Reading, Sender
from tests.loop_truth import StepSeconds, Truth
from tests.loop_world import KV_HEADS, Event, Float64, Int64, World

_NOW_S = 1_700_000_000.0
_STORE_EVERY, _TWIN_EVERY = 10, 50
# How far a new attempt goes back, to its last checkpoint.
_SETBACK_STEPS = 4
_HARM_STEPS = 6


class LoopError(AssertionError):
    """A promise was broken; the message has the seed and the step to replay it by."""


class Loop:
    """One simulated job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.course = Course()
        self.balancer = Balancer(world.mode)
        self.shape = world.shape
        self.truth = Truth(world.seed, 1 / np.array(world.speeds or np.ones(self.ranks)))
        self._checks = Checks(world)
        self._wire = Wire(world.network, np.random.default_rng((world.seed, 3)))
        self._rng = np.random.default_rng((world.seed, 4))
        self._published: list[tuple[int, Policy]] = [(-1_000_000, HOME_POLICY)]
        self._now_s = _NOW_S
        self._setback = 0
        self._attempt = 0
        self._begin_attempt()

    @property
    def ranks(self) -> int:
        """W."""
        return self.shape.dp * self.shape.cp

    def run(self) -> Course:
        """Run the world's steps; raise ``LoopError`` for a broken promise."""
        for tick in range(self.world.steps):
            try:
                self._advance(tick)
            except Exception as error:
                told = f"seed {self.world.seed}, step {tick}: {type(error).__name__}: {error}"
                raise LoopError(told) from error
        return self.course

    def steps_from(self, tick: int, count: int) -> list[list[Int64]]:
        """Return the sequences of steps from a tick on."""
        return [
            self.world.lengths(own - self._setback, self.shape.dp)
            for own in range(tick, tick + count)
        ]

    def _advance(self, tick: int) -> None:
        for event in self.world.events:
            if event.step == tick:
                self._befall(event, tick)
        if tick in self.world.crashes:
            self.balancer.crash()
        policy = self._agreed(tick)
        (lengths,) = self.steps_from(tick, 1)
        work = plan_step(lengths, self.shape, policy, by_tile=self.world.by_tile)
        took = self._measure(work, tick)
        self._now_s += took.step_s
        self._report(tick, policy, work, took)
        for report in self._wire.arrived(tick):
            self.balancer.deliver(report, self._now_s)
        self._store(tick)
        self._note(tick, policy, work, lengths)
        self._checks.after(self.course, self.balancer.job)

    def _befall(self, event: Event, tick: int) -> None:
        rank = event.rank % self.ranks
        self._checks.disturbed(tick)
        match event.kind:
            case "slow":
                own = self.world.speeds[rank] if self.world.speeds else 1.0
                self.truth.slowness[rank] = event.value / own
            case "throttle":
                self.truth.throttle = event.value
            case "backend":
                self.truth.change_backend()
            case "lie":
                self._liars[rank] = Liar(event.name, self._rng)
                self.balancer.liars.add((self._attempt, rank))
            case "mode":
                self.balancer.set_mode(_mode(event.name), self._now_s)
            case "restart":
                self._restart(int(event.value))
            case "harm":
                self._force_harm(tick)

    def _restart(self, dp: int) -> None:
        """Begin another attempt with other ranks, from the last checkpoint."""
        size = min(dp, self.shape.sequences_per_pool)
        self.shape = PoolShape(dp=dp, cp=self.shape.cp, sequences_per_pool=size)
        self.truth.slowness = np.ones(self.ranks)
        self._attempt += 1
        self._setback += _SETBACK_STEPS
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._liars: dict[int, Liar] = {}
        self._senders = [
            Sender(
                job=JOB,
                attempt=self._attempt,
                rank=rank,
                world_size=self.ranks,
                coordinates=self._coordinates(rank),
                batch_steps=self.world.batch_steps,
            )
            for rank in range(self.ranks)
        ]

    def _coordinates(self, rank: int) -> Coordinates:
        dp, cp = divmod(rank, self.shape.cp)
        return Coordinates(dp=dp, cp=cp, pool=self.shape.pool(dp))

    def _force_harm(self, tick: int) -> None:
        steps = self.steps_from(tick, _HARM_STEPS)
        policy = harmful_policy(self._rng, self._agreed(tick), steps, self.shape, self.truth)
        if policy is None:
            return
        self.balancer.publish(policy, self._now_s)
        version = self.balancer.job.policy.version
        self.course.harms.append((tick, version))
        self._checks.forced(tick, version, harmful=True)
        self._learn_policy(tick)

    def _agreed(self, tick: int) -> Policy:
        """Return the policy that all ranks agreed on for a step: one of some steps ago."""
        known = tick - self.world.policy_delay_steps
        return next(policy for when, policy in reversed(self._published) if when <= known)

    def _learn_policy(self, tick: int) -> None:
        policy = self.balancer.job.policy
        if policy != self._published[-1][1]:
            self._published.append((tick, policy))

    def _measure(self, work: Work, tick: int) -> StepSeconds:
        world = self.world
        rng = np.random.default_rng((world.seed, 5, tick))
        return self.truth.measure(
            work, rng, noise=world.noise, jitter=world.jitter, hiccups=world.hiccups
        )

    def _report(self, tick: int, policy: Policy, work: Work, took: StepSeconds) -> None:
        bounds = np.searchsorted(work.rank, np.arange(self.ranks + 1))
        for rank, sender in enumerate(self._senders):
            own = slice(bounds[rank], bounds[rank + 1])
            reading = Reading(
                step=tick - self._setback,
                policy_version=policy.version,
                kinds=self.truth.kinds,
                features=work.features[own],
                seconds=took.calls[:, own],
                step_s=took.step_s * (1 + 1e-3 * self._rng.random()),
                wait_s=float(took.waits[rank]),
                home=work.home[rank],
                sent_bytes=int(work.sent_bytes[rank]),
            )
            if rank in self._liars:
                reading = self._liars[rank].tell(reading)
            report = sender.add(reading)
            if report:
                self._wire.send(report, tick)

    def _store(self, tick: int) -> None:
        """Store now and then, and see that what is stored is all."""
        self._learn_policy(tick)
        if tick % _STORE_EVERY == 0:
            self.balancer.check_counts()
            self.balancer.flush()
        if tick % _TWIN_EVERY == self.world.seed % _TWIN_EVERY:
            self.balancer.split()

    def _note(self, tick: int, policy: Policy, work: Work, lengths: list[Int64]) -> None:
        seconds, home = self.truth.expected(work), self._home_seconds(lengths)
        job = self.balancer.job
        rows = job.ranks(1)["ranks"]
        moment = Moment(
            tick=tick,
            version=policy.version,
            latest=job.policy.version,
            mode=job.mode,
            slowest=float(seconds.max()),
            mean=float(seconds.mean()),
            home_slowest=float(home.max()),
            home_mean=float(home.mean()),
            speeds={row["rank"]: row["speed"] for row in rows if row["speed"] != 1.0},
        )
        self.course.moments.append(moment)

    def _home_seconds(self, lengths: list[Int64]) -> Float64:
        """Return [W] true kernel seconds under plain Ulysses, sequences in order."""
        per_head = np.stack([tile_features(0, own).sum(axis=0) for own in lengths])
        kv_heads = KV_HEADS / self.shape.cp
        seconds = per_head @ self.truth.coefficients.sum(axis=0) * kv_heads
        return np.repeat(seconds, self.shape.cp) * self.truth.slowness * self.truth.throttle


def _mode(name: str) -> Mode:
    match name:
        case "observe" | "adapt" | "frozen":
            return name
    raise ValueError(f"mode={name!r}: must be observe, adapt or frozen")
