"""Logging in with a browser: a token once, then a cookie, until it is taken back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from libra.balancer.access_settings import AccessSettings
from tests.guarded import GuardedBalancer, TokenFile, guarded_balancer, token_file
from tests.pages import NEEDS_CHROMIUM, OpenPage, watched_pages
from tests.running import wait_for
from tests.simulated_job import SimulatedJob

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return token_file(tmp_path / "tokens")


@pytest.fixture
def guarded(tmp_path: Path, tokens: TokenFile) -> Iterator[GuardedBalancer]:
    """A balancer that asks for tokens, and a job in it."""
    with guarded_balancer(tmp_path / "s", AccessSettings(tokens=str(tokens.path))) as balancer:
        send(balancer, tokens, range(3))
        yield balancer


@pytest.fixture
def page_of(browser: Browser, guarded: GuardedBalancer) -> Iterator[OpenPage]:
    with watched_pages(browser, guarded.url) as open_page:
        yield open_page


def send(balancer: GuardedBalancer, tokens: TokenFile, steps: range) -> None:
    from libra.balancer.wire import encode_report
    from tests.running import MSGPACK

    for report in SimulatedJob().reports(steps):
        answer = balancer.ask(
            "POST",
            "/api/v1/jobs/job/reports",
            tokens.texts["admin"],
            content=encode_report(report),
            headers=MSGPACK,
        )
        assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_token_opens_the_page_by_keyboard_alone(
    guarded: GuardedBalancer, tokens: TokenFile, page_of: OpenPage, scheme: str
) -> None:
    """The page asks before it fetches, the form needs no pointer, and the job is then followed
    live, also after a reload; no script sees the cookie, and nothing is in the way of anyone.
    """
    page = page_of("job", color_scheme=scheme)
    expect(page.locator("#login-token")).to_be_focused()
    assert Axe().run(page).response["violations"] == []

    page.keyboard.type(tokens.texts["read"])
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#login")).to_be_hidden()
    assert page.input_value("#login-token") == ""
    assert page.evaluate("document.cookie") == ""

    send(guarded, tokens, range(3, 4))
    expect(page.locator("#skew-readout")).to_contain_text("Step 3:")
    page.reload()
    expect(page.locator("#connection")).to_have_text("live")


def test_logging_out_ends_it(
    guarded: GuardedBalancer, tokens: TokenFile, page_of: OpenPage
) -> None:
    """The form is back and no figure is left to see; logging in again goes on where it was."""
    page = page_of("job")
    page.fill("#login-token", tokens.texts["read"])
    page.click("#login-send")
    expect(page.locator("#connection")).to_have_text("live")

    page.click("#logout")
    expect(page.locator("#login-token")).to_be_focused()
    expect(page.locator("#content")).to_be_hidden()
    assert len(guarded.gate.identity.sessions) == 0

    send(guarded, tokens, range(3, 5))
    page.fill("#login-token", tokens.texts["admin"])
    page.click("#login-send")
    expect(page.locator("#skew-readout")).to_contain_text("Step 4:")
    expect(page.locator("#connection")).to_have_text("live")


def test_a_revoked_token_ends_its_page(
    guarded: GuardedBalancer, tokens: TokenFile, browser: Browser
) -> None:
    """An open page of it hears nothing more and asks for another token; a wrong one is named."""
    page = browser.new_page()
    page.goto(f"{guarded.url}/?job=job")
    page.fill("#login-token", tokens.texts["read"])
    page.click("#login-send")
    expect(page.locator("#connection")).to_have_text("live")

    tokens.revoke("read")
    expect(page.locator("#login-token")).to_be_focused()
    wait_for(lambda: guarded.service.jobs["job"].stream.clients == 0)

    page.fill("#login-token", tokens.texts["read"])
    page.keyboard.press("Enter")
    expect(page.locator("#login-error")).to_contain_text("not known, or no longer")
    page.fill("#login-token", tokens.texts["report"])
    page.keyboard.press("Enter")
    expect(page.locator("#login-error")).to_contain_text("needs the scope read")
    page.fill("#login-token", tokens.texts["admin"])
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_text("live")
    page.close()
