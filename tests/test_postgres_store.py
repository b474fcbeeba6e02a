"""A store in PostgreSQL: one leads, an earlier leader writes nothing, and every wait ends."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from libra.balancer import postgres_schema, postgres_session, postgres_store
from libra.balancer.postgres import is_postgres, open_postgres
from libra.balancer.postgres_session import check_address
from libra.balancer.postgres_store import PostgresBackend, boot_s
from libra.balancer.storage import LostLeadError, PutJob, StoreError
from libra.balancer.store_settings import StoreSettings
from tests.cut_network import CutNetwork, network_to
from tests.postgres import PASSWORD, PostgresServer, running_postgres
from tests.running import wait_for

Open = Callable[..., PostgresBackend]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> str:
    return server.new_database()


@pytest.fixture
def open_backend(server: PostgresServer, database: str) -> Iterator[Open]:
    """Open a backend on the test's database, with a lease of one second unless told otherwise."""
    with ExitStack() as opened:

        def open_it(
            *, port: int | None = None, lead_timeout_s: float = 1.0, schema: str = "libra"
        ) -> PostgresBackend:
            address = server.address(database, port=port)
            backend = PostgresBackend(address, lead_timeout_s=lead_timeout_s, schema=schema)
            opened.callback(backend.close)
            return backend

        yield open_it


@pytest.fixture
def network(server: PostgresServer) -> Iterator[CutNetwork]:
    with network_to(server.port) as network:
        yield network


def put(core: bytes) -> list[PutJob]:
    return [PutJob(job="j", at_s=1.0, core=core, summary=b"{}")]


def core_of(backend: PostgresBackend) -> bytes:
    stored = backend.load("j", last_steps=1)
    assert stored is not None
    return stored.core


def succeeds(action: Callable[[], object]) -> bool:
    """Try once; a store that cannot be reached is a reason to come again, a lost lead is not."""
    try:
        return bool(action())
    except LostLeadError:
        raise
    except StoreError:
        return False


def writes(backend: PostgresBackend, core: bytes) -> bool:
    def write() -> bool:
        backend.transact(put(core))
        return True

    return succeeds(write)


def lead(backend: PostgresBackend) -> None:
    wait_for(lambda: succeeds(backend.try_lead))


def test_many_that_start_at_once_make_the_tables_once(open_backend: Open) -> None:
    """None fails, and one of them leads."""
    with ThreadPoolExecutor(8) as pool:
        backends = list(pool.map(lambda _: open_backend(), range(8)))
        leads = list(pool.map(PostgresBackend.try_lead, backends))

    assert sum(leads) == 1


def test_schemas_of_one_database_have_leaders_of_their_own(open_backend: Open) -> None:
    """So a database serves several clusters."""
    for schema in ("one", "two"):
        backend = open_backend(schema=schema)
        assert backend.try_lead()
        backend.transact(put(schema.encode()))
        assert core_of(backend) == schema.encode()


def test_tables_of_a_newer_libra_are_refused(open_backend: Open, server: PostgresServer) -> None:
    """With both numbers, whoever was there first: at the opening, and when it is to lead."""
    early = open_backend()
    with psycopg.connect(early._address) as other:
        other.execute("INSERT INTO libra.migrations (version) VALUES (77)")

    with pytest.raises(StoreError, match="has schema 77, this Libra knows 1: it was written by"):
        open_backend()
    with pytest.raises(StoreError, match="has schema 77, this Libra knows 1"):
        early.try_lead()
    assert early.lease is None


