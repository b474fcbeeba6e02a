"""``libra doctor``: check the way from here to a balancer; status 1 if anything is wrong."""

import argparse
import os

from rich.console import Console

from libra.balancer.client import Client
from libra.balancer.client_options import add_client_options, with_client
from libra.balancer.doctor_checks import Check, check_all
from libra.balancer.terminal import plain

_COLOURS = {"ok": "green", "note": "yellow", "fail": "red", "skipped": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra doctor``."""
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print each check as it is made; return the exit status."""
    console = Console(highlight=False)

    def act(client: Client) -> int:
        failed = False
        for check in check_all(client, os.environ):
            _print(console, check)
            failed |= check.verdict == "fail"
        return 1 if failed else 0

    return with_client("doctor", args, act)


def _print(console: Console, check: Check) -> None:
    colour = _COLOURS[check.verdict]
    detail = plain(check.detail)
    console.print(f"[{colour}]{check.verdict:<8}[/]{check.name:<13}{detail}", soft_wrap=True)
    if check.remedy:
        console.print(f"{'':<21}{plain(check.remedy)}", soft_wrap=True)
