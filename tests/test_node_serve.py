"""A node of real agents before a real balancer with tokens and TLS, told by its own counters."""

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.certificates import make_certificate
from tests.counting_proxy import CountingProxy
from tests.guarded import token_file
from tests.node_processes import RankProcess, State, rank_process
from tests.nodes import RANKS, settings
from tests.running import serve, wait_for

INTERVAL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A balancer, the proxy before it, and its ranks."""

    client: httpx.Client
    proxy: CountingProxy
    ranks: list[RankProcess]

    def counts(self, sent: int) -> dict[str, float]:
        """Return what became of reports, and the requests they came in, once so many are taken.

        A page of metrics is kept for a second.
        """
        return wait_for(lambda: own if (own := self._counts()).get("accepted", 0) >= sent else None)

    def _counts(self) -> dict[str, float]:
        text = self.client.get("/metrics").text
        found = re.findall(r'^libra_reports_total\{result="(\w+)"\} (\S+)$', text, re.MULTILINE)
        requests = re.findall(r"^libra_ingest_duration_seconds_count (\S+)$", text, re.MULTILINE)
        return {result: float(value) for result, value in found} | {"requests": float(requests[0])}

    def settled(self) -> list[State]:
        """Return the states once nothing is left to send."""

        def all_sent() -> list[State] | None:
            states = [rank.state for rank in self.ranks]
            return states if not any(state.unsent_steps for state in states) else None

        return wait_for(all_sent)


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Run the four ranks of a node, the first of them as its relay, over TLS with a token."""
    authority = make_certificate(folder, "authority")
    own = make_certificate(folder, "balancer", by=authority)
    tokens = token_file(folder / "tokens")
    secret = folder / "token"
    secret.write_text(tokens.texts["report"])
    secret.chmod(0o600)
    options = ["--tokens", str(tokens.path), "--tls-cert", str(own.cert), "--tls-key", str(own.key)]
    context = ssl.create_default_context(cafile=str(authority.cert))
    headers = {"Authorization": f"Bearer {tokens.texts['admin']}"}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w"))
        process = stack.enter_context(serve(folder / "db", *options, stderr=log))
        assert process.stdout is not None
        lines = (re.search(r"https://127\.0\.0\.1:(\d+)", line) for line in process.stdout)
        port = int(next(found for found in lines if found)[1])
        proxy = stack.enter_context(CountingProxy(port))
        client = httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=context, headers=headers, timeout=30
        )
        stack.enter_context(client)
        files: dict[str, Any] = {"token_file": str(secret), "ca_file": str(authority.cert)}
        url = f"https://127.0.0.1:{proxy.port}"
        ranks = [
            stack.enter_context(
                rank_process(settings(url, rank, job="mine", interval_s=INTERVAL_S, **files))
            )
            for rank in range(RANKS)
        ]
        yield Scene(client=client, proxy=proxy, ranks=ranks)


def sent_by(states: list[State]) -> int:
    return sum(state.sent for state in states)


def meet(own: Scene) -> int:
    """Train until all ranks report through their relay; return the next step to train."""
    first = 0

    def together() -> bool:
        nonlocal first
        for rank in own.ranks:
            rank.train(first, 5)
        first += 5
        return all(state.relays or state.relayed for state in own.settled())

    wait_for(together)
    return first


def test_a_node_is_one_connection_one_request_and_one_policy(
    tmp_path: Path, runtime_folder: Path
) -> None:
    """As the balancer counts: a request an interval, a row a report; all ranks get the policy."""
    with scene(tmp_path) as own:
        first = meet(own)
        connections, before = own.proxy.connections, own.counts(sent_by(own.settled()))
        began_s = time.monotonic()
        for turn in range(4):
            for rank in own.ranks:
                rank.train(first + 5 * turn, 5)
            own.settled()
        states, taken_s = own.settled(), time.monotonic() - began_s
        after = own.counts(sent_by(states))

        assert after["requests"] - before["requests"] <= 2 + taken_s / INTERVAL_S
        assert own.proxy.connections == connections
        assert after["accepted"] == sent_by(states)
        assert after.get("duplicate", 0) == after.get("late", 0) == 0
        assert [state.relays for state in states] == [True, False, False, False]
        assert own.client.post("/api/v1/jobs/mine/publish", json={"waves": 3}).is_success

        def told() -> bool:
            nonlocal first
            first += 100
            return all(rank.train(first, 1).policy_version == 1 for rank in own.ranks)

        wait_for(told)
        # The leader alone asked for it: one more connection beside its reports' at most.
        assert own.proxy.connections <= connections + 1


@pytest.mark.fault
def test_a_leader_that_is_killed_costs_no_report(tmp_path: Path, runtime_folder: Path) -> None:
    """Its ranks go on by themselves; all that they were told is taken was counted, once."""
    with scene(tmp_path) as own:
        first = meet(own)
        leader, *others = own.ranks
        gone = leader.state
        for rank in others:
            rank.train(first, 50)
        leader.process.kill()
        for rank in others:
            rank.train(first + 1000, 50)
        left = Scene(client=own.client, proxy=own.proxy, ranks=others)
        states = left.settled()
        total = gone.sent + sent_by(states)
        counts = own.counts(total)

        assert counts["accepted"] == total
        assert counts.get("late", 0) == 0
        assert not any(state.dropped or state.refused for state in states)
        # Each by a connection of its own.
        assert own.proxy.connections >= len(others) + 1
