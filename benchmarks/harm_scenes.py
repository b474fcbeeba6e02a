"""What stands around a rank whose agent is measured: balancers of every sort, a node, a relay."""

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.certificates import make_certificate
from tests.guarded import token_file
from tests.harm import BALANCERS, balancer_in
from tests.node_peers import NODE_RANKS
from tests.running import ROOT, serve

_JOB = "job"
_NODE = {"world_size": NODE_RANKS, "local_world_size": NODE_RANKS}
_PLACES = {"relay leader": 0, "relay member": 1}
# No agent in either block: what two equal blocks differ by.
CONTROL = "none (control)"
MODES = (CONTROL, *BALANCERS, "dead", *_PLACES, "token and TLS")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where the balancer is, if there is one, and what else the measured agent is told."""

    url: str
    agent: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def scene(mode: str) -> Iterator[Scene]:
    """Set up what a mode needs, all of it in other processes."""
    with ExitStack() as stack:
        if mode == CONTROL:
            yield Scene(url="")
        elif mode == "dead":
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            yield Scene(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        elif mode in _PLACES:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="libra-"))
            url, rank = stack.enter_context(_told_process("healthy")), _PLACES[mode]
            os.environ["XDG_RUNTIME_DIR"] = folder
            stack.enter_context(_peers(url, rank))
            yield Scene(url=url, agent={**_NODE, "rank": rank, "local_rank": rank})
        elif mode == "token and TLS":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="libra-"))
            yield stack.enter_context(_guarded(Path(folder)))
        else:
            yield Scene(url=stack.enter_context(_told_process(mode)))


@contextmanager
def _told_process(mode: str) -> Iterator[str]:
    """Run a balancer that does as told; give its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(mode, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join(30.0)
        process.kill()


def _serve(mode: str, pipe: Connection) -> None:
    with balancer_in(mode) as balancer:
        pipe.send(balancer.url)
        pipe.recv()


@contextmanager
def _peers(url: str, rank: int) -> Iterator[None]:
    """Run the agents of a node's other ranks, which train a step a second."""
    command = [sys.executable, "-m", "tests.node_peers", json.dumps([url, rank])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield
        finally:
            process.kill()


@contextmanager
def _guarded(folder: Path) -> Iterator[Scene]:
    """Run a real balancer that asks for a token over TLS."""
    authority = make_certificate(folder, "authority")
    own = make_certificate(folder, "balancer", by=authority)
    tokens = token_file(folder / "tokens")
    secret = folder / "token"
    secret.write_text(tokens.add("own", "report", job=_JOB))
    secret.chmod(0o600)
    options = ["--tokens", str(tokens.path), "--tls-cert", str(own.cert), "--tls-key", str(own.key)]
    with (folder / "log").open("w") as log, serve(folder / "db", *options, stderr=log) as process:
        assert process.stdout is not None
        found = (re.search(r"https://127\.0\.0\.1:\d+", line) for line in process.stdout)
        url = next(match[0] for match in found if match)
        yield Scene(url=url, agent={"token_file": str(secret), "ca_file": str(authority.cert)})
