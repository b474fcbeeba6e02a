"""Steps take what the longest way through their operations takes."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.balancer.critical_path import CriticalPath
from libra.balancer.trace_graph import Graph


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    """Draw operations in an order that can be, some of which meet, in up to three steps."""
    count = draw(st.integers(1, 24))
    step = sorted(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    step = [sorted(set(step)).index(own) for own in step]
    meeting: list[int] = []
    for own in range(count):
        joins = own > 0 and step[own - 1] == step[own] and draw(st.booleans())
        meeting.append(meeting[-1] if joins else own)
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = [
        (a, b)
        for a, b in draw(st.lists(pairs, max_size=40))
        if meeting[a] < meeting[b] and step[a] == step[b]
    ]
    work = draw(st.lists(st.floats(0, 10), min_size=count, max_size=count))
    unused = draw(st.sets(st.integers(0, count - 1), max_size=2))
    graph = Graph(
        used=np.array([own not in unused for own in range(count)]),
        meeting=np.unique(meeting, return_inverse=True)[1],
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        exchanges=np.zeros(count, dtype=bool),
        work_s=np.array(work),
        moving_s=np.zeros(count),
    )
    return graph, step


def _longest(graph: Graph, step: list[int]) -> list[float]:
    """Compute each step by asking every operation when it can be over."""
    rows = [row for row in range(len(step)) if graph.used[row]]
    edges = [(int(a), int(b)) for a, b in graph.edges if graph.used[a] and graph.used[b]]

    @cache
    def end(row: int) -> float:
        members = [own for own in rows if graph.meeting[own] == graph.meeting[row]]
        begun = max([end(a) for a, b in edges if b in members], default=0.0)
        return begun + float(graph.work_s[row])

    ends = {own: [end(row) for row in rows if step[row] == own] for own in range(step[-1] + 1)}
    return [max(own, default=0.0) for own in ends.values()]


@settings(deadline=None, max_examples=200)
@given(_graphs())
def test_a_step_is_its_longest_way(drawn: tuple[Graph, list[int]]) -> None:
    """Level by level gives what asking each operation gives, for several durations at once."""
    graph, step = drawn
    path = CriticalPath(graph, np.array(step))
    computed = path.seconds(np.stack([graph.work_s, 2 * graph.work_s], axis=1))

    assert not path.circular.any()
    np.testing.assert_allclose(computed[:, 0], _longest(graph, step))
    np.testing.assert_allclose(computed[:, 1], 2 * computed[:, 0])


def test_a_circle_is_told() -> None:
    """Operations that wait for each other are told by step, and the other steps still computed."""
    graph = Graph(
        used=np.ones(4, dtype=bool),
        meeting=np.arange(4),
        edges=np.array([[0, 1], [1, 0], [2, 3]]),
        exchanges=np.zeros(4, dtype=bool),
        work_s=np.ones(4),
        moving_s=np.zeros(4),
    )
    path = CriticalPath(graph, np.array([0, 0, 1, 1]))

    assert path.circular.tolist() == [True, False]
    assert path.seconds(np.ones((4, 1)))[:, 0].tolist() == [0.0, 2.0]
