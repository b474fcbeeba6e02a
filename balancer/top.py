"""``libra top``: watch jobs, or the slowest ranks of one, in a terminal; ``q`` leaves."""

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live

from libra.balancer.client import Client
from libra.balancer.client_options import add_client_options, client_of, with_client
from libra.balancer.top_feed import TopFeed
from libra.balancer.top_frame import job_frame, jobs_frame

_REFRESH_S = 0.25
_LEAVE = ("q", "Q", "\x03")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra top``."""
    parser.add_argument("job", nargs="?", help="show this job's slowest ranks")
    add_client_options(parser)
    parser.add_argument("--once", action="store_true", help="print one frame and stop")


def run(args: argparse.Namespace) -> int:
    """Watch until told to leave; return the exit status."""
    console = Console(highlight=False)
    feed = TopFeed(lambda: client_of(args), args.job)

    def act(client: Client) -> int:
        def frame() -> RenderableType:
            draw = job_frame if args.job else jobs_frame
            height = 10_000 if args.once else console.height
            return draw(feed.seen, url=client.url, connection=feed.connection, height=height)

        # Once at first: a wrong address is told in one line, not in an empty screen.
        feed.fetch(client)
        if args.once or not console.is_terminal:
            console.print(frame())
        else:
            _watch(console, feed, frame)
        return 0

    return with_client("top", args, act)


def _watch(console: Console, feed: TopFeed, frame: Callable[[], RenderableType]) -> None:
    feed.start()
    with (
        contextlib.suppress(KeyboardInterrupt),
        contextlib.closing(feed),
        _keys() as key,
        Live(frame(), console=console, screen=True, auto_refresh=False) as live,
    ):
        while key() not in _LEAVE:
            live.update(frame(), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Give what returns the key that is pressed within a moment, or nothing."""
    # Here, for Windows has neither.
    import termios
    import tty

    if not sys.stdin.isatty():

        def wait() -> str:
            time.sleep(_REFRESH_S)
            return ""

        yield wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def key() -> str:
        ready, _, _ = select.select([descriptor], [], [], _REFRESH_S)
        return os.read(descriptor, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
