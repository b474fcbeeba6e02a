"""A kill -9 at any moment loses no decision, and no more measurements than a flush interval's."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from libra.balancer.failpoints import POINTS, VARIABLE
from tests.kills import FLUSH_INTERVAL_S, Load
from tests.running import ROOT, RunningBalancer, running_balancer, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRA_FLUSH_INTERVAL_S", str(FLUSH_INTERVAL_S))


def wait_until_ready(running: RunningBalancer) -> None:
    wait_for(lambda: running.client.get("/readyz").status_code == 200)


def kill_again_and_again(path: Path, times: int, seed: int) -> Load:
    moments, load, killed_s = random.Random(seed), Load(), 0.0
    for _ in range(times + 1):
        with running_balancer(path) as running:
            wait_until_ready(running)
            load.judge(running, killed_s)
            with load.on(running):
                time.sleep(moments.uniform(0.05, 1.5))  # the moment is what is drawn
                running.process.kill()
                running.process.wait(60)
                killed_s = time.monotonic()
    return load


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty times, each on the store of the one before."""
    load = kill_again_and_again(tmp_path / "s.sqlite", 20, seed=6)

    assert len(load.policies) > 20
    assert load.judged > 20


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_killed_two_hundred_times(tmp_path: Path) -> None:
    """The long version."""
    kill_again_and_again(tmp_path / "s.sqlite", 200, seed=7)


UNDER_LOAD = sorted(set(POINTS) - {"during_restore", "during_migration", "during_unload"})


@pytest.mark.parametrize("point", UNDER_LOAD)
def test_killed_at_a_failpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Around commit, acknowledgement and showing, in the midst of load."""
    path, load = tmp_path / "s.sqlite", Load()
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, f"{point}=kill@12")
        with running_balancer(path) as running, load.on(running):
            assert running.process.wait(60) == -signal.SIGKILL
            killed_s = time.monotonic()
    with running_balancer(path) as running:
        wait_until_ready(running)
        load.judge(running, killed_s)


@pytest.mark.parametrize("point", ["during_restore", "during_migration"])
def test_killed_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Half a restore or half a migration is done again from its beginning."""
    path, load = tmp_path / "s.sqlite", Load()
    if point == "during_restore":
        with running_balancer(path) as running, load.on(running):
            wait_for(lambda: len(load.policies) >= 3 and len(load.steps) >= 3)
            running.process.kill()
            running.process.wait(60)
    killed_s = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, f"{point}=kill")
        command = [sys.executable, "-m", "libra.balancer", "serve", "--port", "0"]
        for _ in range(2):
            ended = subprocess.run([*command, "--store", str(path)], cwd=ROOT, timeout=60)
            assert ended.returncode == -signal.SIGKILL
    with running_balancer(path) as running:
        wait_until_ready(running)
        load.judge(running, killed_s)


UNLOAD = """
import asyncio, sys
from libra.balancer import failpoints
from libra.balancer.policy import Policy
from libra.balancer.service import Service
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store
from tests.running import make_report
from pathlib import Path

async def go():
    now_s = [1e6]
    service = Service(Store(SqliteBackend(Path(sys.argv[1]))), clock=lambda: now_s[0])
    service.restore()
    if "job" not in service.jobs:
        await service.report(make_report("job"))
        await service.publish(service.jobs["job"], Policy(version=1, pooling=True))
        failpoints.arm("during_unload=kill")
    now_s[0] += 1000
    await service._upkeep.tick()
    live = await service.find("job")
    print(live.policy.version, len(service.jobs))

asyncio.run(go())
"""


def test_killed_while_a_job_is_unloaded(tmp_path: Path) -> None:
    """It has ended on disk by then: it is on the shelf afterwards, with its policy."""
    command = [sys.executable, "-c", UNLOAD, str(tmp_path / "s.sqlite")]
    first = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert first.returncode == -signal.SIGKILL, first.stderr

    script = UNLOAD.replace('if "job" not in service.jobs:', "if False:")
    command = [sys.executable, "-c", script, str(tmp_path / "s.sqlite")]
    second = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True)

    assert second.stdout.split() == ["1", "0"], second.stderr


def test_the_service_starts_without_scikit_learn() -> None:
    """Its import alone takes a second of the two in which a restarted balancer must be ready."""
    code = (
        "import sys, libra.balancer.serve\n"
        "slow = {'sklearn', 'scipy', 'pandas', 'torch'} & {m.split('.')[0] for m in sys.modules}\n"
        "assert not slow, slow\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
