"""Follow the balancer's policy: long polls that keep the newest valid version at hand."""

import asyncio
import logging
import random

from libra.agent.backoff import Backoff
from libra.agent.channel import Channel, NoAnswerError
from libra.agent.settings import AgentSettings
from libra.balancer.policy import HOME_POLICY, Policy, decode_policy

logger = logging.getLogger(__name__)


class Follower:
    """Hold the newest policy that the balancer has published; ``policy`` is a plain attribute.

    A version never goes back: ranks agree on what one of them proposes, and a balancer that
    lost its memory must not undo what the job already runs under.
    """

    def __init__(self, settings: AgentSettings, channel: Channel) -> None:
        self.policy: Policy = HOME_POLICY
        self._settings = settings
        self._channel = channel
        # What the balancer showed last, taken or not, so that the next poll waits for news.
        self._seen = HOME_POLICY.checksum
        self._told = False
        self._backoff = Backoff(
            "Following the balancer's policy",
            first_delay_s=settings.first_retry_s,
            max_delay_s=settings.max_retry_s,
        )

    async def run(self) -> None:
        """Poll for ever, at most once in ``interval_s`` however fast the answers come."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._settings.interval_s * random.random())
        while True:
            began_s = loop.time()
            try:
                await self._poll()
                self._backoff.succeeded()
                pause_s = max(0.0, self._settings.interval_s - (loop.time() - began_s))
            except NoAnswerError as error:
                pause_s = self._backoff.failed(error, retry_after_s=error.retry_after_s)
            await asyncio.sleep(pause_s)

    async def _poll(self) -> None:
        """Ask once; raise ``NoAnswerError`` unless a valid policy, no news or no job yet came."""
        wait_s = self._settings.poll_wait_s
        answer = await self._channel.ask(
            "GET",
            f"/api/v1/jobs/{self._settings.job}/policy?wait={wait_s:g}",
            headers={"if-none-match": f'"{self._seen}"'},
            timeout_s=wait_s + self._settings.timeout_s,
        )
        if answer.status in (304, 404):  # 404: the job begins with its first report
            return
        if answer.status != 200:
            raise NoAnswerError(f"status {answer.status}", retry_after_s=answer.retry_after_s)
        etag = answer.headers.get("etag", "").removeprefix("W/").strip('"')
        self._take(_checked(answer.body, etag))

    def _take(self, policy: Policy) -> None:
        self._seen = policy.checksum
        if policy.version > self.policy.version:
            self.policy = policy
        elif policy != self.policy and not self._told:
            self._told = True
            logger.warning(
                "The balancer offers policy version %d, but this job already follows version "
                "%d and keeps it.",
                policy.version,
                self.policy.version,
            )


def _checked(body: bytes, etag: str) -> Policy:
    """Return the body's policy; raise ``NoAnswerError`` unless it is whole."""
    try:
        policy = decode_policy(body)
    except ValueError as error:
        raise NoAnswerError(f"not a policy: {error}") from error
    if policy.checksum != etag:
        raise NoAnswerError(f"policy has checksum {policy.checksum}, ETag says {etag!r}")
    return policy
