"""Behind a real nginx under a sub-path, with tokens: logging in, the API, events and pages."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.application import assert_problem
from tests.feed import Feed
from tests.guarded import TokenFile, token_file
from tests.nginx import NEEDS_NGINX, running_nginx
from tests.pages import NEEDS_CHROMIUM, expect_live, watched_pages
from tests.running import RunningBalancer, running_balancer

pytestmark = NEEDS_NGINX
JOB = "mine"
VIEW = f"/api/v1/jobs/{JOB}"
PUBLIC = "libra.example"


@dataclass(frozen=True, kw_only=True)
class Fronted:
    """A balancer that asks for tokens, the address below which nginx serves it, and a job."""

    balancer: RunningBalancer
    url: str
    tokens: TokenFile
    feed: Feed


@pytest.fixture(scope="module", params=[True, False], ids=["strips", "keeps"])
def fronted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fronted]:
    folder = tmp_path_factory.mktemp("nginx")
    tokens = token_file(folder / "tokens")
    options = [
        *("--root-path", "/libra", "--forwarded-allow-ips", "127.0.0.1"),
        *("--tokens", str(tokens.path), "--trusted-hosts", PUBLIC),
    ]
    with (
        running_balancer(folder / "s.sqlite", *options) as balancer,
        running_nginx(folder, balancer.url, strips=request.param) as url,
    ):
        balancer.client.headers["Authorization"] = f"Bearer {tokens.texts['admin']}"
        feed = Feed(balancer=balancer, job=JOB)
        feed.run(8)
        yield Fronted(balancer=balancer, url=url, tokens=tokens, feed=feed)


def log_in(client: httpx.Client, token: str) -> list[str]:
    """Log in; return the parts of the cookie."""
    answer = client.post("/api/v1/login", json={"token": token})
    assert answer.status_code == 200, answer.text
    return answer.headers["set-cookie"].split("; ")


def test_a_cookie_works_below_the_prefix(fronted: Fronted) -> None:
    """It is the prefix's alone, and opens views, streams and changes until it is given back;
    without it there is nothing but the page, the probes and the form.
    """
    with httpx.Client(base_url=fronted.url, timeout=20) as client:
        for path in ("/", "/static/app.js", "/readyz", "/api/v1/session"):
            assert client.get(path).status_code == 200, path
        for path in (VIEW, f"{VIEW}/events", "/api/v1/events", "/metrics", "/docs"):
            assert client.get(path).status_code == 401, path

        cookie = log_in(client, fronted.tokens.texts["admin"])
        assert {"Path=/libra", "HttpOnly", "SameSite=Strict"} <= set(cookie)
        assert "Secure" not in cookie
        assert client.get(VIEW).json()["job"] == JOB
        with client.stream("GET", f"{VIEW}/events") as events:
            lines = (line for line in events.iter_lines() if line.startswith(("retry", "event")))
            assert next(lines).startswith("retry")
            for mode in ("frozen", "observe"):
                assert client.put(f"{VIEW}/mode", json={"mode": mode}).status_code == 200
                assert next(lines) == "event: mode"

        client.post("/api/v1/logout")
        assert client.get(VIEW).status_code == 401


def test_other_sites_may_change_nothing(fronted: Fronted) -> None:
    """A page of the same address may, whatever name the proxy is reached by; others may not."""
    with httpx.Client(base_url=fronted.url, timeout=20) as client:
        log_in(client, fronted.tokens.texts["admin"])

        def change(origin: str, host: str | None = None) -> httpx.Response:
            headers = {"Origin": origin} | ({"Host": host} if host else {})
            return client.put(f"{VIEW}/mode", json={"mode": "observe"}, headers=headers)

        own = fronted.url.removesuffix("/libra")
        assert change(own).status_code == 200
        assert_problem(change("http://evil.example"), 403)
        assert_problem(change("null"), 403)
        # As a browser sends it to a proxy that has a name; a cookie of its own would come along.
        assert_problem(change("http://evil.example", "evil.example"), 400)


def test_a_public_name_must_be_known(fronted: Fronted) -> None:
    """One that was listed is served, logins and TLS in front of it included; another is not."""
    public = {"Host": PUBLIC, "Origin": f"https://{PUBLIC}"}
    direct = fronted.balancer.url
    read = fronted.tokens.texts["read"]
    with httpx.Client(base_url=fronted.url, headers=public, timeout=20) as client:
        assert client.get("/").status_code == 200
        assert client.post("/api/v1/login", json={"token": read}).status_code == 200
    # nginx here has no TLS, so that what one with it would say is said for it.
    told = public | {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.1.2.3"}
    answer = httpx.post(f"{direct}/libra/api/v1/login", json={"token": read}, headers=told)
    assert "Secure" in answer.headers["set-cookie"].split("; ")
    assert_problem(httpx.get(f"{fronted.url}/", headers={"Host": "evil.example"}), 400)
    assert httpx.get(f"{fronted.url}/readyz", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.usefixtures("browser")
class TestPage:
    """The dashboard in Chromium, through the proxy."""

    pytestmark = NEEDS_CHROMIUM

    def test_a_reader_logs_in_and_out(self, fronted: Fronted, browser: Browser) -> None:
        """The form, then the job live, also after a reload; then the form again."""
        with watched_pages(browser, fronted.url) as open_page:
            page = open_page(JOB)
            page.fill("#login-token", fronted.tokens.texts["read"])
            page.keyboard.press("Enter")
            expect_live(page)
            fronted.feed.run()
            expect(page.locator("#step-note")).to_have_text(f"step {fronted.feed.next_step - 1}")
            page.reload()
            expect_live(page)
            page.click("#logout")
            expect(page.locator("#login-token")).to_be_focused()
