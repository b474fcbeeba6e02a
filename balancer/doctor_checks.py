"""What ``libra doctor`` looks at, one check a function, in the order in which things fail."""

import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from libra.balancer.client import Client, ClientError, Reply
from libra.balancer.compatibility import neighbours
from libra.balancer.version import libra_version

Verdict = Literal["ok", "note", "fail", "skipped"]

_JOB = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
_MAX_OFFSET_S = 5.0
# The kubelet decides on the modes of what it mounts there.
_MOUNTED = ("/var/run/secrets/", "/run/secrets/")
_FIRST_EVENT_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What a check found; ``remedy`` is what to do about it."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def check_all(client: Client, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield every check; those that need an answer are skipped when there is none."""
    yield from check_environment(environ)
    reached = check_address(client)
    yield reached
    checks: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("version", lambda: check_version(client)),
        ("access", lambda: check_access(client, environ)),
        ("ready", lambda: check_ready(client)),
        ("clock", lambda: check_clock(client, time.time)),
        ("page", lambda: check_page(client)),
        ("events", lambda: check_events(client)),
    )
    for name, check in checks:
        if reached.verdict == "fail":
            yield Check(name=name, verdict="skipped", detail="the balancer does not answer")
            continue
        try:
            yield check()
        except ClientError as error:
            yield _fail(name, str(error), "look into the balancer's log")


