"""What ``libra top`` shows, kept fresh by two threads: one follows events, one fetches views.

Events only say that something is new. Where there is no stream, or the balancer is away,
views are asked for every few seconds, until both work again.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from libra.balancer.client import Client, ClientError

POLL_S = 2.0
_GAP_S = 0.5
_STREAM_RETRY_S = 2.0
_NO_STREAM_RETRY_S = 30.0
# Longer than the balancer is ever silent in a stream.
_SILENCE_S = 60.0
MAX_STEPS = 60
_MAX_COURSES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What was fetched last, and why nothing newer was.

    Attributes:
        jobs: summaries; of one job where one is watched.
        skews: the newest steps' skew by job.
        ranks: rows of the watched job's ranks.
        error: of the newest attempt, empty after one that worked.
    """

    jobs: Sequence[dict[str, Any]] = ()
    skews: dict[str, list[float | None]] = field(default_factory=dict)
    ranks: Sequence[dict[str, Any]] = ()
    error: str = ""


class TopFeed:
    """Fetch what there is to see of all jobs, or of one."""

    def __init__(self, make_client: Callable[[], Client], job: str | None) -> None:
        self._make_client = make_client
        self._job = job
        self._seen = Seen()
        self._courses: dict[str, deque[tuple[int, float | None]]] = {}
        self._streaming = False
        self._news = threading.Event()
        self._closing = threading.Event()

    @property
    def seen(self) -> Seen:
        return self._seen

    @property
    def connection(self) -> str:
        """How news comes: live, polling, or not at all."""
        if self._seen.error:
            return "no connection"
        return "live" if self._streaming else "polling"

    def fetch(self, client: Client) -> None:
        """Fetch once; raise ``ClientError`` if that fails."""
        self._seen = self._one(client) if self._job else self._all(client)

    def start(self) -> None:
        for act in (self._fetch_on, self._follow_on):
            threading.Thread(target=act, name="libra-top", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._news.set()

    def _one(self, client: Client) -> Seen:
        path = f"/api/v1/jobs/{quote(str(self._job), safe='')}"
        summary = client.view(path)
        skew = client.view(f"{path}/skew", last=MAX_STEPS)["skew"]
        ranks = client.view(f"{path}/ranks", last=1)["ranks"]
        return Seen(jobs=[summary], skews={str(summary["job"]): skew}, ranks=ranks)

    def _all(self, client: Client) -> Seen:
        jobs = client.view("/api/v1/jobs")["jobs"]
        names = {str(job["job"]) for job in jobs}
        for gone in self._courses.keys() - names:
            del self._courses[gone]
        for job in jobs:
            self._note(client, job)
        skews = {name: [skew for _, skew in steps] for name, steps in self._courses.items()}
        return Seen(jobs=jobs, skews=skews)

    def _note(self, client: Client, job: dict[str, Any]) -> None:
        """Keep the course of a job's skew: asked for once, then from its summaries."""
        name, step = str(job["job"]), job.get("step")
        if step is None or (name not in self._courses and len(self._courses) >= _MAX_COURSES):
            return
        if name not in self._courses:
            path = f"/api/v1/jobs/{quote(name, safe='')}/skew"
            view = client.view(path, last=MAX_STEPS)
            steps = zip(view["steps"], view["skew"], strict=True)
            self._courses[name] = deque(steps, maxlen=MAX_STEPS)
        course = self._courses[name]
        if not course or course[-1][0] != step:
            course.append((step, job.get("skew")))

    def _fetch_on(self) -> None:
        with self._make_client() as client:
            while not self._closing.is_set():
                try:
                    self.fetch(client)
                except ClientError as error:
                    self._seen = replace(self._seen, error=str(error))
                self._closing.wait(_GAP_S)
                self._news.wait(POLL_S)
                self._news.clear()

    def _follow_on(self) -> None:
        one = f"/api/v1/jobs/{quote(str(self._job), safe='')}/events"
        path = one if self._job else "/api/v1/events"
        with self._make_client() as client:
            while not self._closing.is_set():
                wait_s = _STREAM_RETRY_S
                try:
                    with client.lines(path, silence_s=_SILENCE_S) as lines:
                        self._streaming = True
                        for line in lines:
                            if line.startswith("event:"):
                                self._news.set()
                except ClientError as error:
                    # An older balancer has no stream of all jobs.
                    wait_s = _NO_STREAM_RETRY_S if error.status in (404, 405) else wait_s
                self._streaming = False
                self._closing.wait(wait_s)
