"""Nobody does what they may not: every route, every kind of wrong request, on a real server."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Mount

from libra.balancer import access
from libra.balancer.access_principal import REASONS
from libra.balancer.access_routes import LISTED, find_route
from libra.balancer.access_settings import AccessSettings
from libra.balancer.app import create_app
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store
from libra.balancer.tokens import new_token
from libra.balancer.wire import encode_report
from tests.application import assert_problem
from tests.guarded import GuardedBalancer, TokenFile, guarded_balancer, token_file
from tests.running import MSGPACK, make_report, wait_for

BODIES: dict[str, dict[str, Any]] = {
    "report": {"content": encode_report(make_report("mine", sequence=9)), "headers": MSGPACK},
    "/api/v1/jobs/{job}/mode": {"json": {"mode": "adapt"}},
    "/api/v1/jobs/{job}/publish": {"json": {"pooling": True, "author": "alice"}},
    "/api/v1/jobs/{job}/rollback": {"json": {"to_version": 0}},
}
GUARDED = sorted(
    (method, path, find_route(method, path.replace("{job}", "mine")).need)
    for method, path in LISTED
    if find_route(method, path.replace("{job}", "mine")).need != "free"
)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    file = token_file(tmp_path / "tokens")
    file.add("other", "report", job="other*")
    file.add("expired", "admin", age_s=1)
    file.add("revoked", "admin")
    file.revoke("revoked")
    return file


@pytest.fixture
def guarded(
    tmp_path: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GuardedBalancer]:
    """A balancer with the job ``mine``, which bears any number of wrong requests."""
    monkeypatch.setattr(access, "_FAILURE_BURST", 1e9)
    with guarded_balancer(tmp_path / "s", AccessSettings(tokens=str(tokens.path))) as balancer:
        assert balancer.report("mine", tokens.texts["report"]).status_code == 202
        yield balancer


def every_route(router: Any) -> Iterator[tuple[str, str]]:
    """Yield (method, path) of everything that an application answers."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from every_route(inner)
        elif isinstance(route, Mount):
            yield "GET", f"{route.path}/{{path:path}}"
        else:
            yield from ((method, route.path) for method in route.methods - {"HEAD"})


def test_every_route_is_in_the_table(tmp_path: Path) -> None:
    """A route that someone adds has a scope that someone chose; until then only admin gets in."""
    store = Store(SqliteBackend(tmp_path / "s"))
    routes = set(every_route(create_app(Service(store, ServiceSettings()))))
    store.close()

    assert len(routes) > 20
    assert routes <= LISTED
    assert find_route("GET", "/api/v1/new").need == "admin"
    assert find_route("DELETE", "/api/v1/jobs/mine").need == "admin"
    assert find_route("GET", "/metrics/").need == "admin"


def test_the_table_is_strict() -> None:
    """What changes something asks for admin, what shows a job for read; the rest is listed here."""
    needs = {(method, path): find_route(method, path).need for method, path in LISTED}
    less = {route for route, need in needs.items() if need not in ("read", "admin")}

    assert less == {
        *(("GET", path) for path in ("/livez", "/readyz", "/", "/static/{path:path}")),
        *(("GET", "/api/v1/session"), ("POST", "/api/v1/login"), ("POST", "/api/v1/logout")),
        *(("POST", f"/api/v1/jobs/{{job}}/{name}") for name in ("reports", "batches")),
        *(("GET", "/api/v1/jobs/{job}/policy"), ("GET", "/metrics")),
    }
    for (method, path), need in needs.items():
        if (method, path) not in less:
            assert need == ("read" if method == "GET" else "admin"), path


