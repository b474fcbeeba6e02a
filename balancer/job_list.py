"""``libra jobs``: a line for every job that the balancer knows."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from libra.balancer.client import Client
from libra.balancer.client_options import add_client_options, with_client
from libra.balancer.terminal import number_text, plain, sparkline

_WIDTH = 16
_COLOURS = {"active": "green", "stale": "yellow", "finished": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra jobs``."""
    add_client_options(parser)
    parser.add_argument("--json", action="store_true", help="print what the API says")


def run(args: argparse.Namespace) -> int:
    """Print the jobs; return the exit status."""

    def act(client: Client) -> int:
        jobs = client.view("/api/v1/jobs")["jobs"]
        if args.json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(jobs)).decode() + "\n")
        else:
            Console(highlight=False).print(jobs_table(jobs) if jobs else "No job has reported yet.")
        return 0

    return with_client("jobs", args, act)


def jobs_table(
    jobs: Sequence[Mapping[str, Any]],
    skews: Mapping[str, Sequence[float | None]] | None = None,
) -> Table:
    """Return a table of jobs' summaries; ``skews`` adds their course by job."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("job", "state"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("ranks", "step", "skew"):
        table.add_column(name, justify="right", no_wrap=True)
    if skews is not None:
        table.add_column("", no_wrap=True, min_width=_WIDTH)
    table.add_column("mode", no_wrap=True)
    table.add_column("what its steps lose time to", overflow="fold")
    for job in jobs:
        table.add_row(*_cells(job, skews))
    return table


def _cells(job: Mapping[str, Any], skews: Mapping[str, Sequence[float | None]] | None) -> list[str]:
    ranks, world_size = job.get("ranks_reporting", 0), job.get("world_size", 0)
    step = job.get("step")
    state = str(job["state"])
    course = [] if skews is None else [sparkline(skews.get(str(job["job"]), ()), _WIDTH)]
    return [
        plain(job["job"]),
        f"[{_COLOURS.get(state, 'default')}]{plain(state)}[/]",
        f"{ranks}" if ranks == world_size else f"{ranks} of {world_size}",
        "-" if step is None else f"{step}",
        number_text(job.get("skew")),
        *course,
        plain(job.get("mode", "-")),
        plain(job.get("diagnosis") or "-"),
    ]
