"""What a seed draws: a job's ranks, lengths, kernels, noise and network, and what befalls it.

Shapes: N = dp packed sequences of a step, one micro-batch; W = dp C ranks; F = 6 features.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from libra.attention.shape import PoolShape
from libra.balancer.state import Mode
from tests.loop_lies import LIES
from tests.loop_network import Network

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
EventKind = Literal["slow", "throttle", "backend", "harm", "lie", "restart", "mode"]

QUERY_HEADS, KV_HEADS = 8, 4


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that befalls the job at the beginning of a step.

    ``value`` is how many times as long kernels take from now on (slow: of ``rank``; throttle: of
    all), or the new attempt's number of CP groups; ``name`` is the mode, or the kind of lie.
    """

    step: int
    kind: EventKind
    rank: int = 0
    value: float = 1.0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class World:
    """One simulated job; its course is a pure function of this.

    Attributes:
        sigma: standard deviation of the logarithm of document lengths; 0 makes all equal.
        noise: of one kernel call; ``jitter``: of all calls of a rank in a step; ``hiccups``: share
            of calls that take five times as long.
        speeds: [W] pace of each rank, 1.0 is nominal; empty when all are equal.
        by_tile: one kernel call per tile; else one for what is at home and one per wave received.
        batch_steps: steps of one report.
        policy_delay_steps: from a policy's publication to the first step that ranks agree on it.
        crashes: steps at which the balancer dies and comes back from what it had stored.
    """

    seed: int
    steps: int = 150
    shape: PoolShape = field(default_factory=lambda: PoolShape(dp=4, cp=1, sequences_per_pool=4))
    tokens: int = 16384
    sigma: float = 1.4
    noise: float = 0.04
    jitter: float = 0.005
    hiccups: float = 0.0
    speeds: tuple[float, ...] = ()
    by_tile: bool = True
    batch_steps: int = 2
    policy_delay_steps: int = 3
    mode: Mode = "adapt"
    network: Network = field(default_factory=Network)
    crashes: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()

    def lengths(self, step: int, sequences: int) -> list[Int64]:
        """Return document lengths of a step's N packed sequences, the same under any policy."""
        if not self.sigma:
            return [np.full(16, self.tokens // 16, dtype=np.int64)] * sequences
        rng = np.random.default_rng((self.seed, 1, step))
        return [self._packed(rng) for _ in range(sequences)]

    def _packed(self, rng: np.random.Generator) -> Int64:
        drawn = np.clip(rng.lognormal(6.5, self.sigma, size=96).astype(np.int64), 64, self.tokens)
        ends = np.minimum(np.cumsum(drawn), self.tokens)
        lengths = np.diff(ends, prepend=0)
        return np.asarray(lengths[lengths > 0], dtype=np.int64)


def draw_world(seed: int, *, steps: int = 100) -> World:
    """Return the world of a seed: 2 to 16 ranks and up to four events."""
    rng = np.random.default_rng((seed, 0))
    shape = _draw_shape(rng)
    world = shape.dp * shape.cp
    spread = rng.choice([0.0, 0.035])
    return World(
        seed=seed,
        steps=steps,
        shape=shape,
        tokens=int(rng.choice([8192, 16384, 32768])),
        sigma=float(rng.choice([0.0, 1.0, 1.4, 1.8], p=[0.2, 0.2, 0.4, 0.2])),
        noise=float(rng.uniform(0.02, 0.1)),
        jitter=float(rng.uniform(0.0, 0.02)),
        hiccups=float(rng.choice([0.0, 0.002, 0.01])),
        speeds=tuple((1 + rng.uniform(-spread, spread, size=world)).tolist()),
        by_tile=bool(rng.random() < 0.7),
        batch_steps=int(rng.integers(1, 6)),
        policy_delay_steps=int(rng.integers(1, 6)),
        mode="adapt" if rng.random() < 0.8 else "observe",
        network=_draw_network(rng),
        crashes=tuple(sorted(rng.integers(5, steps, size=rng.integers(0, 4)).tolist())),
        events=_draw_events(rng, steps, shape),
    )


def _draw_shape(rng: np.random.Generator) -> PoolShape:
    cp = int(rng.choice([1, 2, 4], p=[0.7, 0.2, 0.1]))
    # Small jobs more often than large ones: they have no majority, and cost less.
    dp = int(2 * (8 / cp) ** (rng.random() ** 1.5))
    return PoolShape(dp=dp, cp=cp, sequences_per_pool=int(rng.integers(2, min(dp, 8) + 1)))


def _draw_network(rng: np.random.Generator) -> Network:
    return Network(
        delay_steps=float(rng.uniform(0.0, 3.0)),
        loss=float(rng.choice([0.0, 0.05, 0.3])),
        resend_steps=float(rng.uniform(1.0, 4.0)),
    )


def _draw_events(rng: np.random.Generator, steps: int, shape: PoolShape) -> tuple[Event, ...]:
    kinds: list[EventKind] = ["slow", "throttle", "backend", "harm", "lie", "restart", "mode"]
    chosen = rng.choice(len(kinds), size=rng.integers(0, 5))
    events = [_draw_event(rng, kinds[index], steps, shape) for index in chosen.tolist()]
    # One liar at a time: of two that agree no majority could tell.
    lies = [event for event in events if event.kind == "lie"]
    kept = [event for event in events if event not in lies[1:]]
    return tuple(sorted(kept, key=lambda event: event.step))


def _draw_event(rng: np.random.Generator, kind: EventKind, steps: int, shape: PoolShape) -> Event:
    step, rank = int(rng.integers(5, steps)), int(rng.integers(shape.dp * shape.cp))
    value, name = 1.0, ""
    if kind == "slow":
        value = float(rng.uniform(1.1, 2.0))
    elif kind == "throttle":
        value = float(rng.uniform(1.1, 1.6))
    elif kind == "restart":
        value = float(rng.integers(2, shape.dp + 1))
    elif kind == "lie":
        name = str(rng.choice(LIES))
    elif kind == "mode":
        name = str(rng.choice(["observe", "adapt", "frozen"]))
    return Event(step=step, kind=kind, rank=rank, value=value, name=name)