def wrong_requests(tokens: TokenFile, need: str) -> Iterator[tuple[str, int, list[Any]]]:
    """Yield (what is wrong, the status that it deserves, headers) for a route of this need."""

    def bearer(text: str) -> tuple[str, str]:
        return ("Authorization", f"Bearer {text}")

    texts = tokens.texts
    stranger = new_token("admin")[0]
    imitated = stranger.replace(stranger[6:14], tokens.ids["admin"])
    yield "no token", 401, []
    yield "garbage", 401, [bearer("garbage")]
    yield "a part", 401, [bearer(texts["admin"][:-1])]
    yield "another secret", 401, [bearer(imitated)]
    yield "a stranger's", 401, [bearer(stranger)]
    yield "expired", 401, [bearer(texts["expired"])]
    yield "revoked", 401, [bearer(texts["revoked"])]
    yield "another scheme", 401, [("Authorization", f"Basic {texts['admin']}")]
    yield "no scheme", 401, [("Authorization", texts["admin"])]
    yield "an empty header", 401, [("Authorization", "")]
    yield "no ASCII", 401, [("Authorization", "Bearer \xe9".encode("latin-1"))]
    yield "twice", 401, [bearer(texts["admin"]), bearer(texts["admin"])]
    yield "a made-up session", 401, [("Cookie", f"libra_session={texts['admin']}")]
    wrong_scopes = {"admin": ["read", "report"], "read": ["report"], "metrics": ["report"]}
    for scope in wrong_scopes.get(need, []):
        yield f"scope {scope}", 403, [bearer(texts[scope])]
    if need in ("report", "job"):
        yield "another job's", 403, [bearer(texts["other"])]
    if need == "report":
        yield "scope read", 403, [bearer(texts["read"])]


def state(balancer: GuardedBalancer) -> Any:
    """Return everything that a request could have changed."""
    jobs = balancer.service.jobs
    dumps = {name: live.job.dump() for name, live in jobs.items()}
    streams = {name: live.stream.clients for name, live in jobs.items()}
    results = dict(balancer.service.results)
    return dumps, streams, results, len(balancer.gate.identity.sessions)


@pytest.mark.parametrize(("method", "path", "need"), GUARDED)
def test_wrong_requests_do_nothing_and_learn_nothing(
    guarded: GuardedBalancer, tokens: TokenFile, method: str, path: str, need: str
) -> None:
    """Whoever may not ask is refused, with a problem that is the same for jobs that exist and
    jobs that do not; nothing has changed, and no secret is in any answer or line of the log.
    """
    options = dict(BODIES.get("report" if need == "report" else path, {}))
    own = dict(options.pop("headers", {}))
    before = state(guarded)
    bodies = []
    for what, status, headers in wrong_requests(tokens, need):
        answers = [
            guarded.client.request(
                method,
                path.replace("{job}", job),
                headers=[*own.items(), *headers],
                **options,
            )
            for job in ("mine", "nobody")
        ]
        assert [answer.status_code for answer in answers] == [status, status], what
        assert "Bearer" in answers[0].headers["www-authenticate"]
        assert answers[0].content == answers[1].content, what
        assert_problem(answers[0], status)
        bodies += [answer.text + str(answer.headers) for answer in answers]

    assert state(guarded) == before
    told = guarded.log.getvalue() + "".join(bodies)
    for text in tokens.texts.values():
        assert text[15:] not in told
        assert text[-40:] not in told
    assert not any("Traceback" in line for line in told.splitlines())


def test_the_right_ones_get_in(guarded: GuardedBalancer, tokens: TokenFile) -> None:
    """Each scope does what it is for: the tests above would pass with a gate that is shut."""
    ask, texts = guarded.ask, tokens.texts
    assert guarded.report("mine", texts["report"], sequence=1).status_code == 202
    assert guarded.report("other-7", texts["other"]).status_code == 202
    assert ask("GET", "/api/v1/jobs/mine/policy", texts["report"]).status_code == 200
    for path in ("/metrics", "/docs", "/openapi.json", "/api/v1/jobs", "/api/v1/jobs/mine/skew"):
        assert ask("GET", path, texts["read"]).status_code == 200
        assert ask("GET", path, texts["admin"]).status_code == 200
    assert ask("GET", "/api/v1/jobs/nobody", texts["read"]).status_code == 404
    for path, options in list(BODIES.items())[1:3]:
        method = "PUT" if path.endswith("mode") else "POST"
        where = path.replace("{job}", "mine")
        assert ask(method, where, texts["admin"], **options).status_code == 200
    assert guarded.gate.refused.total() == 0


