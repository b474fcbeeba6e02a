"""Settings of all tests, and fixtures that more than one file of them needs."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.running import RunningBalancer, running_balancer

# Machines that run tests are often busy: time is no failure here. CI draws the same cases each
# run, so that a red run is the change's.
settings.register_profile("libra", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("libra")


@pytest.fixture(scope="session")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBalancer]:
    """One balancer for all tests that are content with a job name of their own."""
    with running_balancer(tmp_path_factory.mktemp("balancer") / "balancer.sqlite") as running:
        yield running


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.nodeid)[-120:]
