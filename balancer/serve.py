"""``libra serve``: open the store, listen, and stop cleanly on SIGTERM or SIGINT."""

import argparse
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import uvicorn

from libra.balancer.app import create_app
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings, default_store
from libra.balancer.state import Mode
from libra.balancer.store import Store, StoreError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra serve``."""
    parser.add_argument("--host", default="127.0.0.1", help="loopback address (%(default)s)")
    parser.add_argument("--port", type=int, default=8765, help="0 takes a free one (%(default)s)")
    parser.add_argument("--store", type=Path, help=f"SQLite file ({default_store()})")
    parser.add_argument(
        "--mode",
        choices=get_args(Mode),
        default="observe",
        help="mode of jobs seen for the first time (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes; return the exit status."""
    try:
        settings = ServiceSettings(
            host=args.host, port=args.port, store=args.store or default_store(), mode=args.mode
        )
    except ValueError as error:
        return _fail(str(error), status=2)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    # Its lines about starting and stopping repeat ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        with _listen(settings) as listener:
            service = Service(_open_store(settings, make_directory=args.store is None), settings)
            service.restore()
            _Server(service).run(sockets=[listener])
    except (StoreError, ListenError) as error:
        return _fail(str(error))
    return 0


class ListenError(Exception):
    """The address cannot be listened on; the message is one sentence for people."""


class _Server(uvicorn.Server):
    """A uvicorn server that ends open streams when it stops, and exits with status 0 then."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=service.settings.drain_s,
            )
        )
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        _announce(sockets[0], self._service)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end_streams()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again at the end, which then is the exit status.
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listen(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        why = "in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        raise ListenError(f"cannot listen on {settings.host}:{settings.port}: {why}") from error
    return listener


def _open_store(settings: ServiceSettings, *, make_directory: bool) -> Store:
    if make_directory:
        try:
            settings.store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {settings.store.parent}: {error.strerror}") from error
    return Store(settings.store, queue_size=settings.queue_size)


def _announce(listener: socket.socket, service: Service) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    _say(f"Dashboard   {url}/")
    _say(f"Store       {service.store.path} ({len(service.jobs)} jobs)")
    _say(f"In the job  export LIBRA_BALANCER={url} LIBRA_JOB=NAME")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fail(message: str, *, status: int = 1) -> int:
    sys.stderr.write(f"libra serve: {message}\n")
    return status
