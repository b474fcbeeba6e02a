"""The HTTP server: uvicorn, which drains on the first signal and stops at the second."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

from libra.balancer.certificates import Certificate
from libra.balancer.listen_settings import ListenSettings
from libra.balancer.systemd import Notifier

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Beyond drain_s: for what is in the middle of a system call that takes its time.
_GRACE_S = 2.0
_BACKLOG = 4096


class Server(uvicorn.Server):
    """Serve on sockets until a signal comes.

    Args:
        tls: uvicorn's settings of TLS.
        tls_reload_s: seconds between looks for a renewed certificate.
        notifier: is told when the server is ready and when it stops.
        on_ready, on_stop: called then, on the event loop.

    Attributes:
        failure: what ``on_ready`` raised, which ends the server.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ListenSettings,
        *,
        tls: Mapping[str, Any],
        tls_reload_s: float,
        notifier: Notifier,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(_config(app, settings, tls))
        self._drain_s = settings.drain_s
        self._notifier = notifier
        self._on_ready = on_ready
        self._on_stop = on_stop
        self.failure: Exception | None = None
        self._tls_reload_s = tls_reload_s
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tasks.append(asyncio.create_task(self._notifier.keep_watchdog()))
        config = self.config
        if config.ssl is not None:
            files = str(config.ssl_certfile), str(config.ssl_keyfile)
            watch = Certificate(config.ssl, *files).watch(self._tls_reload_s)
            self._tasks.append(asyncio.create_task(watch))
        try:
            self._on_ready()
        except Exception as error:
            # Not from here: uvicorn would leave the application without its end.
            self.failure = error
            self.should_exit = True
            return
        self._notifier.tell("READY=1", "STATUS=Serving.")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.tell("STOPPING=1", "STATUS=Stopping: writing what is in memory.")
        self._on_stop()
        with _deadline(self._drain_s + _GRACE_S):
            await super().shutdown(sockets)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again at the end, which then is the exit status.
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _config(app: ASGIApp, settings: ListenSettings, tls: Mapping[str, Any]) -> uvicorn.Config:
    proxies = list(settings.forwarded_allow_ips)
    # With client certificates TLS brings a protocol of its own.
    options: dict[str, Any] = {"http": _fast("httptools", "h11"), **tls}
    return uvicorn.Config(
        app,
        loop=_fast("uvloop", "asyncio"),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        backlog=_BACKLOG,
        # uvicorn only waits for it, so that a part of a second is as good as a whole one.
        timeout_graceful_shutdown=settings.drain_s / 2,  # type: ignore[arg-type]
        **options,
    )


def _fast(module: Any, otherwise: Any) -> Literal["auto"]:
    """Return the name of the fast implementation where it is installed."""
    found: Literal["auto"] = module if importlib.util.find_spec(module) else otherwise
    return found


@contextmanager
def _deadline(timeout_s: float) -> Iterator[None]:
    """End the process, with status 1, when the block takes longer: a disk may hang for ever."""

    def give_up() -> None:
        logger.critical("Stopping took longer than %g s: what was not written is lost.", timeout_s)
        os._exit(1)

    timer = threading.Timer(timeout_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
