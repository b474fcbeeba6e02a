"""Fixtures that more than one file of tests needs."""

from collections.abc import Iterator

import pytest

from tests.running import RunningBalancer, running_balancer


@pytest.fixture(scope="session")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBalancer]:
    """One balancer for all tests that are content with a job name of their own."""
    with running_balancer(tmp_path_factory.mktemp("balancer") / "balancer.sqlite") as running:
        yield running


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.nodeid)[-120:]
