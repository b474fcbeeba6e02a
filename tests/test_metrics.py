"""Prometheus itself reads the metrics, finds nothing to complain about, and no dead series."""

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from libra.balancer.causes import CAUSES
from libra.balancer.metric_names import METRICS
from libra.balancer.metrics import MetricsPage
from libra.balancer.metrics_reference import reference
from libra.balancer.metrics_settings import LEVELS, MetricsSettings
from libra.balancer.wire import encode_report
from tests.application import open_service
from tests.running import RunningBalancer, make_report, wait_for
from tests.scrapes import filled_page, page_with

ROOT = Path(__file__).parent.parent


def program(name: str) -> str:
    """Return the path of a program; its absence is a failure where CI runs."""
    path = shutil.which(name)
    if path is None and "CI" not in os.environ:
        pytest.skip(f"{name} is not installed")
    assert path is not None, f"{name} is not installed"
    return path


def report_steps(balancer: RunningBalancer, job: str, number: int = 4) -> None:
    for sequence in range(number):
        for rank in range(2):
            report = make_report(job, sequence=sequence, rank=rank)
            assert balancer.send(report).status_code == 202


@pytest.mark.parametrize("level", LEVELS)
def test_promtool_has_no_complaint(tmp_path: Path, level: str) -> None:
    """Names, units, help and types of every metric are as Prometheus wants them."""
    result = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=asyncio.run(filled_page(tmp_path / "s.sqlite", level)),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_every_metric_of_the_list_is_exported(tmp_path: Path) -> None:
    """A job in full swing has a sample of each, so the list promises nothing that is not there."""
    page = asyncio.run(filled_page(tmp_path / "s.sqlite", "rank", openmetrics=True))
    parsed = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
    families = {each.name: each for each in parsed}

    assert list(families) == list(METRICS)
    assert [name for name, family in families.items() if not family.samples] == []


def test_the_reference_is_that_of_the_list() -> None:
    """The page in docs is what the code generates."""
    assert (ROOT / "docs/metrics.md").read_text() == reference()


def ask_prometheus(config: Path, folder: Path, query: str) -> list[dict[str, list[str]]]:
    """Run Prometheus until a query finds something; nothing if its port was taken meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [program("prometheus"), f"--config.file={config}", f"--web.listen-address={address}"]

    def ask() -> list[dict[str, list[str]]]:
        try:
            url = f"http://{address}/api/v1/query"
            answer = httpx.get(url, params={"query": query}, timeout=5).raise_for_status()
        except httpx.HTTPError:
            return []
        return list(answer.json()["data"]["result"])

    with (
        (folder / "prometheus.log").open("a") as log,
        subprocess.Popen(
            [*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log
        ) as process,
    ):
        try:
            found = wait_for(lambda: ask() or process.poll() is not None)
        finally:
            process.kill()
    return found if isinstance(found, list) else []


@pytest.mark.timeout(300)
def test_prometheus_scrapes_it(balancer: RunningBalancer, job: str, tmp_path: Path) -> None:
    """A real server with the shipped configuration takes the page, and a query finds the job."""
    report_steps(balancer, job)
    config = tmp_path / "prometheus.yml"
    target = balancer.url.removeprefix("http://")
    shipped = (ROOT / "deploy/prometheus.yml").read_text()
    config.write_text(shipped.replace("127.0.0.1:8765", target).replace("5s", "1s"))
    query = f'libra_step_skew_ratio{{job="libra",job_id="{job}"}}'

    tries = (ask_prometheus(config, tmp_path, query) for _ in range(3))
    found = next(filter(None, tries), [])

    assert found, (tmp_path / "prometheus.log").read_text()
    (sample,) = found
    assert float(sample["value"][1]) == balancer.view(job)["skew"]


def test_a_job_that_ended_leaves_no_series(tmp_path: Path) -> None:
    """A quarter of an hour after its last report a job is only a number among the finished."""

    async def go() -> list[str]:
        now_s, pages = 1_000_000.0, []
        async with open_service(tmp_path / "s.sqlite", clock=lambda: now_s) as (service, _):
            for rank in range(2):
                report = make_report("ended", rank=rank)
                await service.report(report)
            for age_s in (0, 31, 901):
                now_s = 1_000_000.0 + age_s
                page = await MetricsPage(service, MetricsSettings()).read()
                pages.append(page.decode())
        return pages

    pages = asyncio.run(go())
    for page, state in zip(pages, ("active", "stale", "finished"), strict=True):
        assert f'libra_jobs{{state="{state}"}} 1.0' in page
    assert 'libra_job_last_report_timestamp_seconds{job_id="ended"} 1e+06' in pages[1]
    assert 'job_id="ended"' not in pages[2]


def test_waiting_for_the_slowest_adds_up(balancer: RunningBalancer, job: str) -> None:
    """Two ranks, one three times as slow: the other wastes two thirds of the time, each step."""
    for sequence in range(3):
        fast, slow = (make_report(job, sequence=sequence, rank=rank) for rank in range(2))
        fast.steps[0].kernels[0].seconds, slow.steps[0].kernels[0].seconds = 1.0, 3.0
        for report in (fast, slow):
            assert balancer.send(report).status_code == 202
    page = page_with(balancer, f'libra_wasted_rank_seconds_total{{job_id="{job}"}} 6.0')

    assert f'libra_step_skew_ratio{{job_id="{job}"}} 1.5' in page


def test_causes_are_a_state_set(balancer: RunningBalancer, job: str) -> None:
    """One cause of a closed set is 1, and each has its seconds, found or not."""
    report_steps(balancer, job)
    page = page_with(balancer, f'libra_step{{job_id="{job}"}} 3.0')
    cause = balancer.view(job)["cause"]

    for name in CAUSES:
        state = float(name == cause)
        assert f'libra_job_cause{{cause="{name}",job_id="{job}"}} {state}' in page
        lost = f'libra_lost_seconds{{cause="{name}",job_id="{job}"}}'
        assert (lost in page) == (name != "even")
    # No model yet: what could be saved is not known.
    assert f'libra_recoverable_ratio{{job_id="{job}"}}' not in page


def test_refused_reports_are_counted_by_reason(balancer: RunningBalancer, job: str) -> None:
    """Each reason has a series from the start, and moves by one."""

    def count() -> float:
        name = 'libra_reports_total{result="wrong_job"} '
        page = balancer.client.get("/metrics").text
        return float(page.partition(name)[2].split()[0])

    before = count()
    balancer.client.post(
        f"/api/v1/jobs/{job}/reports",
        content=encode_report(make_report("other")),
        headers={"Content-Type": "application/msgpack"},
    )

    assert wait_for(lambda: count() == before + 1)


def test_the_collector_lists_no_ranks(balancer: RunningBalancer, job: str) -> None:
    """A job's series do not grow with its ranks: no label names one."""
    report_steps(balancer, job)
    page = page_with(balancer, f'libra_step{{job_id="{job}"}} 3.0')

    assert f'libra_rank_cost_seconds{{job_id="{job}",stat="max"}}' in page
    assert "rank=" not in page
