"""Simulated ranks load a real balancer: no report is lost, and the figures are honest."""

import asyncio
import json
import random
import subprocess
import sys
import threading
from typing import Any

import pytest

from benchmarks import load_bodies
from benchmarks.load_bodies import (
    Node,
    batch_body,
    decoded_numbers,
    job_sizes,
    nodes_of,
    single_bodies,
)
from benchmarks.load_connection import Connection
from benchmarks.process_usage import Usage, slope
from benchmarks.service import section
from benchmarks.service_load import Load, Outcome, measure
from tests.balancers import Reply, Request, ToldBalancer
from tests.running import ROOT, wait_for

NODE = Node(job="j", world_size=16, first_rank=8, ranks=8)
MOST_GROWTH_BYTES_PER_HOUR = 5e6


def assert_nothing_lost(outcome: Outcome) -> None:
    said = json.dumps(outcome.sent)
    assert outcome.sent["due"] > 0, said
    assert outcome.sent["given_up"] == 0, said
    assert outcome.sent["rows"].get("refused", 0) == 0, said
    assert outcome.lost == 0, said
    assert outcome.missing_steps == 0, said


def test_no_report_is_lost() -> None:
    """All that was due is acknowledged, counted by its job, and makes complete steps."""
    assert_nothing_lost(measure(Load(ranks=256, seconds=4.0, sse=5, pollers=20)))


@pytest.mark.soak
@pytest.mark.timeout(2700)
def test_no_report_is_lost_and_memory_is_flat() -> None:
    """Ten thousand ranks for half an hour; memory is judged once it has found its size."""
    outcome = measure(Load(ranks=10_000, seconds=1800.0))

    assert_nothing_lost(outcome)
    assert outcome.growth_bytes_per_hour is not None
    assert outcome.growth_bytes_per_hour < MOST_GROWTH_BYTES_PER_HOUR


def test_a_patched_body_says_what_it_should() -> None:
    """Step, sequence and seconds are set in place; all else is as it was encoded."""
    batch = batch_body(NODE, random.Random(1))
    singles = single_bodies(NODE, random.Random(1))
    before = bytes(batch.data)
    filled = batch.fill(41, 1.5)

    assert decoded_numbers(filled, single=False) == {(41, 41)}
    assert [decoded_numbers(own.fill(41, 1.5), single=True) for own in singles] == [{(41, 41)}] * 8
    assert len(filled) == len(before)
    assert batch.fill(0, 1.0) == before


def test_all_ranks_are_there_once() -> None:
    """Jobs, and nodes of jobs, have as many ranks as asked for, none twice."""
    sizes = job_sizes(10_000)
    nodes = nodes_of(sizes)

    assert (sizes[0], sum(sizes), max(sizes[1:])) == (4096, 10_000, 1024)
    assert sum(node.ranks for node in nodes) == 10_000
    assert len({(node.job, node.first_rank) for node in nodes}) == len(nodes) == 1250
    assert job_sizes(100) == [100]


def generate(url: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "benchmarks/load_generator.py", "--port", url.rpartition(":")[2]]
    command += ["--single", "--ranks", "1", "--warmup", "0", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_what_is_turned_away_is_sent_again() -> None:
    """After a 429 the very same bytes come again."""
    turned_away = threading.Event()

    def answer(request: Request) -> Reply:
        if turned_away.is_set():
            return Reply(body=b'{"accepted": 1, "duplicates": 0, "late": 0}')
        turned_away.set()
        return Reply(status=429, headers={"Retry-After": "1"}, body=b"{}")

    with ToldBalancer(answer) as balancer:
        figures = generate(balancer.url, "--seconds", "0.5", "--interval", "0.5")
        bodies = [request.body for request in balancer.requests]

    assert figures["statuses"] == {"429": 1, "202": 1}
    assert (figures["due"], figures["rows"]["accepted"]) == (1, 1)
    assert bodies[0] == bodies[1]


def test_a_broken_connection_sends_again() -> None:
    """What was under way when the connection broke is sent on the next one, unchanged."""
    answers: list[int] = []

    def answer(request: Request) -> Reply:
        # Nothing at all, and the end of the connection.
        return Reply(raw=b"") if len(balancer.requests) == 1 else Reply(status=200, body=b"ok")

    async def run(port: int) -> int:
        connection = Connection("127.0.0.1", port, lambda status, *_: answers.append(status))
        await connection.open()
        connection.send(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
        await asyncio.to_thread(wait_for, lambda: answers)
        connection.close()
        return connection.reconnects

    with ToldBalancer(answer) as balancer:
        reconnects = asyncio.run(run(int(balancer.url.rpartition(":")[2])))

    assert (answers, reconnects) == ([200], 1)
    assert [request.body for request in balancer.requests] == [b"hi", b"hi"]


def test_a_body_that_cannot_be_patched_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding in which the numbers are not found again is an error, not a wrong load."""
    monkeypatch.setattr(load_bodies, "encode_batch", lambda batch: b"something else")

    with pytest.raises(ValueError, match="in another way"):
        batch_body(NODE, random.Random(1))


def test_growth_is_a_slope() -> None:
    """Noise around a line leaves the line."""
    times = [100.0 + second for second in range(200)]
    values = [5e6 + 30.0 * second + (-1) ** second for second in range(200)]

    assert slope(times, values) == pytest.approx(30.0, rel=1e-2)
    assert slope([1.0], [5.0]) == 0.0


def test_growth_is_of_what_stays() -> None:
    """Memory that comes and goes is none; a leak of ten kilobytes a second is seen through it."""
    rng = random.Random(5)
    for leak in (0.0, 1e4):
        usage = Usage()
        for number in range(3600):
            usage.times_s.append(1000.0 + 0.5 * number)
            usage.bytes.append(int(3e8 + leak * 0.5 * number + rng.choice([0.0, 0.0, 2e7])))
        found = usage.growth_bytes_per_hour(after_s=1100.0)
        assert found == pytest.approx(3600.0 * leak, abs=0.05e6 + 0.02 * 3600.0 * leak)
        assert usage.growth_bytes_per_hour(after_s=1700.0) is None


def test_what_is_printed_becomes_a_section() -> None:
    """Tables stay tables, other text becomes code, and the machine is named."""
    table = "| a | b |\n| - | - |\n| 1 | 2 |"

    assert section(table + "\n").endswith(f"\n\n{table}")
    assert section("first\nsecond\n").endswith("\n\n    first\n    second")
    assert "Python" in section("x").splitlines()[0]
    assert section(f"A CPU, 2 cores, Python 3\n{table}") == f"A CPU, 2 cores, Python 3\n\n{table}"
