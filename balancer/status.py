"""``libra status``: one screen about a balancer; status 0 if it is ready, else 1."""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from libra.balancer.client import Client
from libra.balancer.client_options import add_client_options, with_client
from libra.balancer.terminal import bytes_text, duration_text, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra status``."""
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print how the balancer is; return the exit status."""
    return with_client("status", args, _show)


def _show(client: Client) -> int:
    view = client.view("/api/v1/status")
    Console(highlight=False).print(status_table(client.url, view))
    return 0 if view["ready"] else 1


def status_table(url: str, view: dict[str, Any]) -> Table:
    """Return the balancer's state as two columns."""
    table = Table.grid(padding=(0, 2))
    jobs, store, queue = view["jobs"], view["store"], view["queue"]
    ready = "[green]ready[/]" if view["ready"] else f"[red]not ready:[/] {plain(view['not_ready'])}"
    health = "" if store["healthy"] else ", [red]the last write failed[/]"
    rows = {
        "Balancer": f"{plain(url)}, {ready}",
        "Version": plain(view["version"]),
        "Role": f"{plain(view['role'])}, up for {duration_text(view['uptime_seconds'])}",
        "Jobs": ", ".join(f"{count} {state}" for state, count in jobs.items()),
        "Store": f"{plain(store['label'])}, {bytes_text(store['size_bytes'])}{health}",
        "Writing": f"{store['waiting']} of {store['capacity']} wait for the disk",
        "Reports": f"{queue['waiting']} of {queue['capacity']} requests wait to be taken in",
        "Open": f"{view['open_streams']} event streams, {view['waiting_polls']} waiting polls",
    }
    for name, text in rows.items():
        table.add_row(f"[bold]{name}[/]", text)
    return table
