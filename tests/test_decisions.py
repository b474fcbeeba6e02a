"""The job's store keeps what ranks still need, and nothing else, through skips and restarts."""

import contextlib
import functools
import itertools
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.agent.agreement import agree, confirm
from libra.agent.decisions import KEPT_NAMES
from libra.balancer.policy import Policy
from tests.stores import WatchedStore, serve

KEPT = 4


def policy(version: int) -> Policy:
    return Policy(version=version, pooling=True)


def decide(store: Any, step: int, version: int, attempt: int = 0) -> int:
    """Return the version that this rank is told."""
    propose = functools.partial(policy, version)
    chosen = agree(
        store, attempt=attempt, step=step, propose=propose, timeout_s=60.0, kept_steps=KEPT
    )
    return chosen.version


def keys(store: Any, part: str) -> set[str]:
    prefix = f"libra/train/{part}/"
    return {key.removeprefix(prefix) for key in store.list_keys() if key.startswith(prefix)}


def versions(store: Any) -> list[int]:
    """Return the versions of all policies whose bodies are in the store."""
    known = {policy(version).checksum: version for version in range(200)}
    return sorted(known[key.split("/")[-1]] for key in keys(store, "body"))


@pytest.fixture
def store() -> Any:
    return serve()


def test_old_steps_and_bodies_are_removed(store: Any) -> None:
    """However many policies a long job sees, those of two pages of steps stay, and no others."""
    for step in range(100):
        decide(store, step, version=step)

        assert len(keys(store, "step")) <= 2 * KEPT
        assert set(range(step - KEPT, step + 1)) & set(range(100)) <= set(versions(store))
        assert len(versions(store)) <= 2 * KEPT
    for step in range(100, 100 + 2 * KEPT):
        decide(store, step, version=100)

    assert versions(store) == [100, 100]
    assert len(store.list_keys()) == 2 * KEPT + 2 + 2


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, KEPT), max_size=12)),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 60),
)
def test_skipped_steps_and_restarts_leave_nothing(
    attempts: list[tuple[int, list[int]]], start: int
) -> None:
    """Attempts that begin anywhere and skip steps leave what two pages hold; the last, its own."""
    store, version, attempt = serve(), 0, 0
    for skipped_attempts, strides in attempts:
        attempt, step = attempt + 1 + skipped_attempts, start
        for stride in strides:
            version, step = version + 1, step + stride
            assert decide(store, step, version, attempt) == version
            assert decide(store, step, 199, attempt) == version
        assert len(store.list_keys()) <= 2 * KEPT + 2 + 2 * KEPT
        start = max(0, step - 30)
    for step in range(60, 60 + 2 * KEPT):
        decide(store, step, version=0, attempt=attempt + 1)

    assert versions(store) == [0, 0]
    assert len(store.list_keys()) == 2 * KEPT + 2 + 2
    assert {key.split("/")[0] for key in keys(store, "body")} == {str(attempt + 1)}


def test_who_comes_too_late_is_refused(store: Any) -> None:
    """A rank of a replaced attempt, or more steps behind than kept, never decides alone."""
    for step in range(3 * KEPT):
        decide(store, step, version=1)
    for late in (0, KEPT - 1):
        with pytest.raises(RuntimeError, match="steps behind"):
            decide(store, late, version=2)

    decide(store, 2 * KEPT, version=3, attempt=1)

    with pytest.raises(RuntimeError, match="attempt 0, number 8, is of an attempt that was"):
        decide(store, 2 * KEPT, version=1)
    with pytest.raises(RuntimeError, match="replaced"):
        # Its slot is still the old attempt's, the page is not.
        decide(store, 3 * KEPT - 1 + 2 * KEPT, version=9)


