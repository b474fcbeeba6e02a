"""The page shows a recorded job as the API tells of it, and names of all sorts as they are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from libra.balancer.trace_files import read_trace
from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, TIMEOUT_MS, OpenPage, expect_live
from tests.running import RunningBalancer
from tests.trace_feed import replay

pytestmark = NEEDS_CHROMIUM

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'`;--<!--",
    "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "x" * 10_000,
)


@pytest.mark.skipif("LIBRA_DATA" not in os.environ, reason="LIBRA_DATA names no recorded traces")
def test_a_recorded_job(balancer: RunningBalancer, job: str, open_page: OpenPage) -> None:
    """A real job, a CP rank of each group of its 128 GPUs: each part has the API's figures."""
    folder = Path(os.environ["LIBRA_DATA"])
    trace = read_trace(folder / "trace-SE.parquet", folder / "trace-SE-meta.yaml")
    steps = replay(trace, balancer, job)
    summary = balancer.view(job)

    page = open_page(job)
    expect_live(page)
    expect(page.locator("#skew-now")).to_have_text(f"{summary['skew']:.2f}")
    expect(page.locator("#diagnosis")).to_have_text(summary["diagnosis"])
    ranks = len(trace.ranks)
    expect(page.locator("#ranks-note")).to_contain_text(f"{ranks} of {ranks} ranks report")
    assert page.evaluate("document.getElementById('heat').width") == steps
    assert page.evaluate("document.getElementById('heat').height") == ranks
    # By place: all of one data-parallel rank's stages lie together.
    expect(page.locator("#heat-first-rank")).to_have_text("rank 0")


@pytest.mark.parametrize("hostile", HOSTILE, ids=("markup", "quotes", "right-to-left", "long"))
def test_hostile_names_render_as_text(feed: Feed, open_page: OpenPage, hostile: str) -> None:
    """Whatever a job, a host, a reason or a diagnosis is called: as text, and the page holds."""

    def corrupt_summary(body: dict[str, object]) -> None:
        body["diagnosis"] = hostile

    def corrupt_ranks(body: dict[str, object]) -> None:
        ranks = body["ranks"]
        assert isinstance(ranks, list)
        for row in ranks:
            row["node"] = hostile

    def corrupt_policies(body: dict[str, object]) -> None:
        body["policies"] = [dict(POLICY, reason=hostile, author=hostile)]

    def prepare(page: Page) -> None:
        serve_changed(page, f"**/jobs/{feed.job}", corrupt_summary)
        serve_changed(page, "**/ranks?*", corrupt_ranks)
        serve_changed(page, "**/policies", corrupt_policies)

    page = open_page(feed.job, prepare=prepare, viewport={"width": 1000, "height": 900})
    expect_live(page)
    expect(page.locator("#diagnosis")).to_have_text(hostile)
    expect(page.locator("#rank-rows td").first).to_have_text(hostile)
    expect(page.locator("#event-list li").first).to_contain_text(hostile)
    assert page.locator("main script, main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1000


def serve_changed(page: Page, pattern: str, change: Callable[[dict[str, object]], None]) -> None:
    """Let the page see answers that are not quite the balancer's."""

    def handle(route: Route) -> None:
        body = route.fetch(timeout=TIMEOUT_MS).json()
        change(body)
        route.fulfill(json=body)

    page.route(pattern, handle)


POLICY: dict[str, object] = {
    "version": 1,
    "parent": 0,
    "pooling": True,
    "created_s": 1_700_000_000.0,
    "checksum": "0" * 16,
    "topic": None,
    "restores": None,
    "first_step": None,
    "predicted_gain": None,
    "effect": None,
}
