"""The command ``libra``. A subcommand's module is loaded only when that subcommand is run."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from libra.balancer.version import libra_version

# Name: (module with ``add_arguments`` and ``run``, help).
_COMMANDS = {
    "serve": ("libra.balancer.serve", "run the balancer and its dashboard"),
    "token": ("libra.balancer.tokens_command", "make, list and revoke access tokens"),
    "status": ("libra.balancer.status", "say how a balancer is"),
    "jobs": ("libra.balancer.job_list", "list the jobs of a balancer"),
    "top": ("libra.balancer.top", "watch jobs, or the slowest ranks of one"),
    "doctor": ("libra.balancer.doctor", "check what an agent or a person meets on the way"),
    "replay": ("libra.balancer.replay", "say what a recorded job loses its time to"),
    "demo": ("libra.examples.demo", "train a small model on this machine, before and after"),
}
# What a base install may lack, and the extra that brings it.
_EXTRAS = {"torch": "demo", "matplotlib": "demo", "pyarrow": "data", "yaml": "data"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="libra", description="Even attention work across ranks.")
    parser.add_argument("--version", action="version", version=f"libra {libra_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if arguments[:1] == [name]:
            if name == "serve":
                _compute_on_one_core()
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError as error:
                return _lacks(name, error)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    return int(args.run(args))


def _compute_on_one_core() -> None:
    """Keep numpy's libraries to one thread: the balancer's arrays are small, and others need the
    machine. They look at this when they are loaded."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def _lacks(command: str, error: ModuleNotFoundError) -> int:
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        raise error
    sys.stderr.write(
        f"libra {command}: {error.name} is not installed: pip install 'libra-balancer[{extra}]'\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
