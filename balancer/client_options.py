"""What every command that asks a balancer is told, and how it ends when it gets no answer."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping

from libra.balancer.client import DEFAULT_URL, Client, ClientError

_FILES = {
    "token_file": "file with an access token",
    "ca_file": "authorities whose certificates the balancer may have, PEM",
    "cert_file": "certificate to show the balancer, PEM",
    "key_file": "its private key, PEM",
}


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Declare where the balancer is, and who asks."""
    parser.add_argument(
        "--url", help=f"the balancer's address (default: $LIBRA_BALANCER, else {DEFAULT_URL})"
    )
    for name, what in _FILES.items():
        flag = "--" + name.replace("_", "-")
        told = f"{what} (default: ${_variable(name)})"
        parser.add_argument(flag, metavar="FILE", help=told)
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="seconds to wait for an answer (5)"
    )


def client_of(args: argparse.Namespace) -> Client:
    """Return the client that the arguments and the environment ask for; or ``ValueError``."""
    if not 0 < args.timeout <= 3600:
        raise ValueError(f"timeout={args.timeout:g}: must be in (0, 3600] seconds")
    files = {name: choose(getattr(args, name), _variable(name), os.environ) for name in _FILES}
    url = choose(args.url, "LIBRA_BALANCER", os.environ) or DEFAULT_URL
    return Client(url, **files, timeout_s=args.timeout)


def choose(given: str | None, variable: str, environ: Mapping[str, str]) -> str:
    """Return what was given, else what the environment says, else nothing."""
    return given or environ.get(variable, "").strip()


def _variable(name: str) -> str:
    return f"LIBRA_{name.upper()}"


def with_client(command: str, args: argparse.Namespace, act: Callable[[Client], int]) -> int:
    """Run a command with its client; a failure is one line, status 1, or 2 for wrong settings."""
    try:
        with client_of(args) as client:
            return act(client)
    except ValueError as error:
        sys.stderr.write(f"libra {command}: {error}\n")
        return 2
    except ClientError as error:
        sys.stderr.write(f"libra {command}: {error}\n")
        return 1
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
