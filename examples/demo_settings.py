"""What ``libra demo`` is asked for, checked against this machine before anything starts."""

import argparse
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from libra.examples.model import ModelSettings
from libra.examples.pairs import Clock

HOST = "127.0.0.1"
_MOST_RANKS = 8
_PLOT_FORMATS = (".pdf", ".png", ".svg")


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """Settings of one demo.

    Attributes:
        ranks: training processes.
        cp: ranks that share a packed sequence.
        pool: packed sequences of a pool.
        tokens: of a packed sequence.
        pairs: steady pairs to measure under a published policy.
        max_minutes: of training; what is measured by then is reported.
        port: of the balancer, free.
        clock: "cpu" where ranks share cores: a rank's wall time is then other ranks' work.
        out: folder that this run's own folder is made in.
        json, plot: files to write; in the run's own folder by default.
        keep: leave the dashboard up afterwards.
    """

    ranks: int
    cp: int = 1
    pool: int = 2
    tokens: int = 8192
    pairs: int = 20
    max_minutes: float = 20.0
    port: int = 8765
    clock: Clock
    out: Path = Path("demo-out")
    json: Path | None = None
    plot: Path | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        for name in ("cp", "pool", "tokens", "pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)}: must be at least 1")
        if not self.max_minutes > 0:
            raise ValueError(f"--max-minutes {self.max_minutes:g}: must be above 0")
        kv_heads = ModelSettings().kv_heads
        if kv_heads % self.cp or self.tokens % self.cp:
            raise ValueError(
                f"--cp {self.cp}: must divide the model's {kv_heads} kv heads and --tokens "
                f"{self.tokens}"
            )
        if self.ranks < 2 or self.ranks % (self.cp * self.pool):
            raise ValueError(
                f"--ranks {self.ranks}: must be at least 2 and a multiple of --cp times --pool, "
                f"{self.cp * self.pool}"
            )
        for path in filter(None, (self.json, self.plot)):
            if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
                raise ValueError(f"cannot write {path}: no writable folder {path.parent}")
            if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
                raise ValueError(f"cannot write {path}: it is no writable file")
        if self.plot and self.plot.suffix not in _PLOT_FORMATS:
            raise ValueError(f"--plot {self.plot}: must end in one of {', '.join(_PLOT_FORMATS)}")

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> Self:
        """Fill in what depends on the machine.

        Raises:
            ValueError: an option does not fit the others or the machine.
            OSError: the port is taken.
        """
        options = vars(args)
        cores = usable_cores()
        ranks = args.ranks
        if ranks is None:
            if cores < 2:
                raise ValueError(
                    "this machine offers 1 core, and balancing takes 2; --ranks 2 runs all the "
                    "same and is judged by CPU time"
                )
            ranks = min(cores - cores % 2, _MOST_RANKS)
        clock = args.clock or ("wall" if cores >= ranks else "cpu")
        given = {name: options[name] for name in cls.__slots__ if options.get(name) is not None}
        given |= {"ranks": ranks, "clock": clock, "port": _free_port(args.port)}
        return cls(**given)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_port(port: int) -> int:
    """Return the port, or a free one for 0; raise ``OSError`` if it is taken."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"--port {port}: must be in 0..65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise OSError(
                f"--port {port}: {os.strerror(error.errno or 0).lower()}; --port 0 takes a free one"
            ) from error
        return int(probe.getsockname()[1])
