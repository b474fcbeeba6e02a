"""Two balancers on one database: one answers, and when it fails the other goes on where it was.

Whatever fails, no reader goes back in time and no acknowledged policy is lost.
"""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from libra.balancer.policy import decode_policy
from tests.application import assert_problem
from tests.cut_network import CutNetwork, network_to
from tests.postgres import PASSWORD, PostgresServer, running_postgres
from tests.reads import History
from tests.running import RunningBalancer, make_report, running_balancer, wait_for

pytestmark = pytest.mark.fault
LEAD_TIMEOUT_S = 2.0
JOB = "/api/v1/jobs/j"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    # With fsync: here the server itself is stopped without warning.
    with running_postgres(durable=True) as server:
        yield server


@contextmanager
def running_on(address: str, log: Path) -> Iterator[RunningBalancer]:
    options = ("--store", address, "--lead-timeout-s", str(LEAD_TIMEOUT_S))
    with running_balancer(log, *options) as balancer:
        yield balancer


def is_ready(balancer: RunningBalancer) -> bool:
    try:
        return httpx.get(f"{balancer.url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def publish(balancer: RunningBalancer, waves: int = 2) -> int | None:
    """Publish a policy; return its version if it was acknowledged."""
    try:
        answer = httpx.post(f"{balancer.url}{JOB}/publish", json={"waves": waves}, timeout=5)
    except httpx.HTTPError:
        return None
    return int(answer.json()["version"]) if answer.status_code == 200 else None


def read(balancer: RunningBalancer, timeout_s: float = 5.0) -> int | None:
    try:
        answer = httpx.get(f"{balancer.url}{JOB}/policy", timeout=timeout_s)
    except httpx.HTTPError:
        return None
    return decode_policy(answer.content).version if answer.status_code == 200 else None


def wait_for_more(history: History, number: int) -> None:
    """Wait until so many further policies are acknowledged."""
    count = len(history.published) + number
    wait_for(lambda: len(history.published) >= count)


def send_first_report(balancer: RunningBalancer) -> None:
    wait_for(lambda: is_ready(balancer))
    assert balancer.send(make_report("j")).status_code == 202


def test_the_other_goes_on_when_one_is_killed(server: PostgresServer, tmp_path: Path) -> None:
    """Until then it sends callers away; afterwards it has the policy that was acknowledged."""
    address = server.address(server.new_database())
    with running_on(address, tmp_path / "a") as first:
        send_first_report(first)
        with running_on(address, tmp_path / "b") as second:
            refused = second.client.get(JOB)
            assert_problem(refused, 503)
            assert refused.headers["retry-after"] == "1"
            assert_problem(second.client.get("/readyz"), 503)
            pages = [
                second.client.get(path) for path in ("/livez", "/metrics", "/", "/static/app.js")
            ]
            assert [page.status_code for page in pages] == [200] * 4
            assert publish(first, waves=5) == 1
            first.process.kill()
            wait_for(lambda: is_ready(second), timeout_s=20)

            policy = decode_policy(second.client.get(f"{JOB}/policy").content)
            assert (policy.version, policy.waves) == (1, 5)
            assert publish(second) == 2
            assert second.send(make_report("j")).json()["duplicate"]
        for log in (first.log, second.log):
            assert PASSWORD not in log.read_text()


def test_one_that_slept_through_a_takeover_writes_nothing(
    server: PostgresServer, tmp_path: Path
) -> None:
    """It answers no request from its old memory, and leads again from what the other wrote."""
    address = server.address(server.new_database())
    with (
        running_on(address, tmp_path / "a") as first,
        running_on(address, tmp_path / "b") as second,
    ):
        wait_for(lambda: is_ready(first) or is_ready(second))
        if is_ready(second):
            first, second = second, first
        send_first_report(first)
        assert publish(first) == 1
        # Not written yet: it would be when the sleeper wakes.
        assert first.send(make_report("j", sequence=1)).status_code == 202
        first.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_ready(second), timeout_s=20)
        assert publish(second) == 2
        first.process.send_signal(signal.SIGCONT)
        assert [read(first) for _ in range(20)] == [None] * 20

        wait_for(lambda: "another balancer has taken over" in first.log.read_text())
        assert second.send(make_report("j", sequence=2)).status_code == 202
        second.process.terminate()
        assert second.process.wait(20) == 0
        wait_for(lambda: is_ready(first), timeout_s=20)
        assert read(first) == 2
        told = {
            sequence: first.send(make_report("j", sequence=sequence)).json() for sequence in (1, 2)
        }
        # The report that only the sleeper had is lost, as a crash may lose it; it comes again.
        assert not told[1]["duplicate"]
        assert told[2]["duplicate"]


