"""Operators publish and roll back over HTTP: what they set is checked, stored, and tried."""

from typing import Any

import httpx
import pytest

from libra.balancer.policy import HOME_POLICY, decode_policy
from tests.application import assert_problem
from tests.running import RunningBalancer, make_report

COEFFICIENTS = [1e-5, 1e-7, 1e-7, 1e-9, 1e-6, 1e-8]


def post(balancer: RunningBalancer, job: str, what: str, body: Any) -> httpx.Response:
    return balancer.client.post(f"/api/v1/jobs/{job}/{what}", json=body)


def test_an_operators_settings_come_into_force(balancer: RunningBalancer, job: str) -> None:
    """What is given changes, the rest stays, and agents get it with its author and reason."""
    balancer.send(make_report(job))
    body = {"pooling": True, "coefficients_seconds": COEFFICIENTS, "waves": 3, "author": "ada"}
    row = post(balancer, job, "publish", body).json()
    second = post(balancer, job, "publish", {"tolerance_permille": 20, "reason": "coarser"}).json()
    policy = decode_policy(balancer.client.get(f"/api/v1/jobs/{job}/policy").content)

    assert (row["version"], row["parent"], row["author"], row["waves"]) == (1, 0, "ada", 3)
    assert row["coefficients_seconds"] == pytest.approx(COEFFICIENTS, rel=1e-4)
    assert (second["version"], second["author"]) == (2, "operator")
    assert (policy.version, policy.pooling, policy.waves) == (2, True, 3)
    assert (policy.tolerance_permille, policy.reason) == (20, "coarser")
    assert policy.checksum == second["checksum"]
    history = balancer.view(f"{job}/policies")["policies"]
    assert [entry["version"] for entry in history] == [1, 2]
    assert history[0]["effect"]["reason"] == "Replaced by policy 2 before it was judged."
    assert balancer.view(job)["trial"]["version"] == 2


def test_an_operator_goes_back(balancer: RunningBalancer, job: str) -> None:
    """By default to what was in force before, else to the version that is named."""
    balancer.send(make_report(job))
    post(balancer, job, "publish", {"pooling": True, "waves": 2})
    post(balancer, job, "publish", {"waves": 4})

    back = post(balancer, job, "rollback", {"reason": "too many waves"}).json()
    home = post(balancer, job, "rollback", {"to_version": 0, "author": "ada"}).json()

    assert (back["version"], back["restores"], back["waves"]) == (3, 1, 2)
    assert back["reason"] == "Back to version 1: too many waves"
    assert (home["version"], home["pooling"], home["author"]) == (4, False, "ada")
    assert home["cost"] == list(HOME_POLICY.cost)
    # By hand, for reasons of their own: nothing was measured to be worse.
    assert "libra_policy_rollbacks_total" in balancer.client.get("/metrics").text
    assert balancer.view(job)["rollbacks"] == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"waves": 17}, "$.waves"),
        ({"pooling": "yes"}, "$.pooling"),
        ({"tolerance_permille": -1}, "$.tolerance_permille"),
        ({"version": 7}, "$.version"),
        ({"speeds_permille": [1000, 50]}, "$.speeds_permille[1]"),
        ({"speeds_permille": [1000] * 9}, "$.speeds_permille"),
        ({"coefficients_seconds": [1e-9]}, "$.coefficients_seconds"),
        ({"coefficients_seconds": [0.0] * 6}, "$.coefficients_seconds"),
        ({"coefficients_seconds": [-1e-9] * 6}, "$.coefficients_seconds[0]"),
        ({"cost": [1] * 6}, "$.cost"),
        ({"cost": [0] * 6, "cost_scale_bits": 40}, "$.cost"),
        ({"cost": [1] * 6, "cost_scale_bits": 61}, "$.cost"),
        (
            {"cost": [1] * 6, "cost_scale_bits": 40, "coefficients_seconds": COEFFICIENTS},
            "$.coefficients_seconds",
        ),
        ({"author": ""}, "$.author"),
        ({"author": "balancer"}, "$.author"),
        ({"reason": "x" * 1001}, "$.reason"),
    ],
)
def test_what_no_plan_can_bear_is_refused(
    balancer: RunningBalancer, job: str, body: dict[str, Any], field: str
) -> None:
    """A setting out of range is refused with its place, and nothing is published."""
    balancer.send(make_report(job))

    assert_problem(post(balancer, job, "publish", body), 422, field)
    assert balancer.view(job)["policy_version"] == 0


def test_nowhere_to_go_back_to_is_said(balancer: RunningBalancer, job: str) -> None:
    """An unknown version, or none before, is refused; so are other bodies and jobs."""
    balancer.send(make_report(job))

    assert_problem(post(balancer, job, "rollback", {}), 422, "$.to_version")
    assert_problem(post(balancer, job, "rollback", {"to_version": 5}), 422, "$.to_version")
    forged = {"to_version": 0, "author": "balancer"}
    assert_problem(post(balancer, job, "rollback", forged), 422, "$.author")
    path = f"/api/v1/jobs/{job}/rollback"
    assert_problem(balancer.client.post(path, content=b"{}"), 415)
    headers = {"Content-Type": "application/json"}
    assert_problem(balancer.client.post(path, content=b"{", headers=headers), 400, "$")
    assert_problem(post(balancer, "nobody", "publish", {}), 404, "job")
