"""The page shows what the API says, follows it live, and works for everyone, in a real browser."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, Route, expect, sync_playwright

from libra.examples.screenshot import CHROMIUM_ARGS, find_chromium
from tests.feed import Feed
from tests.running import ROOT, RunningBalancer, running_balancer, wait_for

MISSING = shutil.which("chromium") is None and "CI" not in os.environ
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(MISSING, reason="chromium is not installed"),
]

OpenPage = Callable[..., Page]
Pixel = tuple[int, ...]

TIMEOUT_MS = 20_000
expect.set_options(timeout=TIMEOUT_MS)

# Texts that the page draws on canvases, since no element holds them.
RECORD_TEXTS = """
window.drawn = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.drawn.push(text);
  return fillText.call(this, text, ...rest);
};
"""
# One row of lines, each a row of pixels; a copy, or the browser warns of reading the original.
PIXELS = """
() => {
  const heat = document.getElementById("heat");
  const copy = new OffscreenCanvas(heat.width, heat.height).getContext("2d");
  copy.drawImage(heat, 0, 0);
  const { data } = copy.getImageData(0, 0, heat.width, heat.height);
  const pixel = (line, column) => [...data.slice(4 * (line * heat.width + column)).slice(0, 4)];
  return Array.from({ length: heat.height }, (_, line) =>
    Array.from({ length: heat.width }, (_, column) => pixel(line, column)));
}
"""
SET_HIDDEN = """
(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=list(CHROMIUM_ARGS)
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, balancer: RunningBalancer) -> Iterator[OpenPage]:
    """Open a job's page; at the end, it has reported no error and asked no other host."""
    foreign: list[str] = []
    errors: list[str] = []
    contexts = []

    def open_page(
        job: str | None,
        *,
        url: str = balancer.url,
        prepare: Callable[[Page], None] = lambda page: None,
        **options: Any,
    ) -> Page:
        def note_request(request: Request) -> None:
            if not request.url.startswith(f"{url}/"):
                foreign.append(request.url)

        options.setdefault("viewport", {"width": 1280, "height": 900})
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.add_init_script(RECORD_TEXTS)
        page.on("request", note_request)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        prepare(page)
        page.goto(f"{url}/" if job is None else f"{url}/?job={quote(job)}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert foreign == []
    assert errors == []


@pytest.fixture
def feed(balancer: RunningBalancer, job: str) -> Feed:
    """A job with sixteen uneven steps."""
    feed = Feed(balancer=balancer, job=job)
    feed.run(16)
    return feed


def adapt(feed: Feed) -> None:
    """Let the balancer act: its evidence calls for a first policy."""
    response = feed.balancer.client.put(f"/api/v1/jobs/{feed.job}/mode", json={"mode": "adapt"})
    assert response.status_code == 200, response.text
    assert feed.balancer.view(feed.job)["policy_version"] == 1


def expect_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#skew")).to_have_attribute("data-state", "ready")


def heat_pixels(page: Page) -> list[list[Pixel]]:
    """Return the pixels of the heatmap by line and column."""
    return [[tuple(pixel) for pixel in line] for line in page.evaluate(PIXELS)]


def css_colour(page: Page, name: str) -> Pixel:
    script = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name)"
    value = page.evaluate(script, name).strip()
    return (*bytes.fromhex(value.removeprefix("#")), 255)


def test_page_shows_the_figures_of_the_api(feed: Feed, open_page: OpenPage) -> None:
    summary = feed.balancer.view(feed.job)
    model = feed.balancer.view(f"{feed.job}/model")

    page = open_page(feed.job)
    expect_live(page)

    expect(page.locator("#skew-now")).to_have_text(f"{summary['skew']:.2f}")
    expect(page.locator("#home-skew")).to_have_text(f"{summary['home_skew']:.2f}")
    expect(page.locator("#policy-version")).to_have_text("0")
    expect(page.locator("#diagnosis")).to_have_text(summary["diagnosis"])
    expect(page.locator("#step-note")).to_have_text("step 15")
    expect(page.locator("#rank-rows tr")).to_have_count(4)
    error = f"{100 * model['kinds'][0]['error']:.1f}\u00a0%"
    expect(page.locator("#model-kinds article").first).to_contain_text(error)
    expect(page.locator("#model-kinds article")).to_have_count(2)