def test_one_that_is_cut_off_falls_silent_before_the_other_speaks(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Nobody tells it of the cut; when the network is mended it stands by."""
    database = server.new_database()
    with (
        network_to(server.port) as network,
        running_on(server.address(database, port=network.port), tmp_path / "a") as first,
    ):
        send_first_report(first)
        with running_on(server.address(database), tmp_path / "b") as second:
            assert publish(first) == 1
            with first.client.stream("GET", f"{JOB}/events") as events:
                lines = events.iter_lines()
                next(lines)
                network.cut()
                list(lines)  # it ends: who follows it comes back and finds the other
            wait_for(lambda: is_ready(second), timeout_s=20)
            assert read(first) is None
            assert publish(second) == 2
            network.mend()
            wait_for(lambda: "another balancer has taken over" in first.log.read_text())

            assert not is_ready(first)
            assert (read(first), read(second)) == (None, 2)
            assert first.client.get("/livez").status_code == 200


def test_a_restart_of_the_database_loses_no_acknowledged_policy(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Under load and without a helping hand; a balancer that is alone keeps its memory, too."""
    address = server.address(server.new_database())
    history, over = History(), threading.Event()
    with running_on(address, tmp_path / "a") as balancer:
        send_first_report(balancer)

        def publish_on() -> None:
            while not over.is_set():
                history.record("a", lambda: publish(balancer), published=True)

        load = threading.Thread(target=publish_on)
        load.start()
        try:
            wait_for_more(history, 3)
            server.stop()
            assert balancer.client.get("/livez").status_code == 200
            server.start()
            wait_for_more(history, 3)
        finally:
            over.set()
            load.join()
        history.record("a", lambda: read(balancer))
        rows = balancer.view("j/policies")["policies"]

    assert set(history.published) <= {row["version"] for row in rows}
    history.check()
    assert "Leads on" in (tmp_path / "a.log").read_text()


class Pair:
    """Two balancers on one database, readers and writers of one policy, and faults."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.history = History()
        self.over = threading.Event()
        self._database = server.new_database()
        self._server = server
        self._folder = folder
        self._running: dict[str, tuple[RunningBalancer, ExitStack]] = {}
        self._network = CutNetwork(server.port)

    def __enter__(self) -> "Pair":
        self._start("a")
        send_first_report(self._running["a"][0])
        self._start("b")
        works = [(read, False)] * 3 + [(publish, True)] * 2
        self._threads = [threading.Thread(target=self._work, args=work) for work in works]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()
        for running in self._running.values():
            running[1].close()
        self._network.close()

    def fail(self, fault: str) -> None:
        """Do it to the one that answers, and wait until policies are published again."""
        wait_for_more(self.history, 2)
        name = wait_for(self._active)
        balancer, stack = self._running[name]
        if fault == "sleep":
            balancer.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: self._active(besides=name), timeout_s=30)
            wait_for_more(self.history, 1)
            balancer.process.send_signal(signal.SIGCONT)
        elif fault == "kill":
            balancer.process.kill()
            stack.close()
            self._start(name)
        elif fault == "sessions":
            self._server.end_sessions(self._database)
        elif fault == "cut":
            self._network.cut()
            wait_for(self._active, timeout_s=30)
            wait_for_more(self.history, 1)
            self._network.mend()
        wait_for_more(self.history, 2)

    def rows(self) -> list[int]:
        name = wait_for(self._active)
        policies = self._running[name][0].view("j/policies")["policies"]
        return [row["version"] for row in policies]

    def _start(self, name: str) -> None:
        # Only one of them can be cut off.
        port = self._network.port if name == "a" else None
        address = self._server.address(self._database, port=port)
        stack = ExitStack()
        self._running[name] = (
            stack.enter_context(running_on(address, self._folder / name)),
            stack,
        )

    def _active(self, besides: str = "") -> str | None:
        for name, (balancer, _) in self._running.items():
            if name != besides and is_ready(balancer):
                return name
        return None

    def _work(self, ask: Callable[[RunningBalancer], int | None], published: bool) -> None:
        while not self.over.wait(0.01):
            name = random.choice(list(self._running))
            balancer = self._running[name][0]
            self.history.record(name, partial(ask, balancer), published=published)


def assert_history(server: PostgresServer, folder: Path, faults: Sequence[str]) -> None:
    with Pair(server, folder) as pair:
        for fault in faults:
            pair.fail(fault)
        rows = pair.rows()
        pair.over.set()
    pair.history.check()
    oldest = min(rows)
    acknowledged = {v for v in pair.history.published if oldest <= v <= max(rows)}
    assert acknowledged <= set(rows)
    assert pair.history.places == {"a", "b"}


@pytest.mark.timeout(240)
def test_no_reader_goes_back_in_time(server: PostgresServer, tmp_path: Path) -> None:
    """Whichever balancer it asks, through each fault; no acknowledged policy vanishes."""
    assert_history(server, tmp_path, ["sleep", "sessions"])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_reader_goes_back_in_time_for_long(server: PostgresServer, tmp_path: Path) -> None:
    """The same through many faults in any order."""
    faults = random.choices(["sleep", "kill", "sessions", "cut"], k=60)
    assert_history(server, tmp_path, faults)
