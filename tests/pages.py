"""The dashboard in a real browser: open pages of it, wait for them, and read their pixels."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from libra.examples.screenshot import CHROMIUM_ARGS, find_chromium
from tests.feed import Feed

MISSING = shutil.which("chromium") is None and "CI" not in os.environ
NEEDS_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(MISSING, reason="chromium is not installed"),
    # Several waits of TIMEOUT_MS.
    pytest.mark.timeout(300),
]

OpenPage = Callable[..., Page]
Pixel = tuple[int, ...]

# The page asks again, after some 35 s, for a live stream that did not open in time.
TIMEOUT_MS = 60_000
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


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start the installed Chromium; close it at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=list(CHROMIUM_ARGS), timeout=TIMEOUT_MS
        )
        yield browser
        browser.close()


@contextmanager
def watched_pages(browser: Browser, balancer_url: str) -> Iterator[OpenPage]:
    """Open jobs' pages; at the end, they have reported no error and asked no other host."""
    foreign: list[str] = []
    errors: list[str] = []
    contexts = []

    def open_page(
        job: str | None,
        *,
        url: str = balancer_url,
        prepare: Callable[[Page], None] = lambda page: None,
        quiet: bool = False,
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
        # A browser complains of every request that fails: of an outage that is meant, too.
        if not quiet:
            page.on("console", lambda message: errors.append(message.text))
        prepare(page)
        page.goto(f"{url}/" if job is None else f"{url}/?job={quote(job)}")
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            page.unroute_all(behavior="ignoreErrors")
        context.close()
    assert foreign == [], foreign
    assert errors == [], errors


def adapt(feed: Feed) -> None:
    """Let the balancer act: its evidence calls for a first policy."""
    response = feed.balancer.client.put(f"/api/v1/jobs/{feed.job}/mode", json={"mode": "adapt"})
    assert response.status_code == 200, response.text
    assert feed.balancer.view(feed.job)["policy_version"] == 1


def expect_live(page: Page) -> None:
    """Wait until the page follows its job and has drawn its steps, its ranks and their model."""
    expect(page.locator("#connection")).to_have_text("live")
    # Not the first alone: a page that is late draws what it has.
    for section in ("skew", "heatmap", "ranks", "model"):
        expect(page.locator(f"#{section}")).to_have_attribute("data-state", "ready")


def heat_pixels(page: Page) -> list[list[Pixel]]:
    """Return the pixels of the heatmap by line and column."""
    return [[tuple(pixel) for pixel in line] for line in page.evaluate(PIXELS)]


def css_colour(page: Page, name: str) -> Pixel:
    """Return a colour of the page's style sheet, in the scheme that it is shown in."""
    script = """(name) => {
      const probe = document.createElement("span");
      probe.style.color = `var(${name})`;
      document.body.append(probe);
      const { color } = getComputedStyle(probe);
      probe.remove();
      return color.match(/[0-9.]+/g).slice(0, 3).map(Number);
    }"""
    return (*page.evaluate(script, name), 255)