def test_a_job_without_a_choice_is_the_one_that_reported_last(
    feed: Feed, open_page: OpenPage
) -> None:
    Feed(balancer=feed.balancer, job=f"{feed.job}-before"[-120:]).run()
    feed.run()
    page = open_page(None)

    expect(page.locator("#job")).to_have_value(feed.job)
    expect_live(page)


def test_another_job_can_be_picked(feed: Feed, open_page: OpenPage) -> None:
    other = Feed(balancer=feed.balancer, job=f"{feed.job}-2"[-120:])
    other.run(2)
    page = open_page(feed.job)
    expect_live(page)

    page.select_option("#job", other.job)

    expect(page.locator("#step-note")).to_have_text("step 1")
    assert quote(other.job) in page.url


def test_skew_line_moves_as_reports_come_in(feed: Feed, open_page: OpenPage) -> None:
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
    page = open_page(feed.job)
    expect_live(page)
    expect(page.locator("#events .state")).to_be_visible()

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
    page = open_page(feed.job)
    expect_live(page)

    feed.run(12, policy=1, slow={2: 1.6})

    expect(page.locator("#event-list")).to_contain_text("Rank 2 now runs at 0.6")
    expect(page.locator("#heat-readout")).to_contain_text("slowest of 4 is rank 2 at 1.3")
    expect(page.locator("#diagnosis")).to_contain_text("rank 2")
    expect(page.locator("#rank-rows th").first).to_have_text("2")
    newest = [line[-1] for line in heat_pixels(page)]
    assert newest[0] == newest[1] == newest[3] == css_colour(page, "--heat-0")
    assert newest[2] != newest[1]


def test_one_straggler_among_many_keeps_its_colour(
    balancer: RunningBalancer, job: str, open_page: OpenPage
) -> None:
    """Where ranks outnumber pixels the slowest one counts: a mean would be paler.

    On 80 lines rank 78 shares line 63 with rank 79.
    """
    feed = Feed(balancer=balancer, job=job, world_size=100)
    feed.run(policy=1, slow={78: 4.0})
    page = open_page(job, device_scale_factor=0.25)
    expect_live(page)

    colours = [line[0] for line in heat_pixels(page)]

    assert len(colours) == 80
    assert colours.count(css_colour(page, "--heat-4")) == 1
    line = colours.index(css_colour(page, "--heat-4"))
    assert line == 63
    expect(page.locator("#rank-note")).to_have_text("64 of 100 ranks are listed.")


def test_hostile_words_stay_words(balancer: RunningBalancer, job: str, open_page: OpenPage) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    feed = Feed(balancer=balancer, job=job, backend=hostile)
    feed.run(16)
    adapt(feed)

    def corrupt(route: Route) -> None:
        body = route.fetch().json()
        for policy in body["policies"]:
            policy["reason"] = hostile
        route.fulfill(json=body)

    page = open_page(job, prepare=lambda page: page.route("**/policies", corrupt))
    expect_live(page)

    expect(page.locator("#model-kinds article").first).to_contain_text(hostile)
    expect(page.locator("#event-list li").first).to_contain_text(hostile)
    assert page.locator("main img, main script").count() == 0


def test_an_unknown_job_is_named_as_text(balancer: RunningBalancer, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{balancer.url}/?job={quote('<script>alert(1)</script>')}")

    expect(page.locator("#notice-title")).to_contain_text("<script>alert(1)</script>")
    expect(page.locator("#content")).to_be_hidden()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_anyone(feed: Feed, open_page: OpenPage, scheme: str) -> None:
    adapt(feed)
    feed.run(4, policy=1)
    page = open_page(feed.job, color_scheme=scheme)
    expect_live(page)
    expect(page.locator("#event-list li")).to_have_count(1)

    found = Axe().run(page).response["violations"]

    assert [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]] == []


