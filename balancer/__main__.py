"""The command ``libra``. A subcommand's module is loaded only when that subcommand is run."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from libra.balancer.version import libra_version

# Name: (module with ``add_arguments`` and ``run``, help).
_COMMANDS = {
    "serve": ("libra.balancer.serve", "run the balancer and its dashboard"),
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
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError as error:
                return _lacks(name, error)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    return int(args.run(args))


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
