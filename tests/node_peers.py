"""The other ranks of a node, in one process: their agents report a step a second each."""

import json
import sys
import time
from typing import Any

from libra.agent.agent import Agent
from libra.agent.settings import AgentSettings
from tests.nodes import train_from

NODE_RANKS = 8


def main() -> None:
    url, absent = json.loads(sys.argv[1])
    node: dict[str, Any] = {"world_size": NODE_RANKS, "local_world_size": NODE_RANKS}
    agents = [
        # A relay that comes back is to be found at once.
        Agent(
            AgentSettings(
                balancer=url, job="job", rank=rank, local_rank=rank, max_retry_s=0.5, **node
            )
        )
        for rank in range(NODE_RANKS)
        if rank != absent
    ]
    print("up", flush=True)
    step = 0
    while True:
        for agent in agents:
            train_from(agent, step, 1)
        step += 1
        time.sleep(1.0)


if __name__ == "__main__":
    main()