def check_environment(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the variables that a job's agents read here."""
    name = "environment"
    job, balancer = environ.get("LIBRA_JOB", ""), environ.get("LIBRA_BALANCER", "")
    if not balancer:
        remedy = "agents in this environment stay off; set LIBRA_BALANCER in the job"
        yield Check(name=name, verdict="note", detail="LIBRA_BALANCER is not set", remedy=remedy)
    elif environ.get("LIBRA_AGENT", "").strip().lower() == "off":
        remedy = "agents in this environment stay off; unset it"
        yield Check(name=name, verdict="note", detail="LIBRA_AGENT=off", remedy=remedy)
    elif job and not _JOB.fullmatch(job):
        yield _fail(name, f"LIBRA_JOB={job!r}", "use 1 to 128 letters, digits or any of . _ : @ -")
    else:
        told = f"LIBRA_JOB={job}" if job else "LIBRA_JOB is not set: the scheduler's name counts"
        yield Check(name=name, verdict="ok", detail=f"LIBRA_BALANCER={balancer}, {told}")
    if environ.get("LIBRA_TOKEN_FILE"):
        yield _token_file(Path(environ["LIBRA_TOKEN_FILE"]))


def check_address(client: Client) -> Check:
    """Check that a balancer answers at the address."""
    begin = time.perf_counter()
    try:
        reply = client.ask("/livez")
        if reply.status == 200 and reply.json().get("status") == "ok":
            detail = f"{client.url} answers in {1e3 * (time.perf_counter() - begin):.0f} ms"
            return Check(name="address", verdict="ok", detail=detail)
        detail = f"{client.url}/livez answered {reply.status}"
        remedy = "a proxy answers in its place, or the path is wrong: is the balancer up?"
    except (ClientError, AttributeError) as error:
        detail = str(error)
        remedy = "is libra serve running there, and does a firewall or a proxy stand between?"
    return _fail("address", detail, remedy)


def check_version(client: Client) -> Check:
    """Check that this installation and the balancer understand each other."""
    own, reply = libra_version(), client.ask("/api/v1/status")
    theirs = reply.headers.get("libra-version", "")
    if not theirs and reply.status == 200:
        theirs = str(reply.json().get("version", ""))
    if not theirs:
        detail = "the balancer does not say its version to this token"
        return Check(name="version", verdict="skipped", detail=detail)
    detail = f"here {own}, balancer {theirs}"
    if neighbours(own, theirs):
        return Check(name="version", verdict="ok", detail=detail)
    return _fail("version", detail, "bring both to the same minor version, or neighbouring ones")


def check_access(client: Client, environ: Mapping[str, str]) -> Check:
    """Check that the balancer accepts the token, or needs none."""
    reply = client.ask("/api/v1/status")
    if reply.status == 403:
        # A token that may only report may ask for its job's policy.
        job = quote(environ.get("LIBRA_JOB", "doctor"), safe="")
        reply = client.ask(f"/api/v1/jobs/{job}/policy")
    if reply.status in (200, 404):
        return Check(name="access", verdict="ok", detail="the balancer answers this user")
    if reply.status == 401:
        remedy = "make one with libra token new, and name its file in LIBRA_TOKEN_FILE"
        return _fail("access", "the token is missing, wrong, expired or revoked", remedy)
    if reply.status == 403:
        remedy = "make a token for this job with libra token new --scope report --job NAME"
        return _fail("access", "the token is for another job or another use", remedy)
    return _fail("access", f"status {reply.status}", "look into the balancer's log")


def check_ready(client: Client) -> Check:
    """Check that the balancer takes reports now."""
    reply = client.ask("/readyz")
    if reply.status == 200:
        return Check(name="ready", verdict="ok", detail="it takes reports")
    detail = str(reply.json().get("detail", f"status {reply.status}"))
    return _fail("ready", detail, "libra status says more; agents keep their policy meanwhile")


def check_clock(client: Client, clock: Callable[[], float]) -> Check:
    """Check that clocks differ by little; half the round trip is not known."""
    begin_s = clock()
    reply = client.ask("/livez")
    end_s = clock()
    theirs_s, error_s = _time_of(reply)
    if theirs_s is None:
        return Check(name="clock", verdict="skipped", detail="the balancer does not say the time")
    offset_s = theirs_s - (begin_s + end_s) / 2
    error_s += (end_s - begin_s) / 2
    detail = f"the balancer's is {offset_s:+.3f} s from here, to within {error_s:.3f} s"
    if abs(offset_s) - error_s <= _MAX_OFFSET_S:
        return Check(name="clock", verdict="ok", detail=detail)
    return _fail("clock", detail, "let NTP or chrony set both clocks")


def check_page(client: Client) -> Check:
    """Check that the dashboard and its files are found below the address."""
    for path in ("/", "/static/app.js"):
        reply = client.ask(path)
        if reply.status == 401:
            return Check(name="page", verdict="ok", detail="the dashboard asks for a login")
        if reply.status != 200 or (path == "/" and b"<title>Libra" not in reply.body):
            remedy = "start libra serve with --root-path and let the proxy pass all paths below it"
            return _fail("page", f"{path} answered {reply.status}, and is not Libra's", remedy)
    return Check(name="page", verdict="ok", detail=f"dashboard at {client.url}/")


def check_events(client: Client) -> Check:
    """Check that events come at once: a proxy that buffers holds them back."""
    begin = time.perf_counter()
    try:
        with client.lines("/api/v1/events", silence_s=_FIRST_EVENT_S) as lines:
            next(lines, None)
    except ClientError as error:
        if error.status in (401, 403):
            detail = "this user may not follow events: that needs the scope read"
            return Check(name="events", verdict="skipped", detail=detail)
        if error.status:
            return _fail("events", str(error), "look into the balancer's log")
        remedy = "switch the proxy's response buffering off (nginx: proxy_buffering off)"
        return _fail("events", f"nothing came within {_FIRST_EVENT_S:g} s", remedy)
    detail = f"the first one came after {1e3 * (time.perf_counter() - begin):.0f} ms"
    return Check(name="events", verdict="ok", detail=detail)


def _time_of(reply: Reply) -> tuple[float | None, float]:
    """Return the time that an answer tells, and how far that is rounded."""
    told = reply.json().get("time")
    if isinstance(told, int | float):
        return float(told), 0.0
    try:
        return parsedate_to_datetime(reply.headers["date"]).timestamp() + 0.5, 0.5
    except (KeyError, ValueError):
        return None, 0.0


def _token_file(path: Path) -> Check:
    name = "token file"
    try:
        found = path.stat()
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        return _fail(name, f"LIBRA_TOKEN_FILE={path}: {why}", "write the token into it, mode 0600")
    mounted = str(path).startswith(_MOUNTED)
    if not mounted and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(found.st_mode)
        return _fail(name, f"{path} has mode {mode:04o}: others can read it", f"chmod 600 {path}")
    if not text:
        return _fail(name, f"{path} is empty", "write the token into it")
    told = "was mounted for this container" if mounted else "is for this user alone"
    return Check(name=name, verdict="ok", detail=f"{path} {told}")


def _fail(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, verdict="fail", detail=detail, remedy=remedy)
