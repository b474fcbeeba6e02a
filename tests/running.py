"""The real balancer in a process of its own, and reports to send it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import KernelMoments, KernelTotals, Report, StepTotals, encode_report

ROOT = Path(__file__).parent.parent
MSGPACK = {"Content-Type": "application/msgpack"}
FORWARD = KernelKind(
    device="cpu", backend="sdpa", dtype="float32", head_dim=64, group_heads=4, direction="forward"
)

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RunningBalancer:
    """A balancer that answers at ``url``; its log is in the file ``log``."""

    process: "subprocess.Popen[str]"
    url: str
    client: httpx.Client
    log: Path

    def send(self, report: Report) -> httpx.Response:
        path = f"/api/v1/jobs/{report.job}/reports"
        return self.client.post(path, content=encode_report(report), headers=MSGPACK)

    def view(self, path: str) -> Any:
        """Return a view of ``/api/v1/jobs/...``."""
        response = self.client.get(f"/api/v1/jobs/{path}")
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def running_balancer(store: Path, *options: str) -> Iterator[RunningBalancer]:
    """Start ``libra serve`` on a free port; kill it at the end if it still runs."""
    log = store.with_suffix(".log")
    with log.open("a") as errors, serve(store, *options, stderr=errors) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _, found, url = line.strip().partition("export LIBRA_BALANCER=")
            if found:
                break
        else:
            raise AssertionError(f"the balancer did not start:\n{log.read_text()}")
        url = url.split()[0]
        # The balancer closes a connection that is idle for 5 s: none that old is used again.
        limits = httpx.Limits(keepalive_expiry=2)
        with httpx.Client(base_url=url, timeout=20, limits=limits) as client:
            yield RunningBalancer(process=process, url=url, client=client, log=log)


@contextmanager
def serve(store: Path, *options: str, stderr: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run ``libra serve --port 0`` on a store."""
    command = [sys.executable, "-m", "libra.balancer", "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, "--store", str(store), *options],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(what: Callable[[], Result | None], timeout_s: float = 60.0) -> Result:
    """Return the first true result of ``what``; fail after a last look at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        over = time.monotonic() >= deadline
        result = what()
        if result:
            return result
        if over:
            raise AssertionError(f"not within {timeout_s:g} s")
        time.sleep(0.02)


def make_report(job: str, *, sequence: int = 0, rank: int = 0, **changes: Any) -> Report:
    """Return an honest report of one step by one of two ranks; ``changes`` replace fields."""
    features = (1.0, 1000.0 + sequence, 2000.0, 3e6 + sequence, 16.0, 808.0)
    seconds = 1e-9 * features[3]
    moments = Moments()
    moments.add(features, seconds)
    step = StepTotals(
        step=sequence,
        policy_version=0,
        seconds=0.01,
        kernels=[KernelTotals(kind=FORWARD, features=features, seconds=seconds)],
        home_features=features,
    )
    report = Report(
        schema=1,
        job=job,
        node="node-0",
        agent=f"agent-{rank}",
        sequence=sequence,
        rank=rank,
        world_size=2,
        moments=[KernelMoments(kind=FORWARD, sums=moments.sums.tolist())],
        steps=[step],
    )
    return msgspec.structs.replace(report, **changes)
