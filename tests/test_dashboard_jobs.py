"""The list of jobs: every job, live, sorted and filtered as the URL says."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, OpenPage, watched_pages
from tests.running import RunningBalancer, running_balancer

pytestmark = NEEDS_CHROMIUM

NAMES = ("even", "uneven", "wide")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBalancer]:
    """A balancer with three jobs: an even one, an uneven one, and one with a slow rank."""
    path = tmp_path_factory.mktemp("jobs") / "balancer.sqlite"
    with running_balancer(path) as running:
        Feed(balancer=running, job="even").run(12, policy=1)
        Feed(balancer=running, job="uneven").run(12)
        Feed(balancer=running, job="wide", world_size=8).run(12, policy=1, slow={5: 3.0})
        yield running


@pytest.fixture
def open_jobs(browser: Browser, cluster: RunningBalancer) -> Iterator[OpenPage]:
    with watched_pages(browser, cluster.url) as open_page:
        yield open_page


def listed(page: Page) -> list[str]:
    rows = page.locator("#job-rows tr")
    return [str(rows.nth(at).get_attribute("data-job")) for at in range(rows.count())]


def test_every_job_is_listed_with_its_figures(
    cluster: RunningBalancer, open_jobs: OpenPage
) -> None:
    """What the row says of skew, ranks, mode and diagnosis is what the API says."""
    page = open_jobs(None)
    expect(page.locator("#job-rows tr")).to_have_count(len(NAMES))
    for name in NAMES:
        summary = cluster.view(name)
        row = page.locator(f"#job-rows tr[data-job={name}]")
        expect(row).to_contain_text(f"{summary['skew']:.2f}")
        expect(row).to_contain_text(summary["diagnosis"])
        expect(row).to_contain_text(summary["mode"])
        expect(row.locator("td").nth(1)).to_have_text(str(summary["world_size"]))
        hours = summary["wasted_seconds"] / 3600
        expect(row.locator("td").nth(4)).to_contain_text(f"{hours:.6f}"[:5])
        label = row.locator("svg").get_attribute("aria-label")
        assert label is not None
        assert f"to {summary['recent_skew'][-1]:.2f}" in label


def test_it_is_sorted_and_filtered_by_the_url(open_jobs: OpenPage) -> None:
    """What a reader chooses is in the address, and the address brings it back."""
    page = open_jobs(None)
    expect(page.locator("#job-rows tr")).to_have_count(len(NAMES))
    assert listed(page)[0] == "wide"

    page.click("th button:text-is('job')")
    assert listed(page) == sorted(NAMES)
    page.click("th button:text-is('job')")
    assert listed(page) == sorted(NAMES, reverse=True)
    assert "sort=-job" in page.url
    page.fill("#job-filter", "uneven data")
    expect(page.locator("#job-rows tr")).to_have_count(1)
    assert listed(page) == ["uneven"]
    expect(page.locator("#job-count")).to_have_text("1 of 3 jobs")

    address = page.url
    page.goto(address)
    expect(page.locator("#job-rows tr")).to_have_count(1)
    expect(page.locator("#job-filter")).to_have_value("uneven data")


def test_a_job_opens_at_an_address_of_its_own(open_jobs: OpenPage) -> None:
    """A link, so that it can be opened in another tab and sent to others."""
    page = open_jobs(None)
    page.click("#job-rows a:text-is('uneven')")
    expect(page.locator("#crumb")).to_have_text("uneven")
    assert page.url.endswith("?job=uneven")
    page.click("#home-link")
    expect(page.locator("#job-rows tr")).to_have_count(len(NAMES))


def test_the_list_is_live(cluster: RunningBalancer, open_jobs: OpenPage) -> None:
    """A new job appears, and a row follows its job, without a reload."""
    page = open_jobs(None)
    expect(page.locator("#connection")).to_have_text("live")
    page.evaluate("window.never_reloaded = true")

    late = Feed(balancer=cluster, job="late")
    late.run(4)
    row = page.locator("#job-rows tr[data-job=late]")
    expect(row).to_contain_text(f"{cluster.view('late')['skew']:.2f}")
    late.run(9, policy=1)
    expect(row).to_contain_text(f"{cluster.view('late')['skew']:.2f}")
    assert page.evaluate("window.never_reloaded") is True
    assert cluster.client.delete("/api/v1/jobs/late").status_code == 204


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_anyone(open_jobs: OpenPage, scheme: str) -> None:
    """axe finds nothing that keeps anyone from using the list."""
    page = open_jobs(None, color_scheme=scheme)
    expect(page.locator("#job-rows tr").first).to_be_visible()
    found = Axe().run(page).response["violations"]
    assert [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]] == []
