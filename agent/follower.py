"""Follow the balancer's policy: keep the newest valid version at hand.

Acknowledged reports say which policy is the newest, so that it is fetched when it is another one;
while no report is acknowledged, long polls wait for it.
"""

import asyncio
import contextlib
import logging
import random

from libra.agent.backoff import Backoff
from libra.agent.channel import Channel, NoAnswerError
from libra.agent.settings import AgentSettings
from libra.balancer.policy import HOME_POLICY, Policy, checksum_of, decode_policy

logger = logging.getLogger(__name__)

# A rank without news reports every 10 s: after this time none was acknowledged.
HINT_S = 15.0


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
        self._hint = HOME_POLICY.checksum
        self._hinted_until_s = 0.0
        self._news = asyncio.Event()
        self._backoff = Backoff(
            "Following the balancer's policy",
            first_delay_s=settings.first_retry_s,
            max_delay_s=settings.max_retry_s,
        )

    def hint(self, etag: str) -> None:
        """Note the newest policy's ETag; an empty one, of an older balancer, says nothing."""
        etag = _bare(etag)
        if etag:
            self._hint = etag
            self._hinted_until_s = asyncio.get_running_loop().time() + HINT_S
            if etag != self._seen:
                self._news.set()

    def relayed(self, body: bytes) -> None:
        """Note that the node's relay follows the policy, and take the newer one that it has.

        Raises:
            NoAnswerError: the body is no policy.
        """
        if body:
            self._take(_decoded(body), checksum_of(body))
        self.hint(self._seen)

    async def run(self) -> None:
        """Ask for ever, at most once in ``interval_s`` however fast the answers come."""
        loop = asyncio.get_running_loop()
        # Reports begin meanwhile, and tell more.
        await asyncio.sleep(self._settings.interval_s * (1.0 + random.random()))
        while True:
            began_s = loop.time()
            hinted_s = self._hinted_until_s - began_s
            if hinted_s > 0 and self._hint == self._seen:
                await self._rest(hinted_s)
                continue
            try:
                await self._poll(0.0 if hinted_s > 0 else self._settings.poll_wait_s)
                self._backoff.succeeded()
                pause_s = max(0.0, self._settings.interval_s - (loop.time() - began_s))
            except NoAnswerError as error:
                pause_s = self._backoff.failed(error, retry_after_s=error.retry_after_s)
            await asyncio.sleep(pause_s)

    async def _rest(self, timeout_s: float) -> None:
        """Wait until a hint tells of another policy, or hints may be old."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    async def _poll(self, wait_s: float) -> None:
        """Ask once; raise ``NoAnswerError`` unless a valid policy, no news or no job yet came."""
        answer = await self._channel.ask(
            "GET",
            f"/api/v1/jobs/{self._settings.job}/policy" + (f"?wait={wait_s:g}" if wait_s else ""),
            headers={"if-none-match": f'"{self._seen}"'},
            timeout_s=wait_s + self._settings.timeout_s,
        )
        if answer.status in (304, 404):  # 404: the job begins with its first report
            return
        if answer.status != 200:
            raise NoAnswerError(f"status {answer.status}", retry_after_s=answer.retry_after_s)
        policy, etag = _decoded(answer.body), _bare(answer.headers.get("etag", ""))
        # Of the body as it came: a newer balancer's policy may say more than is understood here.
        checksum = checksum_of(answer.body)
        if checksum != etag:
            raise NoAnswerError(f"policy has checksum {checksum}, ETag says {etag!r}")
        self._take(policy, checksum)

    def _take(self, policy: Policy, checksum: str) -> None:
        self._seen = checksum
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


def _bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _decoded(body: bytes) -> Policy:
    """Return the body's policy; raise ``NoAnswerError`` unless it is a valid one."""
    try:
        return decode_policy(body)
    except ValueError as error:
        raise NoAnswerError(f"not a policy: {error}") from error
