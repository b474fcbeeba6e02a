"""Pages of metrics of a balancer to which everything has happened that metrics tell of."""

from pathlib import Path

from libra.balancer.live_job import LiveJob
from libra.balancer.metrics import MetricsPage
from libra.balancer.metrics_settings import MetricsSettings
from libra.balancer.policy import Policy
from libra.balancer.service import Service
from libra.balancer.wire import Report
from tests.application import open_service
from tests.running import RunningBalancer, wait_for
from tests.simulated_job import SimulatedJob

RANKS = 4


def page_with(balancer: RunningBalancer, text: str) -> str:
    """Return the first page that has a line beginning like this; a page is kept for a second."""

    def read() -> str | None:
        page = balancer.client.get("/metrics").text
        return page if f"\n{text}" in page else None

    return wait_for(read)


async def filled_page(path: Path, level: str, *, openmetrics: bool = False) -> str:
    """Return the page of a job that has a model, a policy in force and a diagnosis."""
    async with open_service(path) as (service, _):
        await fill(service)
        settings = MetricsSettings(metrics_level=level)
        page = await MetricsPage(service, settings).read(openmetrics=openmetrics)
    return page.decode()


async def fill(service: Service, name: str = "job") -> LiveJob:
    """Let a job run a dozen steps, the last of them under a policy; refuse a request."""
    ranks = SimulatedJob(world_size=RANKS)
    for report in ranks.reports(range(12)):
        await _send(service, report, name)
    live = service.jobs[name]
    await service.publish(live, Policy(version=0, pooling=True))
    version = live.policy.version
    for report in ranks.reports(range(12, 14), policy_version=version):
        await _send(service, report, name)
    service.telemetry.refused["scope"] += 1
    return live


async def _send(service: Service, report: Report, name: str) -> None:
    report.job, report.sent_s = name, service.now_s()
    await service.report(report)
