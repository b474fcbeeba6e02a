"""Four courses of a job with a known answer: a rank slows, nothing happens, harm, and a lie.

Each is a function of a seed and returns figures; tests bound them, a benchmark prints them.
"""

from dataclasses import dataclass, replace

from libra.attention.shape import PoolShape
from tests.loop import Loop
from tests.loop_course import Course
from tests.loop_harm import price
from tests.loop_network import Network
from tests.loop_world import Event, World

ONSET = 60
SLOWDOWN = 1.5
EVEN, EVEN_WINDOW = 1.10, 5
_PRICED_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank slows at ``ONSET``.

    ``named_after`` and ``even_after`` count steps from there, None for never; ``others`` are ranks
    that were flagged as well, at any time.
    """

    rank: int
    named_after: int | None
    even_after: int | None
    others: tuple[int, ...]
    versions: int


@dataclass(frozen=True, kw_only=True)
class Equal:
    """All ranks are equal: what was flagged nevertheless, and how many policies there were."""

    flagged: tuple[int, ...]
    versions: int


@dataclass(frozen=True, kw_only=True)
class Harm:
    """A harmful policy was forced in: steps that ranks ran under it; None where none was."""

    steps_under: int | None
    over_home: float


@dataclass(frozen=True, kw_only=True)
class Lie:
    """One rank lied: the final policy's plans over those of an honest run, by true seconds."""

    over_honest: float
    flagged_honest: tuple[int, ...]


def base_world(seed: int, *, steps: int) -> World:
    """Return eight equal ranks in two pools with uneven documents, on a fair network."""
    return World(
        seed=seed,
        steps=steps,
        shape=PoolShape(dp=8, cp=1, sequences_per_pool=4),
        noise=0.02 + 0.08 * (seed % 5) / 4,
        jitter=0.005,
        hiccups=0.001,
        network=Network(delay_steps=0.3, loss=0.02, resend_steps=2.0),
        batch_steps=2,
        policy_delay_steps=2,
    )


def slow_rank(seed: int) -> SlowRank:
    rank = seed % 8
    world = replace(
        base_world(seed, steps=ONSET + 60),
        events=(Event(step=ONSET, kind="slow", rank=rank, value=SLOWDOWN),),
    )
    course = Loop(world).run()
    return SlowRank(
        rank=rank,
        named_after=course.named_after(rank, ONSET),
        even_after=course.even_after(ONSET, below=EVEN, window=EVEN_WINDOW),
        others=tuple(sorted(course.flagged() - {rank} | _early(course, rank))),
        versions=course.versions,
    )


def equal_ranks(seed: int, *, steps: int) -> Equal:
    """Four ranks, half of the seeds with even lengths: flapping and false alarms show here."""
    world = replace(
        base_world(seed, steps=steps),
        shape=PoolShape(dp=4, cp=1, sequences_per_pool=4),
        sigma=1.4 if seed % 2 else 0.0,
        batch_steps=4,
        by_tile=False,
    )
    course = Loop(world).run()
    return Equal(flagged=tuple(sorted(course.flagged())), versions=course.versions)


def harm(seed: int) -> Harm:
    world = replace(base_world(seed, steps=ONSET + 50), events=(Event(step=ONSET, kind="harm"),))
    course = Loop(world).run()
    under = [course.steps_under(version) for _, version in course.harms]
    return Harm(steps_under=under[0] if under else None, over_home=course.over_home(10))


def lie(seed: int, kind: str) -> Lie:
    """Compare a run in which a rank lies from its first step on with the seed's honest run."""
    rank = seed % 8
    honest = base_world(seed, steps=2 * ONSET)
    told = replace(honest, events=(Event(step=0, kind="lie", rank=rank, name=kind),))
    seconds, flagged = [], set[int]()
    for world in (told, honest):
        loop = Loop(world)
        course = loop.run()
        flagged = flagged or course.flagged() - {rank}
        seconds.append(
            price(
                loop.balancer.job.policy,
                loop.steps_from(world.steps, _PRICED_STEPS),
                loop.shape,
                loop.truth,
            )
        )
    return Lie(over_honest=seconds[0] / seconds[1], flagged_honest=tuple(sorted(flagged)))


def _early(course: Course, rank: int) -> set[int]:
    """Return the rank itself if it was flagged before it was slow."""
    return {own for moment in course.moments[:ONSET] for own in moment.speeds if own == rank}