def test_all_of_it_works_by_keyboard(feed: Feed, open_page: OpenPage) -> None:
    page = open_page(feed.job)
    expect_live(page)
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.className")
        )
    assert reached[:5] == ["job", "skew-chart", "heat", "share-chart", "bytes-chart"]
    assert "rank-order" in reached

    page.focus("#skew-chart")
    page.keyboard.press("Home")
    expect(page.locator("#skew-readout")).to_contain_text("Step 0:")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#skew-readout")).to_contain_text("Step 1:")

    slowdown = feed.balancer.view(f"{feed.job}/ranks")["slowdown"]
    page.focus("#heat")
    page.keyboard.press("Home")
    for key in ["ArrowUp"] * 4 + ["ArrowDown", "ArrowRight"]:
        page.keyboard.press(key)
    expected = f"Step 1, rank 1: {slowdown[1][1]:.2f} \u00d7 the mean"
    expect(page.locator("#heat-readout")).to_have_text(expected)
    page.keyboard.press("Escape")
    expect(page.locator("#heat-readout")).to_contain_text("Step 15: slowest of 4")


def test_the_pointer_reads_the_heatmap(feed: Feed, open_page: OpenPage) -> None:
    slowdown = feed.balancer.view(f"{feed.job}/ranks")["slowdown"]
    page = open_page(feed.job)
    expect_live(page)
    box = page.locator("#heat").bounding_box()
    assert box is not None

    page.locator("#heat").hover(
        position={"x": box["width"] * 3.5 / 16, "y": box["height"] * 2.5 / 4}
    )

    expected = f"Step 3, rank 2: {slowdown[3][2]:.2f} \u00d7 the mean"
    expect(page.locator("#heat-readout")).to_have_text(expected)


def test_without_a_stream_the_page_polls(feed: Feed, open_page: OpenPage) -> None:
    def refuse(page: Page) -> None:
        page.route("**/events", lambda route: route.fulfill(status=204))

    page = open_page(feed.job, prepare=refuse)
    expect(page.locator("#connection")).to_have_text("polling")
    expect(page.locator("#skew-readout")).to_contain_text("Step 15:")

    feed.run()

    expect(page.locator("#skew-readout")).to_contain_text("Step 16:")


def test_a_hidden_page_rests_and_catches_up(feed: Feed, open_page: OpenPage) -> None:
    page = open_page(feed.job)
    expect_live(page)

    page.evaluate(SET_HIDDEN, True)
    expect(page.locator("#connection")).to_have_text("paused")
    feed.run(3)
    page.evaluate(SET_HIDDEN, False)

    expect_live(page)
    expect(page.locator("#skew-readout")).to_contain_text("Step 18:")
    wait_for(lambda: page.evaluate("document.getElementById('heat').width === 19"))


def test_a_new_attempt_replaces_the_old_ones_ranks(feed: Feed, open_page: OpenPage) -> None:
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
    with running_balancer(tmp_path / "balancer.sqlite") as balancer:
        page = open_page(None, url=balancer.url)
        expect(page.locator("#notice-title")).to_have_text("No job yet")
        expect(page.locator("#balancer-url")).to_have_text(balancer.url)

        Feed(balancer=balancer, job=job).run(2)

        expect_live(page)
        expect(page.locator("#notice")).to_be_hidden()
        page.close()


def test_nothing_overflows_a_phone(feed: Feed, open_page: OpenPage) -> None:
    page = open_page(feed.job, viewport={"width": 360, "height": 740})
    expect_live(page)

    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_screenshot_is_taken_of_the_drawn_page(feed: Feed, tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    url = f"{feed.balancer.url}/?job={feed.job}"
    command = [sys.executable, "-m", "libra.examples.screenshot", url, str(path)]
    subprocess.run([*command, "--width", "800", "--dark"], check=True, timeout=60, cwd=ROOT)

    header = path.read_bytes()[:24]

    assert header.startswith(b"\x89PNG")
    assert struct.unpack(">I", header[16:20]) == (1600,)
