"""Balancers that misbehave as told: real HTTP servers on loopback, and a way to wait."""

import contextlib
import http.server
import socketserver
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from libra.balancer.batch import decode_batch
from libra.balancer.wire import Report, decode_report, encode_report

ACCEPTED = b'{"accepted": true, "duplicate": false}'


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the server was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server says: an HTTP answer, or ``raw`` bytes in its place.

    With ``gap_s`` the bytes go out one by one; ``hang`` says nothing and keeps the connection.
    """

    status: int = 202
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = ACCEPTED
    raw: bytes | None = None
    gap_s: float = 0.0
    hang: bool = False

    def encode(self) -> bytes:
        if self.raw is not None:
            return self.raw
        headers = {"Content-Length": str(len(self.body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class ToldBalancer:
    """A server that answers each request by ``answer(request)`` and keeps the requests.

    It listens on a free port, or on the Unix socket ``unix``.
    """

    def __init__(self, answer: Callable[[Request], Reply], unix: Path | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections: set[int] = set()
        self.closing = threading.Event()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                owner.connections.add(len(owner.connections))

            def do_POST(self) -> None:
                owner._handle(self)

            do_GET = do_POST  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server: socketserver.BaseServer
        if unix is None:
            self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        else:
            self._server = socketserver.ThreadingUnixStreamServer(str(unix), Handler)
            self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        setattr(self._server, "handle_error", _told)  # noqa: B010
        self.url = f"unix://{unix}"
        if isinstance(self._server, http.server.ThreadingHTTPServer):
            self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def secure(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on; to be called before the server starts."""
        assert isinstance(self._server, http.server.ThreadingHTTPServer)
        plain = self._server.socket
        self._server.socket = context.wrap_socket(
            plain, server_side=True, do_handshake_on_connect=False
        )
        self.url = self.url.replace("http:", "https:")

    def asked(self, method: str) -> list[Request]:
        """Return the requests of a method so far."""
        return [request for request in self.requests if request.method == method]

    def __enter__(self) -> "ToldBalancer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handle(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        body = b""
        with contextlib.suppress(OSError):
            body = handler.rfile.read(length)
        if len(body) < length:  # the agent hung up before it had sent all
            handler.close_connection = True
            return
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(method=handler.command, path=handler.path, headers=headers, body=body)
        self.requests.append(request)
        reply = self.answer(request)
        with contextlib.suppress(OSError):  # the agent may have hung up
            if reply.hang:
                self.closing.wait()  # untimed: no test may outlast it
            elif reply.gap_s:
                for byte in reply.encode():
                    handler.wfile.write(bytes([byte]))
                    if self.closing.wait(reply.gap_s):
                        break
            else:
                handler.wfile.write(reply.encode())
        if reply.hang or reply.gap_s or reply.raw is not None:
            handler.close_connection = True


def _told(*_: object) -> None:
    """Let an agent hang up; anything else is this server's own fault."""
    if not isinstance(sys.exception(), OSError):
        traceback.print_exc()


def by_method(*, post: Reply, get: Reply) -> Callable[[Request], Reply]:
    """Answer reports with one reply and policy polls with another."""
    return lambda request: post if request.method == "POST" else get


def acknowledge(request: Request, policy: str = "") -> Reply:
    """Take a report or a batch of them, as a balancer does."""
    if not request.path.endswith("/batches"):
        answer = {"accepted": True, "duplicate": False, "policy": policy}
    else:
        rows = len(decode_batch(request.body))
        none = {"duplicates": 0, "late": 0, "refused": []}
        answer = {"accepted": rows, "policy": policy, **none}
    return Reply(body=msgspec.json.encode(answer))


NO_JOB = Reply(status=404, body=b"{}")
# A whole answer after a quarter of an hour, and never silent for long.
TRICKLE = Reply(gap_s=0.1, body=ACCEPTED + b" " * 10_000)


def delivered(requests: Iterable[Request]) -> list[Report]:
    """Return the reports in these requests, each once, as a balancer takes them.

    A report that had no answer may come again, byte for byte the same but for its raw points:
    those that a relay keeps are drawn anew for every batch.
    """
    first: dict[tuple[int, str, int], Report] = {}
    for request in requests:
        for report in sent(request):
            key = (report.attempt, report.agent, report.sequence)
            earlier = first.setdefault(key, report)
            assert _without_points(earlier) == _without_points(report)
    return list(first.values())


def _without_points(report: Report) -> bytes:
    moments = [msgspec.structs.replace(kind, points=[]) for kind in report.moments]
    return encode_report(msgspec.structs.replace(report, moments=moments))


def sent(request: Request) -> list[Report]:
    """Return the reports in a request, none in a policy poll."""
    if request.method != "POST":
        return []
    if request.path.endswith("/batches"):
        return decode_batch(request.body).reports()
    return [decode_report(request.body)]


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Poll until the condition holds; return whether it did within the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    """Assert that no thread that the agent starts in the block outlives it for long."""
    before = set(threading.enumerate())
    yield

    def ended() -> bool:
        new = set(threading.enumerate()) - before
        return not [thread for thread in new if thread.name.startswith("libra-")]

    assert eventually(ended, timeout_s=30)