@pytest.mark.parametrize("versions_of_page", [(1,), (1, 2, 3)])
def test_a_rank_may_die_at_any_call(versions_of_page: tuple[int, ...]) -> None:
    """Wherever in a decision a rank dies, the next one decides or follows, and nothing is left."""
    calls = 0
    while True:
        store = serve()
        for step in range(2 * KEPT):
            decide(store, step, version=versions_of_page[step % len(versions_of_page)])
        left = iter(range(calls))

        def die(name: str, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyError(name)

        try:
            decide(WatchedStore(store, die), 2 * KEPT, version=5)
        except KeyError:
            died = True
        else:
            died = False
        assert decide(store, 2 * KEPT, version=6) in (5, 6)
        for step in range(2 * KEPT, 4 * KEPT):
            assert decide(store, step, version=7) in (5, 6, 7)
        for step in range(4 * KEPT, 6 * KEPT):
            decide(store, step, version=8)
        assert versions(store) == [8, 8]
        assert len(store.list_keys()) == 2 * KEPT + 2 + 2
        if not died:
            break
        calls += 1

    assert calls >= 10


def test_a_straggler_that_adds_to_a_replaced_page_leaves_nothing() -> None:
    """A body set while, or after, a new attempt removes its page is removed by one of the two.

    The straggler stops at one of its calls about the page; then the new attempt's rank runs up to
    one of its own; then the straggler ends, and after it the rank.
    """
    for late_stop, new_stop in itertools.product(range(2, 8), range(2, 12)):
        store = serve()
        for step in range(KEPT):
            decide(store, step, version=1)
            decide(store, step + KEPT, version=1)
        late, new = Stop(store, late_stop), Stop(store, new_stop)
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(decide, late.store, 2 * KEPT, version=2)
            late.reached(asked)
            taken = pool.submit(decide, new.store, 0, version=3, attempt=1)
            new.reached(taken)
            late.go_on.set()
            # Refused or served, as the moment has it.
            with contextlib.suppress(RuntimeError):
                assert asked.result(60) == 2
            new.go_on.set()
            assert taken.result(60) == 3
        for step in range(2 * KEPT):
            decide(store, step, version=3, attempt=1)

        assert versions(store) == [3, 3]


class Stop:
    """A store that stops its rank before its nth call."""

    def __init__(self, store: Any, nth: int) -> None:
        self.store = WatchedStore(store, self._call)
        self._left, self._stopped, self.go_on = nth, threading.Event(), threading.Event()

    def _call(self, name: str) -> None:
        if self._left == 0:
            self._stopped.set()
            assert self.go_on.wait(60)
        self._left -= 1

    def reached(self, ending: Future[int]) -> None:
        """Wait until the rank has stopped, or has ended before."""
        ending.add_done_callback(lambda _: self._stopped.set())
        assert self._stopped.wait(60)


def test_a_step_costs_few_calls(store: Any) -> None:
    """Four calls on the rank that decides and two on the others; more for a new policy or page."""

    def count(step: int, version: int) -> int:
        calls: Counter[str] = Counter()
        decide(WatchedStore(store, lambda name: calls.update([name])), step, version)
        return calls.total()

    assert count(0, version=1) <= 10
    assert [count(1, version=1), count(1, version=1), count(1, version=2)] == [3, 2, 4]
    assert count(2, version=2) <= 10
    assert count(KEPT, version=1) <= 10
    decide(store, 2 * KEPT - 1, version=1)
    # Two bodies are deleted, each twice.
    assert count(2 * KEPT, version=1) <= 14
    assert [count(2 * KEPT + 1, version=1), count(2 * KEPT + 1, version=1)] == [4, 2]


def test_the_newest_names_are_kept(store: Any) -> None:
    """Names, epochs as a rule, take one key; the newest of the newest attempt are compared."""
    told = functools.partial(confirm, store, timeout_s=60.0)
    for epoch in range(3 * KEPT_NAMES):
        told(attempt=1, name=str(epoch), value="a")
    for epoch in range(2 * KEPT_NAMES, 3 * KEPT_NAMES):
        with pytest.raises(RuntimeError, match="first one a"):
            told(attempt=1, name=str(epoch), value="b")
    with pytest.raises(RuntimeError, match="replaced"):
        told(attempt=0, name="0", value="a")
    told(attempt=1, name="0", value="b")

    assert store.list_keys() == ["libra/train/confirmed"]


@pytest.mark.parametrize(
    ("given_settings", "match"),
    [({"attempt": -1}, "attempt=-1"), ({"kept_steps": 0}, "kept_steps=0")],
)
def test_settings_that_cannot_be_are_refused(
    store: Any, given_settings: dict[str, Any], match: str
) -> None:
    """The error names the setting, its value and what is allowed."""
    good: dict[str, Any] = {"attempt": 0, "kept_steps": 1}
    with pytest.raises(ValueError, match=f"{match}: must be at least"):
        agree(store, step=0, propose=lambda: policy(1), timeout_s=1.0, **(good | given_settings))
