"""A node as launchers make it: every rank's agent in a process of its own, told what to do."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from libra.agent.agent import Agent
from libra.agent.relay import Relay
from libra.agent.settings import AgentSettings
from tests.nodes import train_from
from tests.running import ROOT


class State(msgspec.Struct, kw_only=True):
    """What an agent says of itself.

    Attributes:
        relays: it is the node's relay; relayed: it hands its reports to that.
    """

    sent: int
    refused: int
    dropped: int
    unsent_steps: int
    policy_version: int
    failures: int
    relays: bool
    relayed: bool


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """One rank's process."""

    rank: int
    process: "subprocess.Popen[str]"

    def train(self, first: int, count: int) -> State:
        """Train steps; return the state after them."""
        return self._told([first, count])

    @property
    def state(self) -> State:
        return self._told([0, 0])

    def end(self) -> State:
        """Close the agent; return its last state."""
        return self._told([0, -1])

    def _told(self, command: list[int]) -> State:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return msgspec.json.decode(self.process.stdout.readline(), type=State)


@contextlib.contextmanager
def rank_process(own: AgentSettings) -> Iterator[RankProcess]:
    """Run one rank's agent."""
    fields = {name: getattr(own, name) for name in own.__slots__}
    command = [sys.executable, "-m", "tests.node_processes", json.dumps(fields)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield RankProcess(rank=own.rank, process=process)
        finally:
            process.kill()


def _state(agent: Agent) -> State:
    reporter = agent._reporter
    outlet: Any = reporter._outlet
    return State(
        sent=reporter.sent,
        refused=reporter.refused,
        dropped=reporter.dropped,
        unsent_steps=reporter.unsent_steps,
        policy_version=agent.policy.version,
        failures=reporter._backoff.failures,
        relays=isinstance(outlet, Relay),
        relayed=getattr(outlet, "_streams", None) is not None,
    )


def main() -> None:
    agent = Agent(AgentSettings(**json.loads(sys.argv[1])))
    for line in sys.stdin:
        first, count = json.loads(line)
        if count < 0:
            agent.close()
        train_from(agent, first, max(0, count))
        print(msgspec.json.encode(_state(agent)).decode(), flush=True)


if __name__ == "__main__":
    main()
