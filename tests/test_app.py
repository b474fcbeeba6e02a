"""The HTTP interface: what it shows and sets, how it refuses, and what it tells browsers."""

import json
import re

import pytest

from tests.application import VIEWS, assert_problem
from tests.running import RunningBalancer, make_report


@pytest.mark.parametrize("view", ["", *VIEWS, "/events", "/slowdown", "/ranks/0"])
def test_an_unknown_job_is_not_found(balancer: RunningBalancer, view: str) -> None:
    """Reading makes no job, and a poll for its policy does not wait."""
    assert_problem(balancer.client.get(f"/api/v1/jobs/nobody{view}?wait=30"), 404, "job")


def test_every_error_is_a_problem(balancer: RunningBalancer, job: str) -> None:
    """Unknown paths, methods and parameters are answered in the same form."""
    balancer.send(make_report(job))

    assert_problem(balancer.client.get("/api/v1/nothing"), 404)
    assert_problem(balancer.client.delete("/api/v1/jobs"), 405)
    wrong = balancer.client.post(f"/api/v1/jobs/{job}")
    assert_problem(wrong, 405)
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "DELETE"}
    assert_problem(balancer.client.get(f"/api/v1/jobs/{job}/skew?last=0"), 422, "query.last")


def test_the_mode_is_set(balancer: RunningBalancer, job: str) -> None:
    """A job watches only, until it is told otherwise by a mode that exists."""
    balancer.send(make_report(job))
    path = f"/api/v1/jobs/{job}/mode"

    assert balancer.view(job)["mode"] == "observe"
    assert balancer.client.put(path, json={"mode": "adapt"}).json() == {"mode": "adapt"}
    assert balancer.view(job)["mode"] == "adapt"
    assert_problem(balancer.client.put(path, json={"mode": "reckless"}), 422, "$.mode")
    assert_problem(balancer.client.put(path, content=b'{"mode": "frozen"}'), 415)
    assert balancer.view(job)["mode"] == "adapt"


def test_browsers_are_told_to_be_strict(balancer: RunningBalancer, job: str) -> None:
    """No foreign script, no framing, no guessed types, nothing stale, on pages and data alike."""
    for path in ("/", "/docs", "/static/docs.js", "/api/v1/jobs", "/metrics", "/nothing"):
        headers = balancer.client.get(path).headers
        policy = headers["content-security-policy"]

        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-cache"


def test_the_docs_page_is_self_contained(balancer: RunningBalancer) -> None:
    """It obeys the strict content policy, works under a sub-path, and FastAPI's own is off."""
    page = balancer.client.get("/docs").text
    links = re.findall(r'(?:src|href)="([^"]+)"', page)

    assert "docs.js" in page
    assert all(not link.startswith(("http", "/")) for link in links)
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page) is None
    assert all(balancer.client.get(f"/{link}").status_code == 200 for link in links if link != "./")
    assert balancer.client.get("/redoc").status_code == 404


def test_the_schema_knows_reports(balancer: RunningBalancer) -> None:
    """Every reference in openapi.json leads somewhere, and a report's fields are there."""
    text = balancer.client.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]

    assert {"job", "attempt", "moments", "steps"} <= set(schemas["Report"]["properties"])
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(schemas)
    assert "HTTPValidationError" not in schemas
