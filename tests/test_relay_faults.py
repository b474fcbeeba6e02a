"""Whatever becomes of a relay, of its socket or of the balancer, every rank reports."""

import socket
import struct
import threading
from pathlib import Path

import msgspec
import pytest

from libra.agent.frames import MAX_FRAME_BYTES
from libra.agent.meeting_place import meeting_place
from libra.agent.relay import Relay
from tests.balancers import (
    Reply,
    Request,
    ToldBalancer,
    eventually,
    sent,
)
from tests.nodes import (
    RANKS,
    answer,
    batches,
    meet,
    node,
    settings,
    single,
    steps_of,
    train_from,
    trained,
)


@pytest.mark.fault
@pytest.mark.parametrize("fault", ["other-mode", "file", "absent", "off"])
def test_without_a_meeting_place_every_rank_reports(fault: str, runtime_folder: Path) -> None:
    """A folder that others may enter, or none, or LIBRA_RELAY=off, costs the relay alone."""
    if fault == "other-mode":
        runtime_folder.joinpath("libra").mkdir(mode=0o755)
    elif fault == "file":
        runtime_folder.joinpath("libra").write_text("")
    elif fault == "absent":
        runtime_folder.joinpath("libra").symlink_to(runtime_folder / "nowhere")
    with (
        ToldBalancer(answer) as balancer,
        node(balancer.url, relay=fault != "off") as agents,
    ):
        assert trained(agents, balancer)
        assert not batches(balancer)
        assert set(single(balancer)) == set(range(RANKS))


@pytest.mark.fault
def test_a_balancer_without_batches_gets_single_reports(runtime_folder: Path) -> None:
    """The relay serves its ranks also before a balancer of the version before."""

    def older(request: Request) -> Reply:
        known = not request.path.endswith("/batches")
        return answer(request) if known else Reply(status=405, body=b"{}")

    with ToldBalancer(older) as balancer, node(balancer.url) as agents:
        while not batches(balancer):
            assert trained(agents, balancer)
        assert trained(agents, balancer)

    assert all(len(own) == len(set(own)) for own in steps_of(balancer.requests).values())


@pytest.mark.fault
def test_a_refused_row_is_told_to_its_rank_alone(
    runtime_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank's bad report does not cost the others theirs, and names the reason."""
    refusing = threading.Event()

    def refuse_rank_2(request: Request) -> Reply:
        reply = answer(request)
        rows = [report.rank for report in sent(request)]
        if not request.path.endswith("/batches") or 2 not in rows or not refusing.is_set():
            return reply
        refused = [{"row": rows.index(2), "field": "$.x", "reason": "absurd", "detail": "no"}]
        body = msgspec.json.decode(reply.body) | {"refused": refused}
        return Reply(body=msgspec.json.encode(body))

    with ToldBalancer(refuse_rank_2) as balancer, node(balancer.url) as agents:
        meet(agents, balancer)
        refusing.set()
        while not agents[2]._reporter.refused:
            assert trained(agents, balancer)
        refusing.clear()

    assert [agent._reporter.refused > 0 for agent in agents] == [False, False, True, False]
    assert "$.x: absurd, no" in caplog.text


@pytest.mark.fault
def test_while_the_balancer_is_away_ranks_keep_their_reports(runtime_folder: Path) -> None:
    """The relay's failure is every rank's: nothing is dropped, no rank storms the balancer."""
    away = threading.Event()

    def sometimes(request: Request) -> Reply:
        return Reply(status=503, body=b"") if away.is_set() else answer(request)

    with ToldBalancer(sometimes) as balancer, node(balancer.url) as agents:
        meet(agents, balancer)
        away.set()
        connections = set(balancer.connections)
        refused = len(balancer.asked("POST"))
        for agent in agents:
            train_from(agent, 10_000, 20)
        relay = agents[0]._reporter._outlet
        assert isinstance(relay, Relay)
        assert eventually(lambda: relay._backoff.failures >= 3)
        assert len(balancer.asked("POST")) - refused <= 2 * relay._backoff.failures
        assert set(single(balancer)[refused:]) <= {0, 1, 2, 3}
        away.clear()
        assert trained(agents, balancer, first=20_000)
        assert len(balancer.connections - connections) <= RANKS

    for own in steps_of(balancer.requests).values():
        assert set(range(10_000, 10_020)) <= set(own)


@pytest.mark.fault
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 2**32 - 1),
        struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff",
        struct.pack(">I", 8) + b"\x80",
        b"",
    ],
    ids=["http", "long", "longest", "no-msgpack", "cut", "empty"],
)
def test_garbage_ends_only_its_connection(garbage: bytes, runtime_folder: Path) -> None:
    """Whatever is written to the socket, the relay goes on serving its ranks."""
    with ToldBalancer(answer) as balancer, node(balancer.url) as agents:
        path = meeting_place(settings(balancer.url, 0))
        assert path is not None
        assert eventually(path.exists)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(20)
            stranger.connect(str(path))
            stranger.sendall(garbage)
            if int.from_bytes(garbage[:4], "big") <= MAX_FRAME_BYTES:
                # Of a frame that is too long not even the end is waited for.
                stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        meet(agents, balancer)