def test_only_who_leads_changes_the_tables(
    open_backend: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps or none; until then an older balancer works on with the tables that it knows."""
    old = open_backend()
    assert old.try_lead()
    old.transact(put(b"old"))
    torn = (*postgres_schema.MIGRATIONS, "CREATE TABLE extra (a int)", "CREATE TABLE jobs (a int)")
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", torn)
    new = open_backend()
    assert not new.try_lead()
    old.transact(put(b"older"))
    old.close()

    with pytest.raises(StoreError, match='relation "jobs" already exists'):
        new.try_lead()
    with psycopg.connect(new._address) as other:
        found = other.execute(
            "SELECT max(version), to_regclass('libra.extra') IS NULL FROM libra.migrations"
        )
        assert found.fetchone() == (1, True)
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", torn[:2])
    assert new.try_lead()
    new.transact(put(b"new"))
    with psycopg.connect(new._address) as other:
        found = other.execute(
            "SELECT max(version), to_regclass('libra.extra') IS NULL FROM libra.migrations"
        )
        assert found.fetchone() == (2, False)


def test_an_earlier_leader_writes_nothing(
    open_backend: Open, server: PostgresServer, database: str
) -> None:
    """It is told once, and may lead again later, from what the others wrote."""
    first, second = open_backend(), open_backend()
    assert first.try_lead()
    first.transact(put(b"first"))
    server.end_sessions(database)
    lead(second)
    second.transact(put(b"second"))

    with pytest.raises(LostLeadError):
        wait_for(lambda: writes(first, b"late"))
    with pytest.raises(LostLeadError):
        first.prune(before_s=0.0, max_bytes=1, keep=())
    assert not first.try_lead()
    assert core_of(second) == b"second"
    second.close()
    assert first.try_lead()
    assert core_of(first) == b"second"


def test_the_number_alone_keeps_an_earlier_leader_out(open_backend: Open) -> None:
    """Even one that still has its session and its lock, as behind a pooler that mixes them up."""
    first = open_backend()
    assert first.try_lead()
    with psycopg.connect(first._address) as other:
        other.execute("UPDATE libra.lead SET generation = generation + 1")

    with pytest.raises(LostLeadError):
        first.transact(put(b"late"))
    assert first.lease is None
    assert first.load("j", last_steps=1) is None


def test_a_lost_session_is_made_up_for(
    open_backend: Open, server: PostgresServer, database: str
) -> None:
    """When nobody else led meanwhile, memory is still true: it leads on."""
    backend = open_backend()
    assert backend.try_lead()
    before = backend.lease
    server.end_sessions(database)
    wait_for(lambda: writes(backend, b"on"))

    assert before is not None
    assert backend.lease is not None
    assert backend.lease.generation == before.generation + 1
    assert backend.lease.begins_s == before.begins_s
    assert core_of(backend) == b"on"


@pytest.mark.fault
def test_who_takes_over_waits_until_the_one_before_is_silent(
    open_backend: Open, server: PostgresServer, database: str
) -> None:
    """Their times to answer never meet, by one clock; one that was closed is not waited for."""
    first, second = open_backend(lead_timeout_s=30.0), open_backend(lead_timeout_s=5.0)
    assert first.try_lead()
    first.transact(put(b"first"))
    first.transact([])
    answered = first.lease
    server.end_sessions(database)
    lead(second)

    assert answered is not None
    assert second.lease is not None
    assert boot_s() < answered.ends_s < second.lease.begins_s
    second.close()
    assert first.lease == answered
    with pytest.raises(LostLeadError):
        wait_for(lambda: succeeds(first.try_lead))
    assert first.try_lead()
    lease = first.lease
    assert lease is not None
    assert lease.holds(boot_s())


@pytest.mark.fault
def test_a_leader_whose_session_never_ends_is_followed(open_backend: Open) -> None:
    """A process that stopped in the middle of a message holds its lock until the lease is over, and
    no longer; while the lease runs nobody ends it.
    """
    first, second = open_backend(), open_backend()
    assert first.try_lead()
    assert first._session is not None
    first._session.connection.execute("SET idle_session_timeout = 0")

    assert not second.try_lead()
    first.transact([])
    lead(second)

    def has_lost() -> bool:
        try:
            first.transact([])
        except LostLeadError:
            return True
        except StoreError:  # its session has ended, and it is not yet known why
            pass
        return False

    wait_for(has_lost)


def test_a_leader_that_is_cut_off_is_followed(open_backend: Open, network: CutNetwork) -> None:
    """The server ends its session though nobody told it; what it sent late is not written."""
    first, second = open_backend(port=network.port), open_backend()
    assert first.try_lead()
    first.transact(put(b"first"))
    network.cut()
    lead(second)
    second.transact(put(b"second"))
    network.mend()

    with pytest.raises(LostLeadError):
        wait_for(lambda: writes(first, b"late"))
    assert core_of(second) == b"second"


@pytest.mark.fault
def test_a_write_that_comes_late_does_not_undo_a_newer_one(
    open_backend: Open, network: CutNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are the same balancer's: the old session is gone before the new one writes."""
    backend = open_backend(port=network.port, lead_timeout_s=30.0)
    assert backend.try_lead()
    network.cut(new_ones_too=False)
    with monkeypatch.context() as patch:
        patch.setattr(postgres_store, "_WRITE_TIMEOUT_S", 0.3)
        with pytest.raises(StoreError):
            backend.transact(put(b"old"))
    wait_for(lambda: writes(backend, b"new"))
    network.mend()
    other = open_backend()

    for _ in range(20):
        backend.transact([])
        assert core_of(other) == b"new"


@pytest.mark.fault
@pytest.mark.timeout(60)
def test_a_server_that_never_answers_holds_nobody_up(
    open_backend: Open, network: CutNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and bytes, so no keepalive would notice; each call ends."""
    backend = open_backend(port=network.port)
    assert backend.try_lead()
    # Not before: a busy machine may take longer to open it.
    monkeypatch.setattr(postgres_store, "_WRITE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(postgres_store, "_READ_TIMEOUT_S", 0.3)
    monkeypatch.setattr(postgres_session, "_CONNECT_TIMEOUT_S", 2.0)
    network.cut()
    for action in (lambda: backend.transact([]), backend.summaries, backend.try_lead):
        with pytest.raises(StoreError):
            action()
    backend._connect_after_s = 0.0
    with pytest.raises(StoreError):
        backend.transact([])
    network.mend()
    lead(backend)


def test_no_attempt_follows_a_failed_one_at_once(open_backend: Open, network: CutNetwork) -> None:
    """Who asks meanwhile is told at once, and the server is not knocked down by attempts."""
    backend = open_backend(port=network.port)
    network.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot read the store"):
            backend.summaries()
    backend._connect_after_s = boot_s() + 60
    with pytest.raises(StoreError, match="cannot be reached; it is tried again soon"):
        backend.summaries()


def test_the_password_is_told_to_nobody(
    server: PostgresServer, database: str, open_backend: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the label, in errors or in the log; also when the address cannot be read."""
    caplog.set_level(logging.DEBUG)
    backend = open_backend()
    told = [backend.label]
    for address in (
        server.address("missing"),
        server.address(database).replace("libra:", "nobody:"),
        f"postgresql://libra:{PASSWORD}%zz@127.0.0.1/{database}",
        f"postgresql://libra:{PASSWORD}@127.0.0.1:port/{database}",
        f"postgresql://libra:{PASSWORD}@127.0.0.1:1/{database}",
        f"postgresql://libra@127.0.0.1:1/{database}?password={PASSWORD}&unknown=1",
    ):
        with pytest.raises(StoreError) as refused:
            PostgresBackend(address)
        told.append(str(refused.value))

    assert backend.label == f"postgresql://127.0.0.1:{server.port}/{database}"
    assert PASSWORD not in caplog.text + " ".join(told)
    assert all(len(text.splitlines()) == 1 for text in told)


@pytest.mark.parametrize(
    ("address", "label"),
    [
        ("postgresql://u:p@db.example/libra", "postgresql://db.example:5432/libra"),
        ("postgresql://a,b:7/x?user=u", "postgresql://a:5432,b:7/x"),
        ("postgresql:///x?host=/run/pg&password=p", "postgresql:///x?host=/run/pg"),
        ("postgresql://[::1]:6543/x", "postgresql://[::1]:6543/x"),
    ],
)
def test_a_label_names_hosts_and_database(address: str, label: str) -> None:
    """Nothing else of the address."""
    assert check_address(address) == label


def test_what_is_acknowledged_is_durable(
    server: PostgresServer, database: str, open_backend: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Where commits would be asynchronous they are not; a server without fsync is told of."""
    with psycopg.connect(server.address(database), autocommit=True) as other:
        other.execute(f"ALTER DATABASE {database} SET synchronous_commit = off".encode())
    backend = open_backend()
    with backend._connected().within(10) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)

    assert "runs with fsync = off" in caplog.text


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "libra.balancer.postgres_store")
    with pytest.raises(StoreError, match=r"pip install 'libra-balancer\[postgres\]'"):
        open_postgres(StoreSettings(store="postgresql://db.example/libra"))

    assert is_postgres("postgres://h/d")
    assert not is_postgres("/var/lib/postgresql://file")


@pytest.mark.parametrize("schema", ["", "Libra", "a-b", "a;b", 'a"', "1a", "a" * 64])
def test_a_schema_is_a_plain_name(schema: str) -> None:
    """Anything else is refused with what is allowed."""
    with pytest.raises(ValueError, match=r"^store_schema=.*must be letters a-z"):
        StoreSettings(store_schema=schema)


def test_no_thread_is_left(open_backend: Open) -> None:
    """Deadlines leave nothing behind."""
    backend = open_backend()
    before = threading.active_count()
    backend.try_lead()
    for _ in range(20):
        backend.transact([])

    assert threading.active_count() == before
