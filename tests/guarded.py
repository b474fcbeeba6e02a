"""A balancer with access control, on a real socket in this process: what it holds can be read."""

import io
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from libra.balancer.access import Gate
from libra.balancer.access_exposure import tls_options
from libra.balancer.access_rules import Scope
from libra.balancer.access_settings import AccessSettings
from libra.balancer.app import create_app
from libra.balancer.listen_settings import ListenSettings
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings, ServiceSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store
from libra.balancer.tokens import new_token
from libra.balancer.tokens_file import tokens_to_change
from libra.balancer.wire import encode_report
from tests.running import MSGPACK, make_report


@dataclass(frozen=True, kw_only=True)
class GuardedBalancer:
    """A balancer that answers at ``url``, its parts, and every line that it logs."""

    url: str
    service: Service
    gate: Gate
    log: io.StringIO
    client: httpx.Client

    def ask(self, method: str, path: str, token: str = "", **options: Any) -> httpx.Response:
        headers = dict(options.pop("headers", {}))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return self.client.request(method, path, headers=headers, **options)

    def report(self, job: str, token: str = "", sequence: int = 0) -> httpx.Response:
        body = encode_report(make_report(job, sequence=sequence))
        path = f"/api/v1/jobs/{job}/reports"
        return self.ask("POST", path, token, content=body, headers=MSGPACK)


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A file of tokens, and the texts of those that it was given."""

    path: Path
    texts: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, scope: Scope, *, job: str = "", age_s: float = -3600.0) -> str:
        """Add a token that has been over for ``age_s``, or will be; return its text."""
        expires = datetime.now(UTC) - timedelta(seconds=age_s)
        text, token = new_token(scope, job=job, expires=expires)
        with tokens_to_change(self.path) as tokens:
            tokens[token.id] = token
        self.texts[name], self.ids[name] = text, token.id
        return text

    def revoke(self, name: str) -> None:
        with tokens_to_change(self.path) as tokens:
            del tokens[self.ids[name]]


def token_file(path: Path) -> TokenFile:
    """Make a file with a token of each scope; ``report`` is bound to the job ``mine``."""
    file = TokenFile(path=path)
    file.add("admin", "admin")
    file.add("read", "read")
    file.add("report", "report", job="mine")
    return file


@contextmanager
def guarded_balancer(
    store: Path, access: AccessSettings, *, listen: ListenSettings | None = None, **client: Any
) -> Iterator[GuardedBalancer]:
    """Serve on a free port of loopback, with everything logged that anyone would log."""
    settings = ServeSettings(access=access, listen=listen or ListenSettings())
    service = Service(Store(SqliteBackend(store)), ServiceSettings(heartbeat_s=0.2))
    app = create_app(service, settings)
    options = tls_options(access)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, proxy_headers=False, log_level="debug", **options
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener, _logged() as log:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        scheme = "https" if options else "http"
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            with httpx.Client(base_url=url, timeout=30, **client) as asked:
                yield GuardedBalancer(
                    url=url, service=service, gate=app.state.gate, log=log, client=asked
                )
        finally:
            service.end_streams()
            server.should_exit = True
            thread.join(30)


@contextmanager
def _logged() -> Iterator[io.StringIO]:
    """Keep every line of the balancer and its server, debugging ones too."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    # The tests' own client is no part of the balancer.
    handler.addFilter(lambda record: not record.name.startswith("http"))
    root = logging.getLogger()
    levels = {logger: logger.level for logger in (root, logging.getLogger("uvicorn.error"))}
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        for logger, level in levels.items():
            logger.setLevel(level)
