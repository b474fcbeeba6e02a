"""The page shows what the API says and follows it live, in a real browser."""

from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, Route, expect

from tests.feed import Feed
from tests.pages import (
    NEEDS_CHROMIUM,
    TIMEOUT_MS,
    OpenPage,
    adapt,
    css_colour,
    expect_live,
    heat_pixels,
)
from tests.running import RunningBalancer, running_balancer, wait_for

pytestmark = NEEDS_CHROMIUM

SET_HIDDEN = """
(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


def test_page_shows_the_figures_of_the_api(feed: Feed, open_page: OpenPage) -> None:
    """What the page says of skew, policy, ranks, model and diagnosis is what the API says."""
    summary = feed.balancer.view(feed.job)
    model = feed.balancer.view(f"{feed.job}/model")

    page = open_page(feed.job)
    expect_live(page)

    expect(page.locator("#skew-now")).to_have_text(f"{summary['skew']:.2f}")
    expect(page.locator("#home-skew")).to_have_text(f"{summary['home_skew']:.2f}")
    expect(page.locator("#policy-version")).to_have_text("0")
    expect(page.locator("#diagnosis")).to_have_text(summary["diagnosis"])
    expect(page.locator("#diagnosis")).to_have_attribute("data-cause", summary["cause"])
    to_save = f"{100 * summary['recoverable_share']:.1f}\u00a0% to save"
    expect(page.locator("#home-note")).to_contain_text(to_save)
    expect(page.locator("#step-note")).to_have_text("step 15")
    expect(page.locator("#rank-rows tr")).to_have_count(4)
    error = f"{100 * model['kinds'][0]['error']:.1f}\u00a0%"
    expect(page.locator("#model-kinds article").first).to_contain_text(error)
    expect(page.locator("#model-kinds article")).to_have_count(2)


def test_skew_line_moves_as_reports_come_in(feed: Feed, open_page: OpenPage) -> None:
    """A new step moves line, readout and figure of an open page, which is not reloaded for it."""
    page = open_page(feed.job)
    expect_live(page)
    page.evaluate("window.never_reloaded = true")
    picture = "document.querySelector('#skew-chart canvas').toDataURL()"
    before = page.evaluate(picture)

    feed.run()

    expect(page.locator("#skew-readout")).to_contain_text("Step 16:")
    expect(page.locator("#skew-now")).to_have_text(f"{feed.balancer.view(feed.job)['skew']:.2f}")
    assert page.evaluate(picture) != before
    assert page.evaluate("window.never_reloaded") is True


def test_a_policy_appears_as_event_and_as_mark(feed: Feed, open_page: OpenPage) -> None:
    """A policy is listed with its reason at once; list and chart say since when ranks run it."""
    page = open_page(feed.job)
    expect_live(page)
    expect(page.locator("#event-list")).not_to_contain_text("Policy 1")

    adapt(feed)
    first = page.locator("#event-list li").filter(has_text="Policy 1")
    reason = feed.balancer.view(f"{feed.job}/policies")["policies"][0]["reason"]
    expect(first).to_contain_text(reason)
    expect(first).to_contain_text("not in effect yet")
    expect(page.locator("#policy-note")).to_contain_text("ranks still run 0")
    expect(page.locator("#event-list")).to_contain_text("The mode is now adapt")

    feed.run(policy=1)
    expect(first).to_contain_text("since step 16")
    # Not page.wait_for_function: it needs eval, which the page's policy forbids.
    wait_for(lambda: page.evaluate("window.drawn.includes('policy 1')"))


def test_a_slow_rank_is_seen_and_named(feed: Feed, open_page: OpenPage) -> None:
    """A slow rank is named in events and diagnosis, leads the table, and alone has colour."""
    page = open_page(feed.job)
    expect_live(page)

    feed.run(12, policy=1, slow={2: 1.6})

    expect(page.locator("#event-list")).to_contain_text("Rank 2 now runs at 0.6")
    expect(page.locator("#heat-readout")).to_contain_text("slowest of 4 is rank 2 at 1.3")
    expect(page.locator("#diagnosis")).to_contain_text("rank 2")
    expect(page.locator("#rank-rows th").first).to_have_text("2")
    page.click("#culprits button")
    expect(page.locator("#rank-title")).to_have_text("Rank 2")
    expect(page.locator("#rank-place")).to_contain_text("runs at 0.6")
    newest = [line[-1] for line in heat_pixels(page)]
    assert newest[0] == newest[1] == newest[3] == css_colour(page, "--heat-0")
    assert newest[2] != newest[1]


def test_one_straggler_among_many_keeps_its_colour(
    balancer: RunningBalancer, job: str, open_page: OpenPage
) -> None:
    """Where ranks outnumber pixels the slowest one counts: a mean would be paler.

    On 75 lines rank 78 shares line 59 with rank 79.
    """
    feed = Feed(balancer=balancer, job=job, world_size=100)
    feed.run(policy=1, slow={78: 4.0})
    page = open_page(job, device_scale_factor=0.125)
    expect_live(page)

    colours = [line[0] for line in heat_pixels(page)]

    assert len(colours) == 75
    assert colours.count(css_colour(page, "--heat-4")) == 1
    line = colours.index(css_colour(page, "--heat-4"))
    assert line == 59
    expect(page.locator("#rank-note")).to_have_text("64 of 100 ranks are listed.")


def test_hostile_words_stay_words(balancer: RunningBalancer, job: str, open_page: OpenPage) -> None:
    """Markup in a backend's name or a policy's reason is text: no report can script a page."""
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    feed = Feed(balancer=balancer, job=job, backend=hostile)
    feed.run(16)
    adapt(feed)

    def corrupt(route: Route) -> None:
        body = route.fetch(timeout=TIMEOUT_MS).json()
        for policy in body["policies"]:
            policy["reason"] = hostile
        route.fulfill(json=body)

    page = open_page(job, prepare=lambda page: page.route("**/policies", corrupt))
    expect_live(page)

    expect(page.locator("#model-kinds article").first).to_contain_text(hostile)
    expect(page.locator("#event-list li").first).to_contain_text(hostile)
    assert page.locator("main img, main script").count() == 0


def test_an_unknown_job_is_named_as_text(balancer: RunningBalancer, browser: Browser) -> None:
    """A job that nobody reports is named as it was asked for, markup and all."""
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(f"{balancer.url}/?job={quote('<script>alert(1)</script>')}")

    expect(page.locator("#notice-title")).to_contain_text("<script>alert(1)</script>")
    expect(page.locator("#content")).to_be_hidden()
    page.close()


def test_without_a_stream_the_page_polls(feed: Feed, open_page: OpenPage) -> None:
    """Where no event stream gets through, the page follows the job by polling."""

    def refuse(page: Page) -> None:
        page.route("**/events", lambda route: route.fulfill(status=204))

    page = open_page(feed.job, prepare=refuse)
    expect(page.locator("#connection")).to_have_text("polling")
    expect(page.locator("#skew-readout")).to_contain_text("Step 15:")

    feed.run()

    expect(page.locator("#skew-readout")).to_contain_text("Step 16:")


def test_a_hidden_page_rests_and_catches_up(feed: Feed, open_page: OpenPage) -> None:
    """A page out of sight gives its connection back, and once seen again shows what it missed."""
    page = open_page(feed.job)
    expect_live(page)

    page.evaluate(SET_HIDDEN, True)
    expect(page.locator("#connection")).to_have_text("paused")
    wait_for(lambda: "\nlibra_sse_clients 0.0\n" in feed.balancer.client.get("/metrics").text)
    feed.run(3)
    page.evaluate(SET_HIDDEN, False)

    expect_live(page)
    expect(page.locator("#skew-readout")).to_contain_text("Step 18:")
    wait_for(lambda: page.evaluate("document.getElementById('heat').width === 19"))


def test_a_new_attempt_replaces_the_old_ones_ranks(feed: Feed, open_page: OpenPage) -> None:
    """A job that came back with fewer ranks is shown with those, and the old ones are gone."""
    page = open_page(feed.job)
    expect_live(page)

    again = Feed(balancer=feed.balancer, job=feed.job, attempt=1, next_step=10, world_size=2)
    again.run(2)

    expect(page.locator("#ranks-note")).to_contain_text("attempt 1")
    expect(page.locator("#rank-rows tr")).to_have_count(2)
    expect(page.locator("#heat-readout")).to_contain_text("Step 11: slowest of 2")


def test_an_empty_balancer_says_so_and_opens_with_the_first_report(
    tmp_path: Path, open_page: OpenPage, job: str
) -> None:
    """Before any report the page says where to send one, and opens by itself with the first."""
    with running_balancer(tmp_path / "balancer.sqlite") as balancer:
        page = open_page(None, url=balancer.url)
        expect(page.locator("#notice-title")).to_have_text("No job yet")
        expect(page.locator("#balancer-url")).to_have_text(balancer.url)

        Feed(balancer=balancer, job=job).run(2)

        expect(page.locator("#job-rows tr")).to_have_count(1)
        expect(page.locator("#notice")).to_be_hidden()
        page.close()
