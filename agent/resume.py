"""The state of a sampler: what a checkpoint must hold so that no document is lost or repeated.

It names a position, not a rank: every rank can go on from the state of any other one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from libra.attention.shape import PoolShape
from libra.balancer.policy import Policy, decode_policy

VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The cell that comes next: a step, counted over epochs, and a micro-batch of it.

    At the end of an epoch that is the step after its last one, still of that epoch.
    """

    epoch: int
    step: int
    micro_batch: int = 0


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All besides a policy that decides which rank holds which sequences of a step."""

    dp: Size
    cp: Size
    sequences_per_pool: Size
    largest_pool: Count
    meeting: str

    @classmethod
    def of(cls, shape: PoolShape, meeting: str) -> "World":
        return cls(
            dp=shape.dp,
            cp=shape.cp,
            sequences_per_pool=shape.sequences_per_pool,
            largest_pool=shape.largest_pool,
            meeting=meeting,
        )

    @property
    def told(self) -> dict[str, int | str]:
        """The same by name."""
        plain: dict[str, int | str] = msgspec.to_builtins(self)
        return plain


class SamplerState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A position, and what must be as it was for the position to mean the same.

    Attributes:
        version: of this format.
        settings: of what steps draw.
        drawn: digest of what the epoch draws; ``None`` before it was drawn.
        epoch: of the position; ``first_step``: its first step.
        epoch_steps: its number of steps; ``None`` before it was drawn.
        step, micro_batch: the cell that comes next.
        world: the ranks that were there.
        policies: by step, the encoded policies agreed on for steps that are not finished.
    """

    version: int
    settings: dict[str, int | str]
    drawn: str | None
    epoch: Count
    first_step: Count
    epoch_steps: Count | None
    step: Count
    micro_batch: Count
    world: World
    policies: dict[str, str]

    @property
    def position(self) -> Position:
        return Position(epoch=self.epoch, step=self.step, micro_batch=self.micro_batch)

    @property
    def at_end(self) -> bool:
        """Whether nothing of the epoch is left."""
        return self.epoch_steps is not None and self.step == self.first_step + self.epoch_steps

    def policy_of(self) -> dict[int, Policy]:
        """Return the policies by step."""
        return {int(step): decode_policy(body.encode()) for step, body in self.policies.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which JSON can hold."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def read_state(state: Mapping[str, Any], settings: Mapping[str, int | str]) -> SamplerState:
    """Return a state that goes on with ``settings``.

    Raises:
        ValueError: it is no state of this version, does not fit together, or was saved under other
            settings.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != VERSION:
        raise ValueError(
            f"version={version!r}: must be {VERSION}, the sampler states that this release reads"
        )
    try:
        read = msgspec.convert(dict(state), type=SamplerState)
        _check(read)
    except ValueError as error:
        raise ValueError(f"state: not one that PoolSampler.state_dict gave: {error}") from error
    for name, value in settings.items():
        saved = read.settings.get(name)
        if saved != value:
            raise ValueError(
                f"{name}={value!r}: the state was saved with {name}={saved!r}, and documents would "
                f"be lost or repeated; resume with that, or begin anew without the state"
            )
    return read


def _check(state: SamplerState) -> None:
    last = None if state.epoch_steps is None else state.first_step + state.epoch_steps
    if state.step < state.first_step or (last is not None and state.step > last):
        raise ValueError(f"step={state.step}: not of epoch {state.epoch}")
    per_step = int(state.settings.get("global_batch", 0)) // state.world.dp
    if state.micro_batch and (state.at_end or state.micro_batch >= per_step):
        raise ValueError(f"micro_batch={state.micro_batch}: step {state.step} has {per_step}")
    if not all(step.isdecimal() for step in state.policies):
        raise ValueError(f"policies: {list(state.policies)} are not steps")
    if state.micro_batch and str(state.step) not in state.policies:
        raise ValueError(f"policies: that of step {state.step}, which was begun, is missing")
    state.policy_of()
