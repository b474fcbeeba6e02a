"""``libra serve``: read the settings, open the store, listen, and stop cleanly on a signal.

Exit status: 0 after a clean stop, 1 if it cannot serve or could not write everything before it
stopped, 2 for settings that cannot be.
"""

import argparse
import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from libra.balancer import failpoints
from libra.balancer.config import Loaded, add_options, load
from libra.balancer.process import without_collections
from libra.balancer.settings import ServeSettings
from libra.balancer.store_settings import default_store

if TYPE_CHECKING:
    from libra.balancer.leadership import Leadership
    from libra.balancer.listener import Listener
    from libra.balancer.service import Service
    from libra.balancer.sqlite_store import SqliteBackend

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra serve``."""
    add_options(parser)
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the settings in force as TOML, secrets masked, and stop",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes; return the exit status."""
    try:
        failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
        loaded = load(vars(args), os.environ)
        if args.print_config:
            return _print(loaded)
        with without_collections():
            return _run(loaded.settings)
    except ValueError as error:
        return _fail(str(error), status=2)


def _print(loaded: Loaded) -> int:
    from libra.balancer.config_print import print_config

    sys.stdout.write(print_config(loaded))
    return 0


def _run(settings: ServeSettings) -> int:
    # Here, so that wrong settings are told at once and help costs nothing.
    from libra.balancer.access_exposure import check_exposure, check_files
    from libra.balancer.listener import ListenError, listening
    from libra.balancer.logs import start_logs
    from libra.balancer.storage import StoreError

    check_exposure(settings.listen, settings.access)
    check_files(settings.access)
    start_logs(settings.logs)
    try:
        with listening(settings.listen) as listener:
            # systemd may have handed over others than the settings say.
            for place in listener.places(settings.listen):
                check_exposure(place, settings.access)
            return _serve(settings, listener)
    except (StoreError, ListenError) as error:
        return _fail(str(error))


def _serve(settings: ServeSettings, listener: "Listener") -> int:
    from libra.balancer.access_exposure import tls_options
    from libra.balancer.app import create_app
    from libra.balancer.listener import address_file
    from libra.balancer.process import ease_collections, raise_file_limit
    from libra.balancer.server import Server
    from libra.balancer.systemd import Notifier

    tls = tls_options(settings.access)
    url = listener.url(secure=bool(tls))
    with ExitStack() as cleanup:
        service, leadership = _open_service(settings)
        files = raise_file_limit()

        def ready() -> None:
            cleanup.enter_context(address_file(settings.listen.address_file, url))
            logger.info("Ready; up to %d files and connections may be open.", files)
            _announce(url, service)

        server = Server(
            create_app(service, settings, leadership),
            settings.listen,
            tls=tls,
            tls_reload_s=settings.access.tls_reload_s,
            notifier=Notifier(os.environ),
            on_ready=ready,
            on_stop=service.end_streams,
        )
        ease_collections()
        server.run(sockets=listener.sockets)
        if server.failure is not None:
            raise server.failure
    return 1 if server.force_exit else 0


def _open_service(settings: ServeSettings) -> "tuple[Service, Leadership | None]":
    """Return the service, and who decides when it answers if several share the store."""
    from libra.balancer.leadership import Leadership
    from libra.balancer.postgres import is_postgres, open_postgres
    from libra.balancer.service import Service
    from libra.balancer.store import Store

    if is_postgres(settings.store.store):
        shared = open_postgres(settings.store)
        service = Service(Store(shared), settings.service, storing=settings.store)
        return service, Leadership(service, shared, settings.store.lead_timeout_s)
    backend = _open_file(settings)
    service = Service(Store(backend), settings.service, storing=settings.store)
    if backend.set_aside is not None:
        service.warnings.append(f"a damaged store was moved to {backend.set_aside}")
    service.restore()
    return service, None


def _open_file(settings: ServeSettings) -> "SqliteBackend":
    from libra.balancer.sqlite_store import SqliteBackend
    from libra.balancer.storage import StoreError

    path = Path(settings.store.store)
    if settings.store.store == default_store():
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {path.parent}: {error.strerror}") from error
    return SqliteBackend(path)


def _announce(url: str, service: "Service") -> None:
    local = url.startswith("unix:")
    _say(f"Socket      {url}" if local else f"Dashboard   {url}/")
    state = f"{len(service.jobs)} jobs" if service.role == "active" else "stands by until it leads"
    _say(f"Store       {service.store.label} ({state})")
    _say(f"In the job  export LIBRA_BALANCER={url} LIBRA_JOB=NAME")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fail(message: str, *, status: int = 1) -> int:
    sys.stderr.write(f"libra serve: {message}\n")
    return status