def test_free_routes_ask_nobody(guarded: GuardedBalancer, tokens: TokenFile) -> None:
    """Probes, the page and its files open without a token, and with a wrong one; probes under any
    name.
    """
    for path in ("/livez", "/readyz", "/", "/static/app.js", "/api/v1/session"):
        assert guarded.ask("GET", path).status_code == 200
        assert guarded.ask("GET", path, "garbage").status_code == 200
    for path in ("/livez", "/readyz"):
        assert guarded.ask("GET", path, headers={"Host": "evil.example"}).status_code == 200


def test_a_wrong_method_asks_nobody_either(guarded: GuardedBalancer) -> None:
    """On a free path it is told which are right, since no token would help; elsewhere a stranger
    learns nothing.
    """
    for path, allowed in (("/livez", "GET"), ("/api/v1/login", "POST"), ("/static/a.js", "GET")):
        answer = guarded.ask("TRACE", path)
        assert_problem(answer, 405)
        assert answer.headers["allow"] == allowed
    for path in ("/metrics", "/api/v1/jobs/mine", "/api/v1/nothing"):
        assert_problem(guarded.ask("TRACE", path), 401)


def test_decisions_bear_the_name_of_who_was_let_in(
    guarded: GuardedBalancer, tokens: TokenFile
) -> None:
    """No draft passes its author off as someone else; the log names who set a mode."""
    draft = {"pooling": True, "author": "alice"}
    path = "/api/v1/jobs/mine"
    admin = tokens.texts["admin"]
    row = guarded.ask("POST", f"{path}/publish", admin, json=draft).json()
    back = guarded.ask("POST", f"{path}/rollback", admin, json={"author": "bob"}).json()
    guarded.ask("PUT", f"{path}/mode", admin, json={"mode": "frozen"})
    policies = guarded.ask("GET", f"{path}/policies", admin).json()["policies"]
    name = f"token:{tokens.ids['admin']}"

    assert {row["author"], back["author"]} == {name}
    assert {policy["author"] for policy in policies} == {name}
    assert f"mode frozen, by {name}" in guarded.log.getvalue()


@pytest.mark.parametrize("query", ["token=%s", "a=1&access_token=%s", "x=%s", "t%%6fken=%s"])
def test_an_address_holds_no_token(guarded: GuardedBalancer, tokens: TokenFile, query: str) -> None:
    """It would end in the logs of every proxy on the way: refused, even if it is right besides."""
    admin = tokens.texts["admin"]
    answer = guarded.ask("GET", f"/api/v1/jobs?{query % admin}", admin)

    assert_problem(answer, 400)
    assert admin not in answer.text + guarded.log.getvalue()
    assert guarded.gate.refused["in_url"] == 1


def test_a_refused_body_is_not_waited_for(guarded: GuardedBalancer) -> None:
    """A stranger who promises a megabyte is refused before sending a byte of it."""
    host, port = guarded.url.removeprefix("http://").split(":")
    head = (
        "POST /api/v1/jobs/mine/reports HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/msgpack\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 401")


def test_revoking_and_adding_need_no_restart(guarded: GuardedBalancer, tokens: TokenFile) -> None:
    """During a rotation the old and the new token both work; then the old one does not."""
    old = tokens.texts["read"]
    new = tokens.add("new", "read")
    wait_for(lambda: guarded.ask("GET", "/api/v1/jobs", new).status_code == 200)
    assert guarded.ask("GET", "/api/v1/jobs", old).status_code == 200

    tokens.revoke("read")
    wait_for(lambda: guarded.ask("GET", "/api/v1/jobs", old).status_code == 401)
    assert guarded.ask("GET", "/api/v1/jobs", new).status_code == 200


