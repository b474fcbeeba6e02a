"""The page of metrics is cheap: bounded, made once a second, and never at a report's expense."""

import asyncio
import gzip
import threading
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from libra.balancer import metrics
from libra.balancer.job_figures import JobFigures, job_figures
from libra.balancer.live_job import LiveJob
from libra.balancer.metric_text import Lines, write
from libra.balancer.metrics import MetricsPage
from libra.balancer.metrics_settings import MetricsSettings
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings
from tests.application import assert_problem, open_service
from tests.running import RunningBalancer, make_report, wait_for
from tests.scrapes import RANKS, fill

LIMITED = "libra_series_limited_total"


def number(page: bytes | str, series: str) -> float:
    text = page if isinstance(page, str) else page.decode()
    return float(text.partition(f"\n{series} ")[2].split()[0])


def series_of(page: bytes) -> int:
    return sum(not line.startswith("#") for line in page.decode().splitlines())


def test_beyond_the_cap_the_finest_series_are_cut_and_counted(tmp_path: Path) -> None:
    """Jobs stay whole, ranks go first, and a counter says how many series are missing."""

    async def go() -> tuple[bytes, bytes, bytes]:
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            await fill(service)
            everything = await read(service, 50_000)
            whole = series_of(everything)
            without_ranks = await read(service, whole - 1)
            without_job = await read(service, whole - 3 * RANKS - 10)
        return everything, without_ranks, without_job

    async def read(service: Service, most: int) -> bytes:
        settings = MetricsSettings(metrics_level="rank", metrics_max_series=most)
        page = await MetricsPage(service, settings).read()
        assert series_of(page) <= most
        return page

    everything, without_ranks, without_job = asyncio.run(go())
    assert number(everything, LIMITED) == 0
    assert number(without_ranks, LIMITED) == 3 * RANKS
    assert b"libra_rank_speed_ratio{" not in without_ranks
    assert b"libra_step_skew_ratio{" in without_ranks
    assert b"libra_pool_load_ratio{" in without_ranks
    assert b"libra_step_skew_ratio{" not in without_job
    assert number(without_job, LIMITED) > 3 * RANKS


def test_what_is_cut_adds_up(tmp_path: Path) -> None:
    """The counter never falls, so a rate over it tells."""

    async def go() -> list[float]:
        seen = []
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            await fill(service)
            settings = MetricsSettings(metrics_level="rank", metrics_max_series=100)
            page = MetricsPage(service, settings)
            for openmetrics in (False, True):
                seen.append(number(await page.read(openmetrics=openmetrics), LIMITED))
        return seen

    first, second = asyncio.run(go())
    assert 0 < first < second


def test_everyone_who_asks_within_a_second_gets_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten scrapers cost as much as one, at once and one after the other."""
    made = []

    def counted(blocks: list[Lines], *, level: str, openmetrics: bool) -> str:
        made.append(openmetrics)
        return write(blocks, level=level, openmetrics=openmetrics)

    monkeypatch.setattr(metrics, "write", counted)
    monkeypatch.setattr(metrics, "_KEPT_S", 3600.0)

    async def go() -> set[bytes]:
        async with open_service(tmp_path / "s.sqlite") as (_, client):
            pages = await asyncio.gather(*(client.get("/metrics") for _ in range(10)))
            return {page.content for page in [*pages, await client.get("/metrics")]}

    assert len(asyncio.run(go())) == 1
    assert made == [False]


def test_a_page_that_is_not_ready_in_time_is_an_answer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scraper is told to come back, other requests go on, and the page comes out later."""
    go_on = threading.Event()

    def stuck(blocks: list[Lines], *, level: str, openmetrics: bool) -> str:
        go_on.wait(60)
        return write(blocks, level=level, openmetrics=openmetrics)

    monkeypatch.setattr(metrics, "write", stuck)
    settings = ServeSettings(metrics=MetricsSettings(metrics_deadline_s=0.05))

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite", settings) as (_, client):
            late = await client.get("/metrics")
            assert_problem(late, 503)
            assert late.headers["retry-after"] == "1"
            assert (await client.get("/livez")).status_code == 200
            go_on.set()
            async with asyncio.timeout(60):
                while (await client.get("/metrics")).status_code != 200:
                    await asyncio.sleep(0)

    asyncio.run(go())


