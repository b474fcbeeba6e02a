"""What an operator may do from the page: confirmed, as whom, and by nobody else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from libra.balancer.access_settings import AccessSettings
from tests.feed import Feed
from tests.guarded import GuardedBalancer, TokenFile, guarded_balancer, token_file
from tests.pages import NEEDS_CHROMIUM, OpenPage, expect_live, watched_pages
from tests.test_login import send

pytestmark = NEEDS_CHROMIUM


def policy_of(feed: Feed) -> int:
    version: int = feed.balancer.view(feed.job)["policy_version"]
    return version


def entry(page: Page, title: str) -> Locator:
    return page.locator("#event-list li", has=page.locator("strong", has_text=title))


def test_mode_policy_and_rollback(feed: Feed, open_page: OpenPage) -> None:
    """Each is done after a yes, and listed with its reason; a no changes nothing."""
    page = open_page(feed.job)
    expect_live(page)

    page.click("#mode-button")
    page.locator("dialog select").select_option("frozen")
    page.click("dialog button:text-is('Cancel')")
    expect(page.locator("dialog")).to_have_count(0)
    assert feed.balancer.view(feed.job)["mode"] == "observe"

    page.click("#mode-button")
    page.locator("dialog select").select_option("frozen")
    page.click("dialog button:text-is('Change mode')")
    expect(page.locator("#policy-note")).to_contain_text("frozen")
    assert feed.balancer.view(feed.job)["mode"] == "frozen"

    page.click("#publish-button")
    page.locator("dialog input[name=reason]").fill("trying <b>pools</b>")
    page.click("dialog button:text-is('Publish')")
    first = entry(page, "Policy 1")
    expect(first).to_contain_text("trying <b>pools</b>")
    expect(first).to_contain_text("by operator")
    assert policy_of(feed) == 1

    page.click("#rollback-button")
    page.locator("dialog select").select_option("0")
    page.click("dialog button:text-is('Roll back')")
    second = entry(page, "Policy 2")
    expect(second).to_contain_text("Back to version 0")
    assert policy_of(feed) == 2


def test_what_the_balancer_refuses_is_said(feed: Feed, open_page: OpenPage) -> None:
    """In its own words, beside the buttons."""
    page = open_page(feed.job, quiet=True)
    expect_live(page)
    page.click("#rollback-button")
    page.click("dialog button:text-is('Roll back')")
    refusal = feed.balancer.client.post(f"/api/v1/jobs/{feed.job}/rollback", json={})
    expect(page.locator("#policy-error")).to_contain_text(refusal.json()["detail"])


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return token_file(tmp_path / "tokens")


@pytest.fixture
def guarded(tmp_path: Path, tokens: TokenFile) -> Iterator[GuardedBalancer]:
    with guarded_balancer(tmp_path / "s", AccessSettings(tokens=str(tokens.path))) as balancer:
        send(balancer, tokens, range(3))
        yield balancer


def logged_in(open_page: OpenPage, token: str) -> Page:
    page = open_page("job")
    page.fill("#login-token", token)
    page.click("#login-send")
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#policies")).to_have_attribute("data-state", "ready")
    page.locator("#policies").scroll_into_view_if_needed()
    return page


def test_only_an_admin_has_the_buttons(
    guarded: GuardedBalancer, tokens: TokenFile, browser: Browser
) -> None:
    """Who may only read sees what was done; what an admin does is logged with the token's name."""
    with watched_pages(browser, guarded.url) as open_page:
        reader = logged_in(open_page, tokens.texts["read"])
        expect(reader.locator("#event-list")).to_be_visible()
        expect(reader.locator("#operator")).to_be_hidden()

        admin = logged_in(open_page, tokens.texts["admin"])
        admin.click("#mode-button")
        admin.locator("dialog select").select_option("adapt")
        admin.click("dialog button:text-is('Change mode')")
        expect(admin.locator("#policy-note")).to_contain_text("adapting")
    assert "Job job is in mode adapt, by token:" in guarded.log.getvalue()
