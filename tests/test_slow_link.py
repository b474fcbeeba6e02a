"""The slow link is no faster than asked for, and nothing of it outlives its ``with`` block."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException

from benchmarks.slow_link import SlowLinkUnavailableError, slow_link

RATE_MBIT = 200.0
BYTES = 4_000_000
DELAY_MS = 20.0


@pytest.fixture(scope="module", autouse=True)
def permitted() -> None:
    """Skip where links cannot be made, but not where one argument or path is broken."""
    try:
        with slow_link(ranks=1, rate_mbit=1):
            pass
    except SlowLinkUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def devices() -> Iterator[None]:
    """Check that this machine's own network is as it was before the test."""
    before = sorted(os.listdir("/sys/class/net"))
    yield
    assert sorted(os.listdir("/sys/class/net")) == before


def _namespaces(*holders: int) -> set[str]:
    return {os.readlink(f"/proc/{holder}/ns/net") for holder in holders}


def _in_use() -> set[str]:
    """Return the network namespaces that some process keeps alive."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns/net"))
        except OSError:  # It ended meanwhile.
            continue
    return found


def _there_and_back(rank: int, size: int) -> float:
    """Return the seconds for ``size`` bytes from rank 0 to rank 1 and four bytes back."""
    message, answer = torch.zeros(size, dtype=torch.uint8), torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    if rank == 0:
        dist.send(message, 1)
        dist.recv(answer, 1)
    else:
        dist.recv(message, 0)
        dist.send(answer, 0)
    return time.perf_counter() - start


def _both_sizes(rank: int) -> tuple[float, float]:
    return _there_and_back(rank, 4), _there_and_back(rank, BYTES)


def _fail(rank: int) -> None:
    raise RuntimeError(f"rank {rank} fails")


@pytest.mark.dist
@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("delay_ms", [0.0, DELAY_MS], ids=["kernel", "delayed"])
def test_a_transfer_takes_at_least_its_bytes_over_the_rate(delay_ms: float) -> None:
    """No transfer beats the rate and the delay; then no namespace is left in use."""
    with slow_link(ranks=2, rate_mbit=RATE_MBIT, delay_ms=delay_ms) as link:
        namespaces = _namespaces(link.switch, *link.holders)
        small, large = link.run(_both_sizes)[0]
        assert namespaces <= _in_use()

    # What an idle port passes at once is not held to the rate.
    trip = 2 * delay_ms / 1e3
    assert small >= trip
    assert large >= trip + (BYTES - link.burst_bytes) * 8 / (RATE_MBIT * 1e6)
    assert len(namespaces) == 3
    assert not namespaces & _in_use()


@pytest.mark.dist
@pytest.mark.fault
@pytest.mark.usefixtures("devices")
def test_a_rank_that_raises_leaves_nothing_behind() -> None:
    """The caller sees the rank's own error, and the link is gone."""
    namespaces: set[str] = set()
    with (  # noqa: PT012
        pytest.raises(ProcessRaisedException, match="fails"),
        slow_link(ranks=2, rate_mbit=RATE_MBIT) as link,
    ):
        namespaces = _namespaces(link.switch, *link.holders)
        link.run(_fail)

    assert len(namespaces) == 3
    assert not namespaces & _in_use()


_HOLD_A_LINK = """
import signal
from benchmarks.slow_link import slow_link

with slow_link(ranks=2, rate_mbit=200, delay_ms=1) as link:
    print(link.switch, *link.holders, flush=True)
    signal.pause()
"""


@pytest.mark.fault
@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_process_leaves_nothing_behind(ending: signal.Signals) -> None:
    """Namespaces go with the process that made them, even one that could clean up nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_A_LINK],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        text=True,
    ) as process:
        assert process.stdout is not None
        holders = [int(word) for word in process.stdout.readline().split()]
        namespaces = _namespaces(*holders)
        ended = [os.pidfd_open(holder) for holder in holders]
        process.send_signal(ending)
        process.wait(30)

    for holder in ended:
        assert select.select([holder], [], [], 30)[0]
        os.close(holder)
    assert len(namespaces) == 3
    assert not namespaces & _in_use()


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the system's tools the error says which one is needed."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with (
        pytest.raises(SlowLinkUnavailableError, match="needs unshare"),
        slow_link(ranks=2, rate_mbit=RATE_MBIT),
    ):
        pass


@pytest.mark.parametrize(
    ("ranks", "rate_mbit", "delay_ms"), [(0, 1, 0), (251, 1, 0), (2, 0, 0), (2, 1, -1)]
)
def test_arguments_out_of_range_are_refused(ranks: int, rate_mbit: float, delay_ms: float) -> None:
    """A link of no ranks, no rate or a negative delay is a ``ValueError``."""
    with (
        pytest.raises(ValueError, match="must be"),
        slow_link(ranks=ranks, rate_mbit=rate_mbit, delay_ms=delay_ms),
    ):
        pass