def test_others_have_their_turn_while_jobs_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two jobs that take long a report may be taken in."""
    order: list[str] = []

    def noted(live: LiveJob, now_s: float, level: str) -> JobFigures:
        order.append("job")
        return job_figures(live, now_s, level)

    monkeypatch.setattr(metrics, "job_figures", noted)

    async def others() -> None:
        while True:
            order.append("other")
            await asyncio.sleep(0)

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            for name in ("a", "b", "c"):
                await fill(service, name)
            task = asyncio.create_task(others())
            await MetricsPage(service, MetricsSettings()).read()
            task.cancel()

    asyncio.run(go())
    jobs = [at for at, whose in enumerate(order) if whose == "job"]
    assert len(jobs) == 3
    assert all(after - before > 1 for before, after in pairwise(jobs))


def test_diagnoses_that_a_page_cannot_wait_for_are_made_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page shows what is known, and a later one all of it."""
    monkeypatch.setattr(metrics, "_DIAGNOSES_S", 0.0)
    monkeypatch.setattr(metrics, "_KEPT_S", 0.0)

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            for name in ("a", "b"):
                await fill(service, name)
            page = MetricsPage(service, MetricsSettings())
            assert b"libra_job_cause{" not in await page.read()
            async with asyncio.timeout(60):
                while (await page.read()).count(b"libra_recoverable_ratio{") < 2:
                    await asyncio.sleep(0)

    asyncio.run(go())


def test_the_page_is_packed_where_that_is_accepted(balancer: RunningBalancer, job: str) -> None:
    """A scraper that takes gzip gets it, in either format, and others the plain text."""
    balancer.send(make_report(job))
    for accept in ("text/plain", "application/openmetrics-text;version=1.0.0"):
        plain = get(balancer.url, {"Accept": accept, "Accept-Encoding": "identity"})
        packed = get(balancer.url, {"Accept": accept, "Accept-Encoding": "gzip"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert plain.headers["content-type"].startswith(accept.partition(";")[0])
        assert (b"# EOF" in gzip.decompress(packed.content)) == ("openmetrics" in accept)


def get(url: str, headers: dict[str, str]) -> httpx.Response:
    """Return an answer with its body as it was sent."""
    with httpx.Client() as client, client.stream("GET", f"{url}/metrics", headers=headers) as got:
        got._content = b"".join(got.iter_raw())
        return got


def test_head_says_what_get_would(balancer: RunningBalancer) -> None:
    """Checks by HEAD see that the page is there."""
    answer = balancer.client.head("/metrics")

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/plain")


def test_the_slowest_rank_of_a_skewed_step_is_an_exemplar(
    balancer: RunningBalancer, job: str
) -> None:
    """In OpenMetrics a bucket of skews names a step and its slowest rank: labels name none."""
    fast, slow = (make_report(job, sequence=7, rank=rank) for rank in range(2))
    fast.steps[0].kernels[0].seconds, slow.steps[0].kernels[0].seconds = 1.0, 3.0
    for report in (fast, slow):
        assert balancer.send(report).status_code == 202
    accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
    name = f'libra_step_skew_distribution_ratio_bucket{{job_id="{job}",le="1.5"}} 1.0'

    def page() -> str | None:
        text = balancer.client.get("/metrics", headers=accept).text
        return text if name in text else None

    text = wait_for(page)
    assert f'{name} # {{rank="1",step="7"}} 1.5 ' in text
    assert f'_bucket{{job_id="{job}",le="1.3"}} 0.0\n' in text
