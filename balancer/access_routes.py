"""What each route asks for, in one table; what is not in it asks for the scope ``admin``."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from starlette.routing import compile_path
from starlette.types import Scope as AsgiScope

from libra.balancer.access_rules import Scope
from libra.balancer.access_settings import AccessSettings

Need = Scope | Literal["free", "job", "metrics"]

# "job" is for its ranks and for readers; "metrics" is "read" or "free", as a setting says.
# A probe is asked by its address, whatever names are trusted.
_NEEDS: tuple[tuple[str, str, Need], ...] = (
    ("GET", "/livez", "free"),
    ("GET", "/readyz", "free"),
    ("GET", "/", "free"),
    ("GET", "/static/{path:path}", "free"),
    ("GET", "/api/v1/session", "free"),
    ("POST", "/api/v1/login", "free"),
    ("POST", "/api/v1/logout", "free"),
    ("POST", "/api/v1/jobs/{job}/reports", "report"),
    ("POST", "/api/v1/jobs/{job}/batches", "report"),
    ("GET", "/api/v1/jobs/{job}/policy", "job"),
    ("GET", "/metrics", "metrics"),
    ("GET", "/docs", "read"),
    ("GET", "/openapi.json", "read"),
    ("GET", "/api/v1/status", "read"),
    ("GET", "/api/v1/events", "read"),
    ("GET", "/api/v1/jobs", "read"),
    ("GET", "/api/v1/jobs/{job}", "read"),
    ("GET", "/api/v1/jobs/{job}/skew", "read"),
    ("GET", "/api/v1/jobs/{job}/ranks", "read"),
    ("GET", "/api/v1/jobs/{job}/ranks/{rank}", "read"),
    ("GET", "/api/v1/jobs/{job}/slowdown", "read"),
    ("GET", "/api/v1/jobs/{job}/loads", "read"),
    ("GET", "/api/v1/jobs/{job}/model", "read"),
    ("GET", "/api/v1/jobs/{job}/exchange", "read"),
    ("GET", "/api/v1/jobs/{job}/diagnosis", "read"),
    ("GET", "/api/v1/jobs/{job}/pools", "read"),
    ("GET", "/api/v1/jobs/{job}/whatif", "read"),
    ("GET", "/api/v1/jobs/{job}/policies", "read"),
    ("GET", "/api/v1/jobs/{job}/policies/{version}", "read"),
    ("GET", "/api/v1/jobs/{job}/events", "read"),
    ("DELETE", "/api/v1/jobs/{job}", "admin"),
    ("PUT", "/api/v1/jobs/{job}/mode", "admin"),
    ("POST", "/api/v1/jobs/{job}/publish", "admin"),
    ("POST", "/api/v1/jobs/{job}/rollback", "admin"),
)
PROBES = ("/livez", "/readyz")
_JOB_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A route of the table; ``job`` is the one that its path names.

    ``stream`` stays open for as long as its reader likes, ``poll`` may be answered much later.
    """

    path: str
    need: Need
    job: str = ""
    probe: bool = False
    stream: bool = False
    poll: bool = False

    @property
    def name_is_possible(self) -> bool:
        return not self.job or _JOB_NAME.fullmatch(self.job) is not None


LISTED = frozenset((method, path) for method, path, _ in _NEEDS)
_ROUTES: list[tuple[str, re.Pattern[str], str, Need]] = [
    (method, compile_path(path)[0], path, need) for method, path, need in _NEEDS
]
_UNLISTED = Route(path="", need="admin")


# Most requests are a few agents' again and again. Bounded, since anyone can make up paths.
@lru_cache(maxsize=4096)
def find_route(method: str, path: str) -> Route:
    """Return the route of a request, by the very patterns that the application uses."""
    wanted = "GET" if method == "HEAD" else method
    for listed, pattern, template, need in _ROUTES:
        found = pattern.match(path) if listed == wanted else None
        if found:
            return Route(
                path=template,
                need=need,
                job=found.groupdict().get("job", ""),
                probe=template in PROBES,
                stream=template.endswith("/events"),
                poll=template.endswith("/policy"),
            )
    return _UNLISTED


def is_open(route: Route, access: AccessSettings) -> bool:
    """Tell whether a route asks nobody who they are."""
    return route.need == "free" or (route.need == "metrics" and not access.metrics_auth)


def methods_of(path: str) -> list[str]:
    """Return the methods that a path has an answer to, whatever it is asked for."""
    return [method for method, pattern, _, _ in _ROUTES if pattern.match(path)]


def free_methods_of(path: str) -> list[str]:
    """Return the methods of a path that asks nobody whatever it is asked for; none of others."""
    needs = {method: need for method, pattern, _, need in _ROUTES if pattern.match(path)}
    return list(needs) if set(needs.values()) == {"free"} else []


def route_path(scope: AsgiScope) -> str:
    """Return the path below the root path, as the application's routes see it."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        return path[len(root) :]
    return path
