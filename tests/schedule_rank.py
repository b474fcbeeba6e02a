"""One rank of a drawn job: it agrees, trains and saves as the product does, and tells of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from libra.agent.agreement import confirm
from libra.agent.sampler import PoolSampler
from libra.attention.shape import PoolShape
from libra.attention.store import Store
from libra.balancer.policy import Policy
from tests.coordinates import HEADS, Place
from tests.schedules import (
    GLOBAL_BATCH,
    LENGTHS,
    SEED,
    STEPS,
    TOKENS,
    Attempt,
    CrashKind,
    Schedule,
)
from tests.stores import WatchedStore

TIMEOUT_S = 20.0

Agree = Callable[..., Policy]
# Of a sampler, at a checkpoint; none at the start of a job.
State = dict[str, Any] | None


class CrashedError(Exception):
    """This rank stops here."""


class PeerLostError(Exception):
    """A collective failed: another rank has stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What one rank tells of itself; ``detail`` is JSON."""

    kind: str
    attempt: int
    rank: int
    step: int = -1
    detail: Any = None


class World(Protocol):
    """Where a rank lives: its store, its peers, and who hears of it."""

    @property
    def store(self) -> Store: ...
    def meet(self) -> None:
        """Wait for all ranks of the attempt; raise ``PeerLostError`` where one has stopped."""

    def tell(self, event: Event) -> None: ...
    def crash(self) -> None: ...


def make_sampler(shape: PoolShape, rank: int) -> PoolSampler:
    return PoolSampler(
        LENGTHS,
        Place(shape, rank),
        tokens=TOKENS,
        global_batch=GLOBAL_BATCH,
        packing="stream",
        seed=SEED,
        **HEADS,
    )


def resume(sampler: PoolSampler, state: State) -> int:
    """Take up a checkpoint's state; return the next step."""
    if state is None:
        return 0
    sampler.load_state_dict(state)
    return int(sampler.state_dict()["step"])


class Rank:
    """One rank's training loop, which stops where its schedule says."""

    def __init__(
        self, schedule: Schedule, attempt: Attempt, rank: int, world: World, agree: Agree
    ) -> None:
        self._schedule, self._attempt, self._rank = schedule, attempt, rank
        self._world, self._agree = world, agree
        self._store = WatchedStore(world.store, self._call)
        self._crash = next((crash for crash in attempt.crashes if crash.rank == rank), None)
        self._step = self._calls = 0

    def train(self, state: State) -> None:
        """Train from a checkpoint to the last step."""
        sampler = make_sampler(self._attempt.shape, self._rank)
        agreed: dict[int, Policy] = {}
        for step in range(resume(sampler, state), STEPS):
            # What a loader does ahead of training.
            for further in range(step, min(step + 1 + self._attempt.ahead[self._rank], STEPS)):
                if further not in agreed:
                    agreed[further] = self.decide(further)
            self._step = step
            self._point("decided")
            for micro_batch, cell in enumerate(sampler.cells(step, agreed.pop(step))):
                columns = (cell.segments.document, cell.segments.begin, cell.segments.end)
                segments = list(zip(*(column.tolist() for column in columns), strict=True))
                self._tell("trained", step, [micro_batch, segments])
                self._point("micro_batch", micro_batch)
                self._world.meet()
            if (step + 1) % self._schedule.checkpoint_every == 0:
                self._save(sampler.state_dict(step=step + 1))

    def decide(self, step: int) -> Policy:
        """Return what the ranks agree on for a step."""
        self._step, self._calls = step, 0
        store, attempt = self._store, self._attempt.number
        if step % 3 == 0:
            name = f"epoch/{step // 3}"
            confirm(store, attempt=attempt, name=name, value="the same", timeout_s=TIMEOUT_S)
        self._calls = 0
        policy = self._agree(
            store,
            attempt=attempt,
            step=step,
            propose=self._propose,
            timeout_s=TIMEOUT_S,
            kept_steps=self._schedule.kept_steps,
        )
        self._tell("agreed", step, [policy.version, policy.checksum])
        return policy

    def _propose(self) -> Policy:
        self._point("propose")
        policy = self._attempt.policy(self._rank, self._step)
        self._tell("proposed", self._step, policy.checksum)
        return policy

    def _save(self, state: dict[str, Any]) -> None:
        """Take part in a checkpoint: it counts when all ranks have saved and rank 0 says so."""
        self._point("checkpoint", 0)
        self._world.meet()
        self._point("checkpoint", 1)
        if self._rank == 0:
            self._tell("checkpoint", state["step"], json.loads(json.dumps(state)))

    def _call(self, name: str) -> None:
        self._point("store", self._calls)
        self._calls += 1

    def _point(self, kind: CrashKind, nth: int = 0) -> None:
        crash = self._crash
        if crash and crash.kind == kind and self._step >= crash.step and nth >= crash.nth:
            self._tell("crashed", self._step, kind)
            self._world.crash()

    def _tell(self, kind: str, step: int, detail: Any = None) -> None:
        self._world.tell(
            Event(
                kind=kind, attempt=self._attempt.number, rank=self._rank, step=step, detail=detail
            )
        )
