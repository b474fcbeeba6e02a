"""Reports on their way to the balancer: one by itself, or several as a batch."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from libra.agent.channel import Channel, NoAnswerError
from libra.agent.connection import Answer
from libra.agent.settings import AgentSettings
from libra.balancer.batch import Refused, batch_of, encode_batch
from libra.balancer.wire import Report, encode_report

# Refused as a whole, though rows by themselves may be fine, or no batches known at all.
_BY_ITSELF = frozenset({400, 404, 405, 409, 413, 415, 422})


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a report: taken, or refused for good with this status and reason."""

    taken: bool
    status: int = 202
    detail: str = ""


TAKEN = Verdict(taken=True)
T = TypeVar("T")


class Outlet(Protocol):
    """Where a reporter's reports go."""

    async def send(self, report: Report, *, urgent: bool = False) -> Verdict:
        """Return the balancer's verdict; raise ``NoAnswerError`` if there is none in time.

        An urgent report is the last one of a process that ends.
        """
        ...


class _Single(msgspec.Struct):
    accepted: bool
    policy: str = ""


class _Several(msgspec.Struct):
    accepted: int
    duplicates: int
    late: int
    refused: list[Refused]
    policy: str = ""


class Direct:
    """Send reports over a channel.

    Args:
        hint: called with the ETag of the job's policy that an acknowledgement carries.
    """

    def __init__(
        self, settings: AgentSettings, channel: Channel, hint: Callable[[str], None] | None = None
    ) -> None:
        self._job = settings.job
        self._timeout_s = settings.timeout_s
        self._channel = channel
        self._hint = hint or _ignored

    async def send(self, report: Report, *, urgent: bool = False) -> Verdict:
        """Send one report; see ``Outlet``."""
        answer = await self._post("reports", encode_report(report))
        if answer.status == 202:
            acknowledged = _decoded(answer, _Single)
            if not acknowledged.accepted:
                raise NoAnswerError("status 202, but it is not accepted")
            self._hint(acknowledged.policy)
            return TAKEN
        return _refusal(answer)

    async def send_all(self, reports: Sequence[Report]) -> list[Verdict]:
        """Send reports of one job, at least one, and return the verdict of each.

        Raises:
            NoAnswerError: no answer; any of them may have been taken.
        """
        if len(reports) == 1:
            return [await self.send(reports[0])]
        answer = await self._post("batches", encode_batch(batch_of(reports)))
        if answer.status in _BY_ITSELF:
            return [await self.send(report) for report in reports]
        if answer.status != 202:
            return [_refusal(answer)] * len(reports)
        outcome = _decoded(answer, _Several)
        verdicts = [TAKEN] * len(reports)
        for row in outcome.refused:
            if not 0 <= row.row < len(reports):
                raise NoAnswerError(f"row {row.row} is refused, which was not sent")
            detail = f"{row.field}: {row.reason}, {row.detail}"
            verdicts[row.row] = Verdict(taken=False, status=422, detail=detail)
        self._hint(outcome.policy)
        return verdicts

    async def _post(self, what: str, body: bytes) -> Answer:
        return await self._channel.ask(
            "POST",
            f"/api/v1/jobs/{self._job}/{what}",
            headers={"content-type": "application/msgpack"},
            body=body,
            timeout_s=self._timeout_s,
        )


def _ignored(_: str) -> None:
    """Do without hints."""


def _refusal(answer: Answer) -> Verdict:
    """Return that a report is refused for good; raise ``NoAnswerError`` if it may be sent again."""
    if not 400 <= answer.status < 500 or answer.status in (408, 429):
        raise NoAnswerError(f"status {answer.status}", retry_after_s=answer.retry_after_s)
    detail = answer.body[:300].decode(errors="replace")
    return Verdict(taken=False, status=answer.status, detail=detail)


def _decoded(answer: Answer, expected: type[T]) -> T:
    """Tell the balancer's own acknowledgement from another server's 202."""
    try:
        return msgspec.json.decode(answer.body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoAnswerError(f"status 202, but no acknowledgement: {error}") from error
