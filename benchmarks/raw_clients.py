"""Thousands of HTTP clients that only wait, as bare sockets: what is measured is the balancer."""

import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_READ_BYTES = 1 << 16
_SPARE_FILES = 256


def allow_files(number: int) -> None:
    """Let this process, and those it starts, open so many files.

    Raises:
        ValueError: the machine's hard limit is lower.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number + _SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"clients={number}: the limit of open files is {hard}; raise ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextmanager
def clients(url: str, path: str, number: int, headers: str = "") -> Iterator[list[socket.socket]]:
    """Connect so many clients, each with one request sent; close them at the end."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()
    opened: list[socket.socket] = []
    try:
        for _ in range(number):
            client = socket.create_connection((host, port), timeout=60)
            opened.append(client)
            client.sendall(request)
            client.setblocking(False)
        yield opened
    finally:
        for client in opened:
            client.close()


def read_each(
    opened: list[socket.socket], enough: Callable[[bytes], bool], timeout_s: float
) -> list[float]:
    """Read until every client has enough; return when each had, by ``time.perf_counter``."""
    poll = select.epoll()
    by_number = {client.fileno(): client for client in opened}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    got = dict.fromkeys(by_number, b"")
    times: list[float] = []
    deadline = time.perf_counter() + timeout_s
    while by_number and time.perf_counter() < deadline:
        for number, _ in poll.poll(0.1):
            body = by_number[number].recv(_READ_BYTES)
            got[number] += body
            if not body or enough(got[number]):
                poll.unregister(number)
                del by_number[number]
                if body:
                    times.append(time.perf_counter())
    poll.close()
    return times


def count_events(opened: list[socket.socket], until_s: float) -> int:
    """Read what comes until a moment, by ``time.monotonic``; return how many events it was."""
    poll = select.epoll()
    by_number = {client.fileno(): client for client in opened}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    events = 0
    while time.monotonic() < until_s:
        for number, _ in poll.poll(0.1):
            events += by_number[number].recv(_READ_BYTES).count(b"\nevent: ")
    poll.close()
    return events
