"""What every operation of the API answers, in one table, from which its description is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libra.balancer import status_schemas
from libra.balancer import view_schemas as views
from libra.balancer.causes import Diagnosis
from libra.balancer.policy import Policy
from libra.balancer.routes_jobs import ModeChange
from libra.balancer.routes_login import SessionView
from libra.balancer.routes_reports import Accepted, BatchAccepted

# Of a body that is not taken.
_BODY = (408, 413, 415, 422)
_ETAG = {"ETag": "The policy's checksum, in quotes."}
_JOB = "/api/v1/jobs/{job}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an operation answers when it goes well, and the statuses of its own refusals.

    Attributes:
        shape: of the body in JSON; None where it has no such form.
        texts: media types of the body's other forms; without any and without a shape it is empty.
        more: other good statuses, which have no body.
    """

    shape: type | None = None
    status: int = 200
    texts: Sequence[str] = ()
    refusals: Sequence[int] = ()
    more: Mapping[int, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


_VIEWS: dict[str, type] = {
    "skew": views.Skew,
    "ranks": views.Ranks,
    "ranks/{rank}": views.RankView,
    "loads": views.Loads,
    "model": views.Model,
    "exchange": views.Exchange,
    "diagnosis": Diagnosis,
    "pools": views.Pools,
    "whatif": views.PoolSavings,
    "policies": views.Policies,
}
_STREAM = "text/event-stream"

ANSWERS: dict[tuple[str, str], Answer] = {
    ("post", f"{_JOB}/reports"): Answer(shape=Accepted, status=202, refusals=[409, 426, *_BODY]),
    ("post", f"{_JOB}/batches"): Answer(
        shape=BatchAccepted, status=202, refusals=[409, 426, *_BODY]
    ),
    ("get", "/api/v1/jobs"): Answer(shape=views.Jobs),
    ("get", _JOB): Answer(shape=views.JobSummary),
    ("delete", _JOB): Answer(status=204),
    **{
        ("get", f"{_JOB}/{name}"): Answer(shape=shape, refusals=[422])
        for name, shape in _VIEWS.items()
    },
    ("get", f"{_JOB}/slowdown"): Answer(texts=["application/octet-stream"], refusals=[422]),
    ("get", f"{_JOB}/policies/{{version}}"): Answer(shape=Policy, refusals=[422], headers=_ETAG),
    ("get", f"{_JOB}/policy"): Answer(
        shape=Policy,
        refusals=[422, 426],
        more={304: "The policy is still the one in If-None-Match."},
        headers=_ETAG
        | {"Libra-Policy-Expires": "Seconds for which it holds without news; absent: for ever."},
    ),
    ("get", f"{_JOB}/events"): Answer(
        shape=status_schemas.EventPage, texts=[_STREAM], refusals=[422]
    ),
    ("get", "/api/v1/events"): Answer(
        shape=status_schemas.EventPage, texts=[_STREAM], refusals=[422]
    ),
    ("put", f"{_JOB}/mode"): Answer(shape=ModeChange, refusals=_BODY),
    ("post", f"{_JOB}/publish"): Answer(shape=views.PolicyRow, refusals=_BODY),
    ("post", f"{_JOB}/rollback"): Answer(shape=views.PolicyRow, refusals=_BODY),
    ("get", "/api/v1/session"): Answer(shape=SessionView),
    ("post", "/api/v1/login"): Answer(shape=SessionView, refusals=_BODY),
    ("post", "/api/v1/logout"): Answer(shape=SessionView),
    ("get", "/api/v1/status"): Answer(shape=status_schemas.BalancerStatus),
    ("get", "/livez"): Answer(shape=status_schemas.Probe),
    ("get", "/readyz"): Answer(shape=status_schemas.Probe, refusals=[503]),
    ("get", "/metrics"): Answer(
        texts=["text/plain", "application/openmetrics-text"], refusals=[400, 401, 403, 429, 503]
    ),
}
