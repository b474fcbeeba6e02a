"""Ranks joined by a network as slow as asked for: what the operator does on a thin or long wire.

Every rank runs in a network namespace of its own, on a port of a switch. A port carries
``rate_mbit`` each way, limited by the kernel's token buckets; a kernel without netem cannot
delay, so a link with a delay has its switch in user space (``delayed_switch.py``). Each namespace
lives as long as the process that holds it, and that ends when this one does, however it ends:
nothing is left behind.

The link carries its rate both ways at once. gloo does not always: of two ranks that send to each
other over one connection, one may wait for the other's message to pass, which takes twice as long.

    with slow_link(ranks=2, rate_mbit=1000, delay_ms=0.5) as link:
        seconds = link.run(measure, 8192)  # [measure(rank, 8192) for each rank]

Linux, root, iproute2 and util-linux are needed.
"""

import contextlib
import ctypes
import datetime
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

_SWITCH = Path(__file__).with_name("delayed_switch.py")
_CLONE_NEWNET = 0x40000000
_STORE = "tcp://10.77.0.1:29500"
_MTU = 9000
_START_S = 30.0


class SlowLinkUnavailableError(RuntimeError):
    """This machine or user cannot make such a link; says what refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowLink:
    """Ranks' namespaces, alive while the ``with`` block of ``slow_link`` runs.

    Attributes:
        burst_bytes: bytes that an idle port passes at once before its rate holds.
        switch: process that keeps the switch's namespace.
        holders: processes that keep the ranks' namespaces, by rank.
    """

    burst_bytes: int
    switch: int
    holders: tuple[int, ...]

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 100.0) -> list[Any]:
        """Run ``function(rank, *args)`` on every rank, in a default gloo group over the link.

        Args:
            function: module-level function; it and its result must pickle.
            timeout_s: deadline for all ranks, start-up included.

        Returns:
            What each rank returned, by rank.

        Raises:
            torch.multiprocessing.ProcessRaisedException: a rank raised; holds its traceback.
            TimeoutError: not all ranks ended in time; they are killed first.
        """
        deadline = time.monotonic() + timeout_s
        with tempfile.TemporaryDirectory(prefix="slow-link-") as folder:
            context: Any = start_processes(
                _run_rank,
                args=(self.holders, folder, timeout_s, function, args),
                nprocs=len(self.holders),
                join=False,
                start_method="forkserver",
            )
            try:
                while not context.join(timeout=1.0):
                    if time.monotonic() >= deadline:
                        raise TimeoutError(f"{function.__qualname__}: not done in {timeout_s} s")
            finally:
                for process in context.processes:
                    process.kill()
                    process.join(_START_S)
            results = (Path(folder, str(rank)) for rank in range(len(self.holders)))
            return [pickle.loads(result.read_bytes()) for result in results]


@contextlib.contextmanager
def slow_link(*, ranks: int, rate_mbit: float, delay_ms: float = 0.0) -> Iterator[SlowLink]:
    """Join ``ranks`` namespaces by a link, for the length of a ``with`` block.

    Args:
        ranks: at most 250.
        rate_mbit: megabits a second each way of each rank's port.
        delay_ms: milliseconds one way. Above 0 every frame passes through a Python process:
            good to about a gigabit, and it takes its share of a core.

    Raises:
        ValueError: an argument out of range.
        SlowLinkUnavailableError: no root, a tool is missing, or the kernel refuses.
    """
    if not 1 <= ranks <= 250:
        raise ValueError(f"ranks={ranks}: must be in 1..250")
    if rate_mbit <= 0 or delay_ms < 0:
        raise ValueError(f"{rate_mbit=}, {delay_ms=}: must be above 0, and at least 0")
    bytes_per_s = rate_mbit * 1e6 / 8
    burst = max(4 * _MTU, int(bytes_per_s * 1e-3))
    shaper = f"tbf rate {int(rate_mbit * 1000)}kbit burst {burst} latency 100ms"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated_as_exit())
        switch_command = (
            (sys.executable, str(_SWITCH), str(ranks), str(delay_ms / 1e3), str(bytes_per_s))
            if delay_ms
            else _HOLD
        )
        switch = stack.enter_context(_namespace(switch_command))
        holders = tuple(stack.enter_context(_namespace(_HOLD)) for _ in range(ranks))
        if not delay_ms:
            _inside(switch, "ip link add bridge type bridge")
            _inside(switch, "ip link set bridge up")
        for rank, holder in enumerate(holders):
            if delay_ms:
                _inside(switch, f"ip link set port{rank} netns {holder} name eth0")
            else:
                _add_port(switch, rank, holder, shaper)
            _set_up(holder, rank, shaper)
        yield SlowLink(burst_bytes=burst, switch=switch, holders=holders)


# Says that it is in its namespace, then stays until its input closes: at the latest when the
# process that started it ends.
_HOLD = ("sh", "-c", "echo ready && exec cat")


@contextlib.contextmanager
def _namespace(command: tuple[str, ...]) -> Iterator[int]:
    """Run a command in a new network namespace while the block runs; yields its process id."""
    try:
        holder = subprocess.Popen(
            ("unshare", "--net", *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        raise SlowLinkUnavailableError(f"a slow link needs {error.filename}") from error
    with holder:
        try:
            assert holder.stdout is not None
            assert holder.stderr is not None
            if holder.stdout.readline().strip() != "ready":
                why = holder.stderr.read().strip().splitlines() or ["no reason given"]
                raise SlowLinkUnavailableError(f"no network namespace: {why[-1]}")
            yield holder.pid
        finally:
            holder.kill()


def _inside(holder: int, command: str) -> None:
    """Run a command in the namespace that a process holds."""
    words = ("nsenter", f"--net=/proc/{holder}/ns/net", *command.split())
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_START_S)
    except FileNotFoundError as error:
        raise SlowLinkUnavailableError(f"a slow link needs {error.filename}") from error
    if done.returncode:
        raise SlowLinkUnavailableError(f"{command}: {done.stderr.strip()}")


def _add_port(switch: int, rank: int, holder: int, shaper: str) -> None:
    """Join a rank's namespace to the bridge; what the rank receives is limited here."""
    port = f"port{rank}"
    for command in (
        f"ip link add {port} mtu {_MTU} type veth peer name eth0 mtu {_MTU} netns {holder}",
        f"ip link set {port} master bridge up",
        f"tc qdisc add dev {port} root {shaper}",
    ):
        _inside(switch, command)


def _set_up(holder: int, rank: int, shaper: str) -> None:
    """Give a rank its address; what it sends is limited here."""
    for command in (
        "ip link set lo up",
        # gloo takes the interface's first address: let there be only one.
        f"ip link set eth0 mtu {_MTU} addrgenmode none",
        f"ip address add 10.77.0.{rank + 1}/24 dev eth0",
        "ip link set eth0 up",
        f"tc qdisc add dev eth0 root {shaper}",
    ):
        _inside(holder, command)


@contextlib.contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind the block, so that ranks are ended too; on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, _: object) -> None:
        raise SystemExit(128 + signum)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run_rank(
    rank: int,
    holders: tuple[int, ...],
    folder: str,
    timeout_s: float,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    with open(f"/proc/{holders[rank]}/ns/net") as namespace:
        # Threads started later, gloo's among them, inherit it.
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=_STORE,
        rank=rank,
        world_size=len(holders),
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    result = function(rank, *args)
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
