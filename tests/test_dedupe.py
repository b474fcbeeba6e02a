"""An agent's reports are told apart in a bounded number of words, whatever their order."""

import numpy as np

from libra.balancer.dedupe import AgentState


def test_every_number_is_new_once() -> None:
    """In whatever order numbers come, each is new once, and without gaps one word holds them."""
    agent = AgentState()
    order = np.random.default_rng(0).permutation(200).tolist()

    for sequence in order:
        assert not agent.has(sequence)
        agent.add(sequence)
        assert agent.has(sequence)

    assert (agent.floor, agent.ahead) == (199, ())


def test_a_gap_that_never_fills_is_given_up() -> None:
    """Number 0 is lost; memory stays bounded and no later number counts as seen."""
    agent = AgentState()
    for sequence in range(1, 1000):
        assert not agent.has(sequence)
        agent.add(sequence)

    assert (agent.floor, agent.ahead) == (999, ())
    assert agent.has(0)


def test_many_gaps_are_bounded_too() -> None:
    """An agent that loses every other report takes bounded memory; the newest are told apart."""
    agent = AgentState()
    for sequence in range(0, 4000, 2):
        agent.add(sequence)

    assert len(agent.ahead) <= 256
    assert agent.has(3998)
    assert not agent.has(3997)
