"""Behind a real nginx under a sub-path: API, events, pages and probes work as without it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from libra.balancer import __main__ as command
from tests.feed import Feed
from tests.nginx import NEEDS_NGINX, free_port, running_nginx
from tests.pages import NEEDS_CHROMIUM, expect_live, watched_pages
from tests.running import RunningBalancer, make_report, running_balancer, wait_for

pytestmark = NEEDS_NGINX


@dataclass(frozen=True, kw_only=True)
class Fronted:
    """A balancer and the two addresses below which a proxy serves it."""

    balancer: RunningBalancer
    stripping: str
    keeping: str


@pytest.fixture(scope="module")
def fronted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    folders = [tmp_path_factory.mktemp(name) for name in ("balancer", "strips", "keeps")]
    options = ("--root-path", "/libra", "--forwarded-allow-ips", "127.0.0.1")
    with (
        running_balancer(folders[0] / "s.sqlite", *options) as balancer,
        running_nginx(folders[1], balancer.url, strips=True) as stripping,
        running_nginx(folders[2], balancer.url, strips=False) as keeping,
    ):
        yield Fronted(balancer=balancer, stripping=stripping, keeping=keeping)


@pytest.mark.parametrize("proxy", ["stripping", "keeping"])
def test_api_pages_and_probes(fronted: Fronted, proxy: str) -> None:
    """A report goes in, views and pages come out, below the prefix and without a proxy."""
    url = getattr(fronted, proxy)
    job = f"j-{proxy}"
    with httpx.Client(base_url=url, timeout=20) as client:
        through = replace(fronted.balancer, url=url, client=client)
        assert through.send(make_report(job)).json()["accepted"]
        assert through.view(job)["job"] == job
        for path in ("/livez", "/readyz", "/metrics", "/docs", "/static/app.js", "/"):
            assert client.get(path).status_code == 200, path
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/libra"}]
        bare = httpx.get(url, timeout=20)
        assert bare.status_code in (301, 307)
        assert bare.headers["location"].endswith("/libra/")
    assert fronted.balancer.client.get("/readyz").status_code == 200


def test_events_come_one_by_one(fronted: Fronted) -> None:
    """nginx, left to its defaults, holds no event back until the next ones fill a buffer."""
    path = "/api/v1/jobs/stream/events"
    with httpx.Client(base_url=fronted.stripping, timeout=20) as client:
        through = replace(fronted.balancer, client=client)
        through.send(make_report("stream"))
        with client.stream("GET", path) as events:
            lines = (line for line in events.iter_lines() if line.startswith(("retry", "event")))
            assert next(lines).startswith("retry")
            for mode in ("adapt", "frozen", "observe"):
                client.put("/api/v1/jobs/stream/mode", json={"mode": mode})
                # The next one is sent only when this one is here.
                assert next(lines) == "event: mode"


@pytest.mark.parametrize("proxy", ["stripping", "keeping"])
@pytest.mark.usefixtures("browser")
class TestPage:
    """The dashboard in Chromium, through the proxy."""

    pytestmark = NEEDS_CHROMIUM

    def test_the_dashboard_follows_its_job(
        self, fronted: Fronted, browser: Browser, proxy: str
    ) -> None:
        """It loads, is live, and draws a new step, without a complaint in the console."""
        url = getattr(fronted, proxy)
        feed = Feed(balancer=fronted.balancer, job=f"page-{proxy}")
        feed.run(8)
        with watched_pages(browser, url) as open_page:
            page = open_page(feed.job)
            expect_live(page)
            feed.run()
            expect(page.locator("#step-note")).to_have_text("step 8")
            docs = open_page(None, prepare=lambda page: None)
            docs.goto(f"{url}/docs")
            expect(docs.locator("#schemas details").first).to_be_visible()


def test_only_trusted_proxies_are_believed(fronted: Fronted, balancer: RunningBalancer) -> None:
    """What a proxy says of the outer scheme counts where it is trusted; a redirect keeps both."""
    told = {"X-Forwarded-Proto": "https"}

    def location(url: str) -> str:
        answer = httpx.get(f"{url}/api/v1/jobs/", headers=told, timeout=20)
        return answer.headers["location"]

    trusting = fronted.balancer.url
    assert location(trusting) == f"{trusting.replace('http', 'https')}/libra/api/v1/jobs"
    assert location(balancer.url) == f"{balancer.url}/api/v1/jobs"


def test_doctor_finds_nothing_wrong(
    fronted: Fronted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of the way pass through the proxy, events and page included."""
    monkeypatch.setenv("COLUMNS", "200")
    fronted.balancer.send(make_report("doctor"))

    assert command.main(["doctor", "--url", fronted.keeping]) == 0
    assert "ok      events" in capsys.readouterr().out


def test_a_balancer_that_is_away_is_a_502_until_it_is_back(tmp_path: Path) -> None:
    """nginx says so at once, and goes on by itself as soon as the balancer is back."""
    port = free_port()
    options = ("--root-path", "/libra", "--port", str(port))
    with running_nginx(tmp_path, f"http://127.0.0.1:{port}", strips=True) as url:
        assert httpx.get(f"{url}/readyz").status_code == 502
        with running_balancer(tmp_path / "s.sqlite", *options):
            wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 200)
        assert httpx.get(f"{url}/readyz").status_code == 502
