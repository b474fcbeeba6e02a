"""The page stays live: many tabs on one connection, and back by itself after an outage."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, TIMEOUT_MS, OpenPage, expect_live
from tests.running import RunningBalancer, running_balancer, wait_for

pytestmark = NEEDS_CHROMIUM

TABS = 8


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Tabs of one browser: they share locks and channels."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


def streams(feed: Feed) -> int:
    text = feed.balancer.client.get("/metrics").text
    return int(
        float(
            next(
                line for line in text.splitlines() if line.startswith("libra_sse_clients ")
            ).split()[1]
        )
    )


def open_tab(context: BrowserContext, feed: Feed) -> Page:
    page = context.new_page()
    page.goto(f"{feed.balancer.url}/?job={feed.job}")
    return page


def test_eight_tabs_are_live_on_one_connection(feed: Feed, context: BrowserContext) -> None:
    """A browser has six connections to a host: eight streams would hang the seventh tab."""
    before = streams(feed)
    pages = [open_tab(context, feed) for _ in range(TABS)]
    for page in pages:
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#skew-readout")).to_contain_text("Step 15:")
    assert streams(feed) == before + 1

    feed.run(2)
    for page in pages:
        expect(page.locator("#skew-readout")).to_contain_text("Step 17:")
        assert page.evaluate("document.getElementById('heat').width") == 18

    # The tab that leads goes; another takes over, and nobody is left behind.
    pages[0].close()
    wait_for(lambda: streams(feed) == before + 1)
    feed.run(2)
    for page in pages[1:]:
        expect(page.locator("#skew-readout")).to_contain_text("Step 19:")
        expect(page.locator("#connection")).to_have_text("live")


def test_tabs_of_many_jobs_leave_connections_free(
    balancer: RunningBalancer, job: str, context: BrowserContext
) -> None:
    """Of more jobs than a browser has connections the last ones poll, and all show news."""
    feeds = [Feed(balancer=balancer, job=f"{job}-{at}"[-120:]) for at in range(6)]
    for feed in feeds:
        feed.run(4)
    pages = [open_tab(context, feed) for feed in feeds]
    for page in pages:
        expect(page.locator("#connection")).to_have_text("live" if page in pages[:3] else "polling")
    for feed, page in zip(feeds, pages, strict=True):
        feed.run(1)
        expect(page.locator("#skew-readout")).to_contain_text("Step 4:")


class Cable:
    """A way to a balancer that can be cut, on an address that stays the same."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.upstream: int | None = None
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """End every connection, and let none through until there is an upstream again."""
        self.upstream = None
        for end in list(self._ends):
            # A mere close wakes no thread that waits for bytes.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._start(self._join, near)

    def _join(self, near: socket.socket) -> None:
        """Join a connection to one of the balancer's, as long as both last."""
        with contextlib.suppress(OSError), near:
            if self.upstream is None:
                return
            with socket.create_connection(("127.0.0.1", self.upstream)) as far:
                self._ends |= {near, far}
                back = threading.Thread(target=self._pass_on, args=(far, near), daemon=True)
                back.start()
                self._pass_on(near, far)
                back.join(60)
                self._ends -= {near, far}

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def port_of(balancer: RunningBalancer) -> int:
    return int(balancer.url.rpartition(":")[2])


def test_an_outage_and_a_restart_are_got_over(
    tmp_path: Path, browser: Browser, open_page: OpenPage
) -> None:
    """While the balancer is away the page says so and shows what it had; then it fills the gap.

    The steps of the outage are reported to the balancer's next life, on the same store.
    """
    store, cable = tmp_path / "balancer.sqlite", Cable()
    with running_balancer(store) as first:
        cable.upstream = port_of(first)
        feed = Feed(balancer=first, job="job")
        feed.run(16)
        page = open_page("job", url=f"http://127.0.0.1:{cable.port}", quiet=True)
        expect_live(page)
        shown = page.locator("#skew-now").inner_text()

        cable.cut()
        expect(page.locator("#connection")).to_have_text("reconnecting", timeout=TIMEOUT_MS)
        wait_for(lambda: first.view("job")["step"] == 15)
        first.process.terminate()
        first.process.wait(60)
    assert page.locator("#skew-now").inner_text() == shown
    expect(page.locator("#badge")).not_to_have_attribute("data-connection", "live")

    with running_balancer(store) as second:
        feed.balancer = second
        feed.run(6)
        cable.upstream = port_of(second)
        expect(page.locator("#connection")).to_have_text("live", timeout=2 * TIMEOUT_MS)
        expect(page.locator("#skew-readout")).to_contain_text("Step 21:")
        wait_for(lambda: page.evaluate("document.getElementById('heat').width === 22"))
        expect(page.locator("#skew-now")).to_have_text(f"{second.view('job')['skew']:.2f}")
        page.close()
    cable.close()