def test_a_revoked_token_hears_nothing_more(guarded: GuardedBalancer, tokens: TokenFile) -> None:
    """A stream that is open when its token is revoked ends, and a session of it is over."""
    read = tokens.texts["read"]
    assert guarded.ask("POST", "/api/v1/login", json={"token": read}).status_code == 200
    assert guarded.ask("GET", "/api/v1/jobs").status_code == 200
    with guarded.client.stream("GET", "/api/v1/jobs/mine/events") as events:
        lines = events.iter_lines()
        assert next(lines).startswith("retry")
        tokens.revoke("read")
        assert [line for line in lines if line.startswith("event")] == []

    assert guarded.ask("GET", "/api/v1/jobs").status_code == 401
    wait_for(lambda: guarded.service.jobs["mine"].stream.clients == 0)
    assert "Traceback" not in guarded.log.getvalue()


def test_a_revoked_token_gets_no_policy_that_it_waits_for(
    guarded: GuardedBalancer, tokens: TokenFile
) -> None:
    """A poll that is open when its token is revoked is refused when there is something to tell."""
    read, admin = tokens.texts["read"], tokens.texts["admin"]
    etag = guarded.ask("GET", "/api/v1/jobs/mine/policy", read).headers["etag"]
    told: list[httpx.Response] = []

    def wait() -> None:
        path = "/api/v1/jobs/mine/policy?wait=20"
        told.append(guarded.ask("GET", path, read, headers={"If-None-Match": etag}))

    poll = threading.Thread(target=wait)
    poll.start()
    wait_for(lambda: guarded.service.jobs["mine"].polls == 1)
    tokens.revoke("read")
    wait_for(lambda: guarded.ask("GET", "/api/v1/jobs", read).status_code == 401)
    body = {"pooling": True, "reason": "by hand"}
    path = "/api/v1/jobs/mine/publish"
    assert guarded.ask("POST", path, admin, json=body).is_success
    poll.join(60)

    assert told[0].status_code == 401
    assert b"by hand" not in told[0].content
    assert "etag" not in told[0].headers


def test_whoever_keeps_failing_is_slowed(
    tmp_path: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a burst failures are answered 429; the right token still works from there."""
    monkeypatch.setattr(access, "_FAILURE_BURST", 3.0)
    monkeypatch.setattr(access, "_FAILURES_PER_S", 1e-3)
    with guarded_balancer(tmp_path / "s", AccessSettings(tokens=str(tokens.path))) as balancer:
        answers = [balancer.ask("GET", "/api/v1/jobs", "garbage") for _ in range(6)]
        right = balancer.ask("GET", "/api/v1/jobs", tokens.texts["read"])
        refused = balancer.gate.refused

        # A fourth may get through on what the bucket has filled by since.
        assert {answer.status_code for answer in answers[:3]} == {401}
        assert {answer.status_code for answer in answers[4:]} == {429}
        assert int(answers[-1].headers["retry-after"]) > 0
        assert right.status_code == 200
        assert refused["malformed"] + refused["throttled"] == 6
        assert set(refused) == set(REASONS)


def test_metrics_are_open_where_that_is_set(tmp_path: Path, tokens: TokenFile) -> None:
    """A Prometheus that has no token is served when the operator says so, and nothing else is."""
    settings = AccessSettings(tokens=str(tokens.path), metrics_auth=False)
    with guarded_balancer(tmp_path / "s", settings) as balancer:
        assert balancer.ask("GET", "/metrics").status_code == 200
        assert balancer.ask("GET", "/api/v1/jobs").status_code == 401


@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "in chunks"])
def test_quotas_hold_one_sender_back(tmp_path: Path, tokens: TokenFile, chunked: bool) -> None:
    """Who sends more bytes than a job's quota is told when to come again; others are not."""
    settings = AccessSettings(tokens=str(tokens.path), quota_bytes_per_s=1.0)
    admin = tokens.texts["admin"]
    body = encode_report(make_report("mine"))
    with guarded_balancer(tmp_path / "s", settings) as balancer:
        content = (body[i : i + 64] for i in range(0, len(body), 64)) if chunked else body
        path = "/api/v1/jobs/mine/reports"
        first = balancer.ask("POST", path, admin, content=content, headers=MSGPACK)
        second = balancer.report("mine", tokens.texts["report"], sequence=1)
        other = balancer.report("other-1", tokens.texts["other"])

        assert (first.status_code, second.status_code, other.status_code) == (202, 429, 202)
        assert int(second.headers["retry-after"]) > 1
