"""What every store promises, whatever keeps it: each test runs on all of them."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libra.balancer.postgres_store import PostgresBackend
from libra.balancer.storage import Backend, DropJob, PutJob, PutStep, StoreError, Write
from tests.postgres import PostgresServer, running_postgres

# Each example of a property has a place of its own.
_numbers = count(1)
# Opens one place; the argument tells places apart.
Open = Callable[[int], Backend]

WRITES = st.one_of(
    st.builds(
        PutJob,
        job=st.sampled_from("ab"),
        at_s=st.floats(0, 1e10),
        core=st.binary(max_size=8),
        summary=st.binary(max_size=8),
        finished=st.booleans(),
    ),
    st.builds(
        PutStep,
        job=st.sampled_from("ab"),
        attempt=st.integers(0, 1),
        step=st.integers(0, 2),
        at_s=st.floats(0, 1e10),
        body=st.binary(max_size=8),
    ),
    st.builds(DropJob, job=st.sampled_from("ab")),
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "sqlite":
        module: Any = pytest.importorskip("libra.balancer.sqlite_store")
        return lambda number: module.SqliteBackend(tmp_path / f"{number}.sqlite")
    server: PostgresServer = request.getfixturevalue("server")
    address = server.address(server.new_database())
    return lambda number: PostgresBackend(address, schema=f"libra_{number}")


@pytest.fixture
def backend(open_place: Open) -> Iterator[Backend]:
    """A backend that leads."""
    with closing(open_place(0)) as backend:
        assert backend.try_lead()
        yield backend


def put_job(job: str = "j", *, at_s: float = 1.0, **changes: Any) -> PutJob:
    values: dict[str, Any] = {"core": b"core", "summary": b"{}"} | changes
    return PutJob(job=job, at_s=at_s, **values)


def put_step(step: int, *, job: str = "j", attempt: int = 0, body: bytes = b"s") -> PutStep:
    return PutStep(job=job, attempt=attempt, step=step, at_s=float(step), body=body)


def steps_of(backend: Backend, job: str = "j", last_steps: int = 1000) -> list[bytes]:
    stored = backend.load(job, last_steps=last_steps)
    assert stored is not None
    return stored.steps


class Torn(list[Write]):
    """Writes of which the last never comes."""

    def __iter__(self) -> Iterator[Write]:
        yield from super().__iter__()
        raise RuntimeError("torn")


def test_what_was_written_is_there_when_it_is_opened_again(open_place: Open) -> None:
    """Names of any letters, empty and large bodies, and steps in the order of their writing."""
    large = bytes(range(256)) * 8192
    bodies = [b"first", b"", large]
    with closing(open_place(0)) as backend:
        assert backend.try_lead()
        backend.transact([put_job("a'b%s \u00fc", at_s=1.25, core=large, summary=b"\x00\xff")])
        order = [
            put_step(s, job="a'b%s \u00fc", body=b) for s, b in zip((9, 2, 5), bodies, strict=True)
        ]
        backend.transact(order)
    with closing(open_place(0)) as backend:
        stored = backend.load("a'b%s \u00fc", last_steps=10)

        assert stored is not None
        assert (stored.at_s, stored.core, stored.steps) == (1.25, large, bodies)
        assert steps_of(backend, "a'b%s \u00fc", 2) == bodies[1:]
        assert backend.load("other", last_steps=10) is None


def test_a_step_that_is_written_again_keeps_its_place(backend: Backend) -> None:
    """The same step of another attempt is another one."""
    backend.transact([put_job(), put_step(1, body=b"1"), put_step(2, body=b"2")])
    backend.transact([put_step(1, body=b"1 again"), put_step(1, attempt=1, body=b"1 anew")])

    assert steps_of(backend) == [b"1 again", b"2", b"1 anew"]


def test_a_transaction_is_written_whole_or_not_at_all(backend: Backend) -> None:
    """And the next one is not harmed by one that failed."""
    backend.transact([put_job(core=b"before"), put_step(0)])
    with pytest.raises(RuntimeError, match="torn"):
        backend.transact(
            Torn([put_job(core=b"after"), put_step(1), DropJob(job="j"), put_job("k")])
        )

    stored = backend.load("j", last_steps=10)
    assert stored is not None
    assert (stored.core, stored.steps) == (b"before", [b"s"])
    assert backend.load("k", last_steps=10) is None
    backend.transact([put_job("k")])
    assert [summary.job for summary in backend.summaries()] == ["j", "k"]


def test_what_cannot_be_written_changes_nothing(backend: Backend) -> None:
    """Though writes before it in the same transaction could have been."""
    backend.transact([put_job(core=b"before")])
    with pytest.raises(Exception):  # noqa: B017, PT011
        backend.transact([put_job(core=b"after"), put_step(2**80)])

    stored = backend.load("j", last_steps=1)
    assert stored is not None
    assert (stored.core, stored.steps) == (b"before", [])
    backend.transact([])


def test_summaries_tell_of_jobs_without_reading_them(backend: Backend) -> None:
    """The bytes are those of the core, the summary and the steps."""
    backend.transact([put_job("a", summary=b"[1]"), put_job("b", at_s=7.5, finished=True)])
    backend.transact([put_step(n, job="b", body=b"x" * 1000) for n in range(3)])
    a, b = backend.summaries()

    assert (a.job, a.at_s, a.finished, a.summary) == ("a", 1.0, False, b"[1]")
    assert (b.job, b.at_s, b.finished, b.summary) == ("b", 7.5, True, b"{}")
    assert (a.num_bytes, b.num_bytes) == (7, 3006)
    backend.transact([put_step(0, job="b", body=b"x")])
    assert backend.summaries()[1].num_bytes == 2007


def test_only_old_finished_jobs_are_dropped(backend: Backend) -> None:
    """Those that are kept, that are new or that have not ended stay."""
    ended = [put_job("old", finished=True), put_job("kept", finished=True)]
    backend.transact([*ended, put_job("new", at_s=9.0, finished=True), put_job("going")])
    backend.transact([put_step(0, job="old"), put_step(0, job="kept")])

    assert backend.prune(before_s=5.0, max_bytes=1 << 30, keep={"kept"}) == ["old"]
    assert [summary.job for summary in backend.summaries()] == ["going", "kept", "new"]
    backend.transact([put_job("old")])
    assert steps_of(backend, "old") == []
    assert steps_of(backend, "kept") == [b"s"]


def test_the_oldest_steps_go_when_bytes_are_too_many(backend: Backend) -> None:
    """Of any job, also of one that is kept; cores stay, and the newest steps that fit."""
    body = b"x" * 4096
    for begin in range(0, 3000, 1000):
        names = [put_step(n, job=("a", "b")[n % 2], body=body) for n in range(begin, begin + 1000)]
        backend.transact([put_job("a"), put_job("b"), *names])
    before = backend.size_bytes()
    limit = before // 2
    backend.prune(before_s=0.0, max_bytes=limit, keep={"a", "b"})
    left = len(steps_of(backend, "a", 3000)) + len(steps_of(backend, "b", 3000))

    assert sum(summary.num_bytes for summary in backend.summaries()) <= limit
    assert 0 < left < 3000
    for _ in range(10):
        backend.prune(before_s=0.0, max_bytes=1, keep={"a", "b"})
    assert [summary.num_bytes for summary in backend.summaries()] == [6, 6]


def test_one_leads_until_it_is_closed(open_place: Open) -> None:
    """A second one cannot even open the place, or opens it and is told that it does not lead."""
    with closing(open_place(0)) as first:
        assert first.try_lead()
        assert first.try_lead()
        try:
            second = open_place(0)
        except StoreError:
            pass
        else:
            assert not second.try_lead()
            with pytest.raises(StoreError):
                second.transact([put_job()])
            second.close()
        first.transact([put_job()])
        first.close()
    with closing(open_place(0)) as third:
        assert third.try_lead()
        assert [summary.job for summary in third.summaries()] == ["j"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transactions=st.lists(st.lists(WRITES, max_size=6), max_size=5))
def test_any_writes_leave_what_a_dictionary_would_hold(
    open_place: Open, transactions: list[list[Write]]
) -> None:
    """In their order, across transactions and a reopening."""
    number = next(_numbers)
    with closing(open_place(number)) as backend:
        assert backend.try_lead()
        for transaction in transactions:
            backend.transact(transaction)
    cores, steps = _replayed(transactions)
    with closing(open_place(number)) as backend:
        assert {s.job for s in backend.summaries()} == set(cores)
        for job, put in cores.items():
            stored = backend.load(job, last_steps=100)
            assert stored is not None
            assert (stored.at_s, stored.core) == (put.at_s, put.core)
            assert stored.steps == list(steps[job].values())


def _replayed(
    transactions: list[list[Write]],
) -> tuple[dict[str, PutJob], dict[str, dict[tuple[int, int], bytes]]]:
    """Return what the writes leave, by a dictionary's rules."""
    cores: dict[str, PutJob] = {}
    steps: dict[str, dict[tuple[int, int], bytes]] = defaultdict(dict)
    for write in (write for transaction in transactions for write in transaction):
        match write:
            case PutJob():
                cores[write.job] = write
            case PutStep():
                steps[write.job][write.attempt, write.step] = write.body
            case DropJob():
                cores.pop(write.job, None)
                steps.pop(write.job, None)
    return cores, steps
