"""What someone whom others vouch for may do: ``SCOPE:WHO`` and ``report:WHO=JOBS``.

``WHO`` and ``JOBS`` are names; a star in ``WHO`` stands for anything, at the end of ``JOBS`` for
any ending. ``{namespace}`` and ``{name}`` in ``JOBS`` are those of the service account.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

Scope = Literal["report", "read", "admin"]

JOB_PATTERN = re.compile(r"[A-Za-z0-9._:@-]{0,128}\*?")
# No namespace has a dot, so no other namespace's jobs begin like this.
_OWN_JOBS = "{namespace}.*"
_FIELD = re.compile(r"\{(namespace|name)\}")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Whoever's name matches ``who`` has this scope, for ``report`` on these jobs."""

    scope: Scope
    who: str
    jobs: str = ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(".*".join(map(re.escape, self.who.split("*"))), re.DOTALL)

    def matches(self, name: str) -> bool:
        return self._pattern.fullmatch(name) is not None

    def jobs_of(self, fields: Mapping[str, str]) -> str:
        """Return the pattern of jobs with its fields filled in; ``""`` if one is not known."""
        if any(not fields.get(field) for field in _FIELD.findall(self.jobs)):
            return ""
        return _FIELD.sub(lambda found: fields[found[1]], self.jobs)


def parse_rules(setting: str, texts: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules of a setting; raise ``ValueError`` for one that cannot be."""
    return tuple(_parse(setting, text) for text in texts)


def _parse(setting: str, text: str) -> Rule:
    scope, found, rest = text.partition(":")
    who, bound, jobs = rest.partition("=")
    if not found or not who or scope not in get_args(Scope) or (bound and not jobs):
        raise ValueError(f"{setting}={text!r}: must be SCOPE:WHO or report:WHO=JOBS")
    if scope != "report":
        if bound:
            raise ValueError(f"{setting}={text!r}: only the scope report is bound to jobs")
        return Rule(scope="admin" if scope == "admin" else "read", who=who)
    if not bound:
        if "/" not in who:
            raise ValueError(f"{setting}={text!r}: must name the jobs: report:WHO=JOBS")
        jobs = _OWN_JOBS
    if not JOB_PATTERN.fullmatch(_FIELD.sub("x", jobs)):
        raise ValueError(f"{setting}={text!r}: the jobs must be a name, or its beginning and a *")
    return Rule(scope="report", who=who, jobs=jobs)


def job_matches(pattern: str, job: str) -> bool:
    """Tell whether a job is the one that a pattern names, or begins as it says."""
    if pattern.endswith("*"):
        return job.startswith(pattern[:-1])
    return pattern != "" and job == pattern
