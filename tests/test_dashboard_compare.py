"""Two jobs, or two stretches of one, are compared by figures that the API bears out."""

import statistics

from playwright.sync_api import expect

from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, OpenPage

pytestmark = NEEDS_CHROMIUM


def test_two_stretches_of_one_job(feed: Feed, open_page: OpenPage) -> None:
    """Medians of either stretch are those of its steps, and the verdict says which is better."""
    feed.run(16, policy=1)
    view = feed.balancer.view(f"{feed.job}/skew")
    before, after = view["skew"][:16], view["skew"][16:]

    page = open_page(feed.job)
    page.goto(f"{page.url.split('?')[0]}?a={feed.job}~0-15&b={feed.job}~16-31")

    row = page.locator("#compare-rows tr").filter(has_text="median skew").first
    expect(row.locator("td").nth(0)).to_have_text(f"{statistics.median(before):.2f}")
    expect(row.locator("td").nth(1)).to_have_text(f"{statistics.median(after):.2f}")
    expect(page.locator("#compare-rows tr").first.locator("td").nth(0)).to_have_text("16")
    expect(page.locator("#compare-verdict")).to_contain_text("skew lower in B")
    expect(page.locator("#compare-a-from")).to_have_value("0")


def test_two_jobs(feed: Feed, open_page: OpenPage) -> None:
    """The other job is chosen on the page, and the address follows."""
    other = Feed(balancer=feed.balancer, job=f"{feed.job}-2"[-120:])
    other.run(16)
    page = open_page(feed.job)
    page.click("#compare-link")
    expect(page.locator("#compare-verdict")).to_contain_text("about the same")

    page.select_option("#compare-b-job", other.job)

    median = statistics.median(feed.balancer.view(f"{other.job}/skew")["skew"])
    row = page.locator("#compare-rows tr").filter(has_text="median skew").first
    expect(row.locator("td").nth(1)).to_have_text(f"{median:.2f}")
    assert f"b={other.job}" in page.url


def test_what_cannot_be_compared_is_said(feed: Feed, open_page: OpenPage) -> None:
    """A job that is not there is named; too few steps are no comparison."""
    page = open_page(feed.job)
    page.goto(f"{page.url.split('?')[0]}?a={feed.job}~0-1&b={feed.job}~2-3")
    expect(page.locator("#compare-verdict")).to_have_text("Too few steps to compare.")
