"""Clients of one job that write down what they are told of its policy, through faults."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from libra.balancer.policy import HOME_POLICY, Policy, decode_policy
from tests.history import Kind, Operation

TIMEOUT_S = 1.5
POLL_S = 0.7
_BROKEN = (httpx.HTTPError, TimeoutError, OSError, ValueError, KeyError)


@dataclass(kw_only=True)
class Recorder:
    """What all clients of a run saw.

    Attributes:
        torn: may the network flip bits? Then a body that is not what its checksum says is its.
    """

    job: str
    torn: bool = False
    history: list[Operation] = field(default_factory=list)

    def note(
        self,
        client: str,
        kind: Kind,
        began_s: float,
        policy: Policy | None = None,
        *,
        checksum: str = "",
    ) -> None:
        """Write down an operation that ends now; ``checksum`` is what the answer states."""
        sound = policy is None or policy.checksum == checksum
        if not sound and self.torn:
            policy = None
        self.history.append(
            Operation(
                client=client,
                kind=kind,
                began_s=began_s,
                ended_s=time.monotonic(),
                version=None if policy is None else policy.version,
                checksum=checksum,
                sound=sound,
            )
        )

    @property
    def path(self) -> str:
        return f"/api/v1/jobs/{self.job}"


def policy_of(row: dict[str, Any]) -> Policy:
    """Return the policy that a row of the API shows."""
    fields = {name: row[name] for name in Policy.__struct_fields__ if name in row}
    return msgspec.convert(fields, Policy)


async def publisher(recorder: Recorder, http: httpx.AsyncClient, name: str, pause_s: float) -> None:
    """Publish one policy after the other."""
    for number in range(1 << 20):
        began_s = time.monotonic()
        row, policy = {}, None
        try:
            answer = await http.post(
                f"{recorder.path}/publish", json={"reason": f"{name} {number}", "author": name}
            )
            if answer.status_code == 200:
                row = answer.json()
                policy = policy_of(row)
        except _BROKEN:
            row, policy = {}, None
        recorder.note(name, "publish", began_s, policy, checksum=str(row.get("checksum")))
        await asyncio.sleep(pause_s)


async def reader(
    recorder: Recorder, http: httpx.AsyncClient, name: str, pause_s: float, *, wait_s: float = 0.0
) -> None:
    """Fetch the policy over and over; with ``wait_s`` by long polls for another one."""
    known = HOME_POLICY
    while True:
        began_s = time.monotonic()
        etag = f'"{known.checksum}"'
        seen = None
        checksum = ""
        try:
            headers = {"If-None-Match": etag} if wait_s else {}
            answer = await http.get(f"{recorder.path}/policy?wait={wait_s}", headers=headers)
            checksum = answer.headers.get("etag", "").strip('"')
            if answer.status_code == 200:
                seen = decode_policy(answer.content)
            elif answer.status_code == 304 and answer.headers.get("etag") == etag:
                seen = known
        except _BROKEN:
            seen = None
        recorder.note(name, "fetch", began_s, seen, checksum=checksum)
        if seen is not None and seen.checksum == checksum:
            known = seen
        await asyncio.sleep(pause_s)


async def page(recorder: Recorder, http: httpx.AsyncClient, name: str, pause_s: float) -> None:
    """Follow events, and come back with the last id whenever the stream breaks."""
    last = ""
    while True:
        try:
            headers = {"Last-Event-ID": last} if last else {}
            async with http.stream("GET", f"{recorder.path}/events", headers=headers) as stream:
                event: dict[str, str] = {}
                async for line in stream.aiter_lines():
                    if line:
                        key, _, value = line.partition(": ")
                        event[key] = value
                        continue
                    last = event.get("id", last)
                    if event.get("event") == "policy":
                        row = msgspec.json.decode(event["data"], type=dict[str, Any])
                        now_s = time.monotonic()
                        checksum = str(row["checksum"])
                        recorder.note(name, "event", now_s, policy_of(row), checksum=checksum)
                    event = {}
        except _BROKEN:
            last = last if last.isdigit() else ""
        await asyncio.sleep(pause_s)


async def watcher(
    recorder: Recorder, policy: Callable[[], Policy], name: str, pause_s: float
) -> None:
    """Note which policy an agent holds."""
    while True:
        held = policy()
        recorder.note(name, "apply", time.monotonic(), held, checksum=held.checksum)
        await asyncio.sleep(pause_s)


async def while_running(clients: list[Awaitable[None]], course: Awaitable[None]) -> None:
    """Run clients beside a course of events, until it ends; raise what any of them raised."""
    tasks = [asyncio.ensure_future(client) for client in clients]
    try:
        await course
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
