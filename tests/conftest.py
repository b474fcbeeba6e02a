"""Settings of all tests, and fixtures that more than one file of them needs."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.disk import Disk, slowed_disk
from tests.feed import Feed
from tests.running import RunningBalancer, running_balancer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.pages import OpenPage
    from tests.workers import RankWorkers

# Machines that run tests are often busy: time is no failure here. CI draws the same cases each
# run, so that a red run is the change's.
settings.register_profile(
    "libra",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=60,
    derandomize=True,
)
settings.load_profile("libra")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Whoever sets up a log of its own in this process takes it along."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBalancer]:
    """One balancer for all tests that are content with a job name of their own."""
    with running_balancer(tmp_path_factory.mktemp("balancer") / "balancer.sqlite") as running:
        yield running


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.nodeid)[-120:]


@pytest.fixture
def disk() -> Iterator[Disk]:
    """The disk of every store in this process; the test may keep it busy."""
    with slowed_disk() as disk:
        yield disk


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A browser for one file: playwright's event loop is gone before other tests run theirs."""
    # Here, so that a machine without playwright can run all other tests.
    from tests.pages import running_browser

    with running_browser() as running:
        yield running


@pytest.fixture
def open_page(browser: "Browser", balancer: RunningBalancer) -> "Iterator[OpenPage]":
    """Open a job's page; at the end, it has reported no error and asked no other host."""
    from tests.pages import watched_pages

    with watched_pages(browser, balancer.url) as open_page:
        yield open_page


@pytest.fixture
def feed(balancer: RunningBalancer, job: str) -> Feed:
    """A job with sixteen uneven steps."""
    feed = Feed(balancer=balancer, job=job)
    feed.run(16)
    return feed


@pytest.fixture(scope="session")
def worker_ranks() -> "Iterator[Callable[[int], RankWorkers]]":
    """Workers of a number of ranks, the same for every test; all end with the session."""
    # Here, so that tests without ranks load no torch.
    from tests.workers import RankWorkers

    with ExitStack() as stack:
        running: dict[int, RankWorkers] = {}

        def workers(world_size: int) -> RankWorkers:
            if world_size not in running:
                running[world_size] = stack.enter_context(RankWorkers(world_size))
            return running[world_size]

        yield workers


@pytest.fixture
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's runtime folder: short, for a socket's path must be."""
    path = Path(tempfile.mkdtemp(prefix="libra-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path)
