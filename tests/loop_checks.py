"""What must hold after every step of any simulated job, whatever befell it."""

from typing import Any

import msgspec

from libra.balancer.job import Job
from libra.balancer.policy import Policy
from tests.loop_course import Course
from tests.loop_world import World

# A change is followed within 40 steps, and then judged over 30.
FOLLOWED_STEPS, JUDGED_STEPS = 40, 30
# Costs that are known to a few percent leave so much beyond plain Ulysses.
WORSE = 1.03
GONE_STEPS = 30
# A rank may be believed to be this slow or fast, in permille.
SPEEDS = (250, 4000)
# Longest list and table of a stored job: 256 policies, points, agents' windows, steps.
MOST_ENTRIES = 512
_EVERY = 60


class Checks:
    """The promises that can be judged from outside; each failure says which one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calm_since = 0
        self._by_hand: set[int] = set()
        self._harms: list[tuple[int, int]] = []

    def disturbed(self, tick: int) -> None:
        """Note that something befell the job."""
        self._calm_since = tick
        # What was under way is not judged by the steps that it had before.
        self._harms = []

    def forced(self, tick: int, version: int, *, harmful: bool) -> None:
        """Note a policy that was published by hand."""
        self.disturbed(tick)
        self._by_hand.add(version)
        if harmful:
            self._harms.append((tick, version))

    def after(self, course: Course, job: Job) -> None:
        """Look at a job after its newest step."""
        tick = course.moments[-1].tick
        self._check_speeds(job.policy)
        self._check_harm(tick, course, job)
        self._check_never_worse(tick, course)
        if tick % _EVERY == _EVERY - 1:
            self._check_memory(job)

    def _check_speeds(self, policy: Policy) -> None:
        if policy.version in self._by_hand or not policy.speeds_permille:
            return
        low, high = min(policy.speeds_permille), max(policy.speeds_permille)
        assert SPEEDS[0] <= low <= high <= SPEEDS[1], f"policy {policy.version} has {low}..{high}"

    def _check_harm(self, tick: int, course: Course, job: Job) -> None:
        if job.mode != "adapt":
            return
        for forced, version in self._harms:
            steps = course.steps_under(version)
            assert steps <= GONE_STEPS + self._slack(), (
                f"harmful policy {version}, forced in at {forced}, still ran after {steps} steps"
            )

    def _check_never_worse(self, tick: int, course: Course) -> None:
        judged = course.moments[-JUDGED_STEPS:]
        if tick - self._calm_since < FOLLOWED_STEPS + JUDGED_STEPS + self._slack():
            return
        if any(moment.mode != "adapt" for moment in judged):
            return
        for name, over in (
            ("slowest ranks' seconds", course.over_home(JUDGED_STEPS)),
            ("skew", course.skew_over_home(JUDGED_STEPS)),
        ):
            assert over <= WORSE, f"{name} are {over:.3f} of plain Ulysses' over {JUDGED_STEPS}"

    def _slack(self) -> int:
        """Return steps that a bad network and slow followers take by themselves."""
        network = self._world.network
        resent = 3 * network.resend_steps if network.loss else 0.0
        way = 3 * network.delay_steps + resent
        return self._world.batch_steps + self._world.policy_delay_steps + round(way)

    def _check_memory(self, job: Job) -> None:
        state = msgspec.msgpack.decode(job.dump(), strict=False)
        most, where = _largest(state, "job")
        assert most <= MOST_ENTRIES, f"{where} has {most} entries"


def _largest(value: Any, name: str) -> tuple[int, str]:
    """Return how many entries the largest list or table within a value has, and its place."""
    if isinstance(value, dict):
        inner = [_largest(own, f"{name}.{key}") for key, own in value.items()]
    elif isinstance(value, list):
        inner = [_largest(own, f"{name}[]") for own in value]
    else:
        return 0, name
    return max([(len(value), name), *inner])
