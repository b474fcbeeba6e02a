"""The whole control loop, for any seed: ranks, noise, network, faults, lies and restarts.

``LIBRA_LOOP_SEED=n pytest tests/test_loop.py`` replays one seed.
"""

from dataclasses import replace

import pytest

from tests.loop import Loop, LoopError
from tests.loop_checks import Checks
from tests.loop_course import Course
from tests.loop_seeds import chosen_seeds, run_random, run_seeds
from tests.loop_world import Event, World, draw_world


@pytest.mark.timeout(900)
def test_no_world_breaks_a_promise() -> None:
    """Versions grow along one chain and only where allowed, nothing is counted twice, a refused
    report changes nothing, a restart loses nothing acknowledged and decides alike, memory is
    bounded, harm is undone, and ranks never take longer than under plain Ulysses.
    """
    broken = run_seeds(run_random, chosen_seeds(range(200)), timeout_s=880)

    assert not any(broken), "\n".join(filter(None, broken))


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_no_world_of_thousands_breaks_a_promise() -> None:
    """The same for ten thousand seeds."""
    broken = run_seeds(run_random, chosen_seeds(range(10_000)), timeout_s=6 * 3600 - 60)

    assert not any(broken), "\n".join(filter(None, broken))


def test_a_seed_replays() -> None:
    """A seed gives the same course twice, and an error names the seed and the step."""
    world = replace(draw_world(11), steps=60)
    first, second = Loop(world).run(), Loop(world).run()
    assert first.moments == second.moments
    assert first.harms == second.harms

    impossible = replace(world, events=(Event(step=7, kind="mode", name="asleep"),))
    with pytest.raises(LoopError, match="seed 11, step 7: ValueError: mode='asleep'"):
        Loop(impossible).run()


def test_worlds_are_told_apart() -> None:
    """Two hundred seeds draw every event, small and large jobs, good and bad networks."""
    worlds = [draw_world(seed) for seed in range(200)]

    kinds = {event.kind for world in worlds for event in world.events}
    assert kinds == {"slow", "throttle", "backend", "harm", "lie", "restart", "mode"}
    sizes = {world.shape.dp * world.shape.cp for world in worlds}
    assert min(sizes) == 2
    assert max(sizes) >= 14
    assert {world.network.loss for world in worlds} == {0.0, 0.05, 0.3}
    assert {world.sigma for world in worlds} == {0.0, 1.0, 1.4, 1.8}


def test_harm_that_stays_is_noticed() -> None:
    """The checks see a harmful policy that nobody takes back: here nobody may."""
    loop = Loop(World(seed=3, steps=120, mode="observe", events=(Event(step=20, kind="harm"),)))
    course = loop.run()
    assert course.harms
    assert course.over_home(30) > 1.05

    checks = Checks(loop.world)
    checks.forced(20, course.harms[0][1], harmful=True)
    loop.balancer.job.set_mode("adapt", 0.0)
    with pytest.raises(AssertionError, match="harmful policy 1, forced in at 20, still ran"):
        checks.after(course, loop.balancer.job)
    quiet = Checks(loop.world)
    adapted = Course(moments=[replace(moment, mode="adapt") for moment in course.moments])
    with pytest.raises(AssertionError, match="slowest ranks' seconds are 1"):
        quiet.after(adapted, loop.balancer.job)
