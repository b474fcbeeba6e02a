"""The fault proxy does each fault that it is told to, counts it, and else changes nothing."""

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.balancers import Reply, Request, ToldBalancer
from tests.fault_proxy import FAULTS, Fault, FaultProxy, FaultSettings
from tests.running import wait_for

BODY = b"x" * 3000
TIMEOUT_S = 1.0
# Bytes trickle for a fifth of a second.
SETTINGS = FaultSettings(delay_s=0.05, reorder_s=10.0, trickle_s=0.002, trickle_bytes=100)


def echo(request: Request) -> Reply:
    return Reply(status=200, body=request.body)


@pytest.fixture
def server() -> Iterator[ToldBalancer]:
    with ToldBalancer(echo) as server:
        yield server


def proxy_to(server: ToldBalancer, *always: Fault) -> FaultProxy:
    """Return a proxy that does this fault to every request."""
    port = int(server.url.rpartition(":")[2])
    return FaultProxy(port, weights=dict.fromkeys(always, 1.0), settings=SETTINGS)


def post(proxy: FaultProxy, body: bytes = BODY) -> bytes | None:
    """Return the answer's body; None where none came in time, or a torn one."""
    try:
        return httpx.post(proxy.url, content=body, timeout=TIMEOUT_S).content
    except httpx.HTTPError:
        return None


def test_without_faults_it_is_not_noticed(server: ToldBalancer) -> None:
    """Kept-alive connections, many requests on one, bodies large and empty: all arrive whole."""
    with proxy_to(server) as proxy, httpx.Client(base_url=proxy.url, timeout=30) as client:
        bodies = [b"", b"a", BODY * 500, BODY]
        answers = [client.post("/", content=body).content for body in bodies]

    assert answers == bodies
    assert [request.body for request in server.requests] == bodies
    assert not proxy.fired


@pytest.mark.fault
@pytest.mark.parametrize("fault", ["drop", "half_open"])
def test_a_black_hole_says_nothing(server: ToldBalancer, fault: Fault) -> None:
    """The client connects and waits in vain; the server hears of nothing."""
    with proxy_to(server, fault) as proxy:
        assert post(proxy) is None
        assert proxy.fired == {fault: 1}
    assert server.requests == []


@pytest.mark.fault
def test_a_reset_is_one(server: ToldBalancer) -> None:
    """The client is told of a reset, whether the server has seen the request or not."""
    with proxy_to(server, "reset") as proxy:
        for _ in range(8):
            # A reset that hits while the client still sends is a broken pipe to it.
            with pytest.raises((httpx.ReadError, httpx.WriteError)):
                httpx.post(proxy.url, content=b"small", timeout=30)

    assert proxy.fired == {"reset": 8}
    assert 0 < len(server.requests) < 8


@pytest.mark.fault
def test_a_duplicate_arrives_twice(server: ToldBalancer) -> None:
    """The server takes one request two times, and the client hears one answer."""
    with proxy_to(server, "duplicate") as proxy:
        assert post(proxy) == BODY

    assert [request.body for request in server.requests] == [BODY, BODY]
    assert proxy.fired == {"duplicate": 1}


@pytest.mark.fault
def test_a_later_request_overtakes(server: ToldBalancer) -> None:
    """A request that is held back arrives after one that another connection sent later."""
    answers: list[bytes | None] = []
    with proxy_to(server, "reorder") as proxy:
        first = threading.Thread(
            target=lambda: answers.append(httpx.post(proxy.url, content=b"first").content)
        )
        first.start()
        wait_for(lambda: proxy.links)
        proxy.weights = {}
        # Until the first was drawn for and is held back.
        wait_for(lambda: post(proxy, b"second") and not first.is_alive())
        first.join()

    bodies = [request.body for request in server.requests]

    assert bodies.index(b"second") < bodies.index(b"first")
    assert answers == [b"first"]
    assert proxy.fired == {"reorder": 1}


@pytest.mark.fault
def test_a_truncated_exchange_is_never_whole(server: ToldBalancer) -> None:
    """Requests or answers end in the middle; no half of one passes for the whole."""
    with proxy_to(server, "truncate") as proxy:
        answers = [post(proxy) for _ in range(8)]

    assert answers == [None] * 8
    assert proxy.fired == {"truncate": 8}
    assert 0 < len(server.requests) < 8


@pytest.mark.fault
@pytest.mark.parametrize("fault", ["delay", "slow_loris"])
def test_what_is_late_is_whole(server: ToldBalancer, fault: Fault) -> None:
    """Held back or byte by byte, in either direction, everything arrives."""
    with proxy_to(server, fault) as proxy:
        assert [post(proxy) for _ in range(4)] == [BODY] * 4
        assert proxy.fired == {fault: 4}


@pytest.mark.fault
def test_corruption_is_one_bit(server: ToldBalancer) -> None:
    """Of each exchange one bit is another one, in either direction, in header or body."""
    with proxy_to(server, "corrupt") as proxy:
        answers = [post(proxy, BODY * 20) for _ in range(8)]
        bodies = [request.body for request in server.requests]

    assert proxy.fired == {"corrupt": 8}
    assert answers != [BODY * 20] * 8
    for body in [*bodies, *(answer for answer in answers if answer)]:
        assert len(body) == len(BODY * 20)
        assert sum(byte != ord("x") for byte in body) <= 1


@pytest.mark.fault
def test_all_connections_can_be_cut(server: ToldBalancer) -> None:
    """An idle kept-alive connection ends when told to, and the next request gets a new one."""
    with proxy_to(server) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as idle:
        wait_for(lambda: proxy.links)
        proxy.cut()
        idle.settimeout(30)
        with pytest.raises(ConnectionResetError):
            idle.recv(1)
        assert post(proxy) == BODY


def test_a_seed_is_a_course_of_faults() -> None:
    """Two proxies of one seed draw the same faults, another seed draws others."""

    def drawn(seed: int) -> list[Fault | None]:
        proxy = FaultProxy(0, weights=dict.fromkeys(FAULTS, 0.1), seed=seed)
        return [proxy.draw() for _ in range(100)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert set(drawn(1)) == {None, *FAULTS}
