"""Simulated nodes that report to a balancer once a second each: a process of its own.

It prints one JSON object: what was sent and acknowledged, and how long answers took from the
moment a report was due, so that a balancer that falls behind is not measured too kindly.

.venv/bin/python benchmarks/load_generator.py --port 8765 --ranks 10000 --seconds 600
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.load_bodies import (
    Body,
    Node,
    batch_body,
    decoded_numbers,
    job_sizes,
    nodes_of,
    single_bodies,
)
from benchmarks.load_connection import Connection
from libra.balancer.version import libra_version

_HOST = "127.0.0.1"
_MAX_DUE = 120
_OPEN_AT_ONCE = 50
_DRAIN_S = 60.0
WATCHED = "watched"
WATCHED_HZ = 5.0


class Counts:
    """What all nodes together have sent, and what became of it."""

    def __init__(self) -> None:
        self.due = 0
        self.requests = 0
        self.statuses: Counter[int] = Counter()
        self.rows: Counter[str] = Counter()
        self.given_up = 0
        self.refusal = ""
        self.latencies_s: list[float] = []
        self.measuring = False


class LoadNode:
    """One node: its connection, its bodies, and what is due."""

    def __init__(self, node: Node, port: int, counts: Counts, *, single: bool, seed: int) -> None:
        rng = random.Random(f"{seed} {node.job} {node.first_rank}")
        self.node = node
        self.connection = Connection(_HOST, port, self._answered)
        self._random = rng
        self._counts = counts
        self._single = single
        self._bodies = single_bodies(node, rng) if single else [batch_body(node, rng)]
        self._header = _header(node, single=single, length=len(self._bodies[0].data))
        # (when it was due, number of the step, body).
        self._due: deque[tuple[float, int, Body]] = deque()
        self._sent_due_s = 0.0
        self._sent = b""
        self._turned_away = False

    def tick(self, number: int, due_s: float) -> None:
        """Let the next step be due."""
        for body in self._bodies:
            self._counts.due += self._rows
            if len(self._due) >= _MAX_DUE:
                self._counts.given_up += self._rows
                continue
            self._due.append((due_s, number, body))
        if not (self.connection.busy or self._turned_away):
            self._send()

    @property
    def waiting(self) -> bool:
        return self.connection.busy or self._turned_away or bool(self._due)

    @property
    def _rows(self) -> int:
        return 1 if self._single else self.node.ranks

    def check(self) -> None:
        """Raise ``ValueError`` unless a patched body says what it should."""
        for body in self._bodies:
            found = decoded_numbers(body.fill(7, 1.01), single=self._single)
            if found != {(7, 7)}:
                raise ValueError(f"a patched body has steps and sequences {found}, must be 7, 7")

    def _send(self) -> None:
        self._sent_due_s, number, body = self._due.popleft()
        filled = body.fill(number, self._random.uniform(0.98, 1.02))
        self._sent = self._header + filled
        self._counts.requests += 1
        self.connection.send(self._sent)

    def _send_again(self) -> None:
        self._turned_away = False
        self.connection.send(self._sent)

    def _answered(self, status: int, body: bytes, retry_after_s: float) -> None:
        counts = self._counts
        counts.statuses[status] += 1
        if status in (429, 503):
            self._turned_away = True
            asyncio.get_running_loop().call_later(max(retry_after_s, 0.1), self._send_again)
            return
        if counts.measuring:
            counts.latencies_s.append(time.monotonic() - self._sent_due_s)
        self._count(status, body)
        if self._due:
            self._send()

    def _count(self, status: int, body: bytes) -> None:
        if status != 202:
            self._counts.rows["refused"] += self._rows
            self._counts.refusal = self._counts.refusal or body.decode(errors="replace")
            return
        answer = json.loads(body)
        for name in ("accepted", "duplicates", "late"):
            self._counts.rows[name] += int(answer.get(name, 0))
        self._counts.rows["refused"] += len(answer.get("refused", ()))


def _header(node: Node, *, single: bool, length: int) -> bytes:
    route = "reports" if single else "batches"
    return (
        f"POST /api/v1/jobs/{node.job}/{route} HTTP/1.1\r\nHost: {_HOST}\r\n"
        f"Content-Type: application/msgpack\r\nLibra-Version: {libra_version()}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


async def generate(args: argparse.Namespace) -> dict[str, Any]:
    """Send reports for a while; return the figures."""
    counts = Counts()
    nodes = nodes_of(job_sizes(args.ranks))
    watched = [Node(job=WATCHED, world_size=8, first_rank=0, ranks=8)] if args.watched else []
    load = [
        LoadNode(node, args.port, counts, single=args.single, seed=args.seed)
        for node in nodes + watched
    ]
    load[0].check()
    for begin in range(0, len(load), _OPEN_AT_ONCE):
        await asyncio.gather(
            *(own.connection.open() for own in load[begin : begin + _OPEN_AT_ONCE])
        )
    steps = await _run(load, counts, args)
    figures = _figures(counts, steps)
    figures["reconnects"] = sum(own.connection.reconnects for own in load)
    for own in load:
        own.connection.close()
    return figures


async def _run(load: list[LoadNode], counts: Counts, args: argparse.Namespace) -> dict[str, int]:
    """Let every node report at its own moment of each interval; return steps sent by job."""
    loop = asyncio.get_running_loop()
    begin_s = time.monotonic() + 0.5
    end_s = begin_s + args.seconds
    rng = random.Random(args.seed)
    steps: dict[str, int] = {}

    def tick(own: LoadNode, number: int, due_s: float, interval_s: float) -> None:
        own.tick(number, due_s)
        steps[own.node.job] = number + 1
        next_s = due_s + interval_s
        if next_s < end_s:
            loop.call_at(next_s, tick, own, number + 1, next_s, interval_s)

    for own in load:
        interval_s = 1 / WATCHED_HZ if own.node.job == WATCHED else args.interval
        due_s = begin_s + interval_s * rng.random()
        loop.call_at(due_s, tick, own, 0, due_s, interval_s)
    await asyncio.sleep(begin_s + args.warmup - time.monotonic())
    counts.measuring = True
    await asyncio.sleep(end_s - time.monotonic())
    counts.measuring = False
    deadline_s = time.monotonic() + _DRAIN_S
    while any(own.waiting for own in load) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.05)
    return steps


def _figures(counts: Counts, steps: dict[str, int]) -> dict[str, Any]:
    ordered = sorted(counts.latencies_s)

    def at(share: float) -> float | None:
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    return {
        "due": counts.due,
        "given_up": counts.given_up,
        "requests": counts.requests,
        "statuses": {str(status): number for status, number in counts.statuses.items()},
        "rows": dict(counts.rows),
        "refusal": counts.refusal,
        "steps": steps,
        "latency_ms": {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)},
        "cpu_seconds": time.process_time(),
    }


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--port", type=int, required=True)
    add("--ranks", type=int, default=10_000)
    add("--seconds", type=float, default=60.0)
    add("--warmup", type=float, default=5.0, help="seconds before latencies are measured")
    add("--interval", type=float, default=1.0, help="seconds between reports of a node")
    add("--single", action="store_true", help="one request a rank, not one a node")
    add("--watched", action="store_true", help=f"one more node, at {WATCHED_HZ:g} Hz")
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    raise_file_limit()
    print(json.dumps(asyncio.run(generate(args))))


if __name__ == "__main__":
    main()
