"""Jobs come and go by the thousand, and the balancer is what it was before."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.running import RunningBalancer, make_report, running_balancer, wait_for

JOBS = 1000
WAVE = JOBS // 2
STEPS = 2
# Names and a line each is all that is kept of a job that ended; a job in memory takes more than
# ten times as much.
MOST_GROWTH_BYTES = 10 << 20
QUICK = """
keep_days = {keep_days}

[job]
stale_after_s = 0.2
finished_after_s = 0.6
"""


def settings(directory: Path, *, keep_days: float = 30.0) -> Path:
    """Return a file of settings under which a job ends within a second."""
    file = directory / f"keep-{keep_days}.toml"
    file.write_text(QUICK.format(keep_days=keep_days))
    return file


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[RunningBalancer]:
    config = ("--config", str(settings(tmp_path)))
    with running_balancer(tmp_path / "s.sqlite", *config) as running:
        yield running


def come(balancer: RunningBalancer, names: range) -> None:
    """Let jobs of two ranks report a few steps each."""

    def run(number: int) -> None:
        for step in range(STEPS):
            for rank in range(2):
                report = make_report(f"job-{number}", sequence=step, rank=rank)
                assert balancer.send(report).status_code == 202

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, names))


def go(balancer: RunningBalancer) -> None:
    """Wait until no job is left in the metrics, and so in memory."""
    wait_for(lambda: "job_id=" not in balancer.client.get("/metrics").text)


def series(balancer: RunningBalancer) -> set[tuple[str, ...]]:
    """Return the names and labels of all series."""
    text = balancer.client.get("/metrics").text
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def resident_bytes(balancer: RunningBalancer) -> int:
    return int(psutil.Process(balancer.process.pid).memory_info().rss)


def test_a_thousand_jobs_leave_nothing_behind(quick: RunningBalancer) -> None:
    """After a thousand jobs series are those of before, and memory that of half of them."""
    before = series(quick)

    come(quick, range(WAVE))
    go(quick)
    half_bytes = resident_bytes(quick)
    come(quick, range(WAVE, JOBS))
    go(quick)

    assert series(quick) == before
    assert resident_bytes(quick) - half_bytes < MOST_GROWTH_BYTES
    jobs = quick.client.get("/api/v1/jobs").json()["jobs"]
    assert {job["state"] for job in jobs} == {"finished"}
    assert len(jobs) == JOBS


def test_a_job_that_ended_is_still_there_to_look_at(quick: RunningBalancer) -> None:
    """It is shown from the store, and comes back to life, as it was, with its next report."""
    come(quick, range(1))
    go(quick)

    assert quick.view("job-0/skew")["steps"] == list(range(STEPS))
    again = make_report("job-0", sequence=STEPS - 1)
    assert quick.send(again).json()["duplicate"]
    assert quick.send(make_report("job-0", sequence=STEPS)).status_code == 202
    assert quick.send(make_report("job-0", sequence=STEPS, rank=1)).status_code == 202
    wait_for(lambda: quick.view("job-0/skew")["steps"] == list(range(STEPS + 1)))


def test_what_is_too_old_is_pruned(tmp_path: Path) -> None:
    """Jobs that ended longer ago than they are kept leave the store, and its file shrinks."""
    store = tmp_path / "s.sqlite"
    with running_balancer(store, "--config", str(settings(tmp_path))) as balancer:
        come(balancer, range(50))
        go(balancer)
        assert len(balancer.client.get("/api/v1/jobs").json()["jobs"]) == 50
        balancer.process.terminate()
        balancer.process.wait(30)
    brief = settings(tmp_path, keep_days=1e-6)

    with running_balancer(store, "--config", str(brief)) as balancer:
        wait_for(lambda: not balancer.client.get("/api/v1/jobs").json()["jobs"] or None)
        assert balancer.client.get("/api/v1/jobs/job-0").status_code == 404
