"""Where a sampler is in its epochs: what it agrees on with the others, saves, and resumes from."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from libra.agent.agreed import AgreedPolicies
from libra.agent.drawing import Drawing
from libra.agent.resume import VERSION, Position, SamplerState, World, read_state
from libra.balancer.policy import Policy

logger = logging.getLogger(__name__)


class Progress:
    """Turn positions into states and back, and steps into policies."""

    def __init__(self, drawing: Drawing, agreed: AgreedPolicies, world: World) -> None:
        self._drawing, self._agreed, self._world = drawing, agreed, world
        self._confirmed: set[int] = set()
        # What epochs drew when the state was saved, by epoch.
        self._saved: dict[int, str] = {}
        self._warned: set[int] = set()

    def agree(self, step: int, propose: Callable[[], Policy]) -> Policy:
        """Return the policy of a step once all ranks are known to draw the same in its epoch."""
        epoch = self._drawing.epoch_of(step)
        if epoch not in self._confirmed:
            self._confirm(epoch)
        return self._agreed.policy(step, propose)

    def state(self, position: Position) -> dict[str, Any]:
        """Return the state of a position."""
        drawing, epoch = self._drawing, position.epoch
        return SamplerState(
            version=VERSION,
            settings=drawing.settings,
            drawn=drawing.known_digest(epoch) or self._saved.get(epoch),
            epoch=epoch,
            first_step=drawing.first_step(epoch),
            epoch_steps=drawing.known_steps(epoch),
            step=position.step,
            micro_batch=position.micro_batch,
            world=self._world,
            policies=self._agreed.unfinished(position.step),
        ).to_dict()

    def resume(self, state: Mapping[str, Any]) -> tuple[Position, bool]:
        """Return the position of a state, and whether it is the end of its epoch.

        Raises:
            ValueError: the state is none, or was saved under other settings.
        """
        saved = read_state(state, self._drawing.settings)
        position = saved.position
        if position.micro_batch and saved.world != self._world:
            self._warn(saved)
            position = replace(position, micro_batch=0)
        firsts = {saved.epoch: saved.first_step}
        if saved.epoch_steps is not None:
            firsts[saved.epoch + 1] = saved.first_step + saved.epoch_steps
        self._drawing.begin_epochs_at(firsts)
        begun = position.step if position.micro_batch else None
        self._agreed.resume(saved.policy_of(), begun)
        if saved.drawn is not None:
            self._saved[saved.epoch] = saved.drawn
            self._confirmed.discard(saved.epoch)
        return position, saved.at_end

    def _confirm(self, epoch: int) -> None:
        self._drawing.check_steps(epoch)
        drawn = self._drawing.digest(epoch)
        saved = self._saved.get(epoch, drawn)
        if saved != drawn:
            raise ValueError(
                f"documents: epoch {epoch} draws {drawn}, and drew {saved} when the state was "
                "saved, so that documents would be lost or repeated; resume with the same sampler "
                "of documents, seeded as it was, and the same release of numpy"
            )
        told = self._drawing.settings | self._world.told | {"drawn": drawn}
        value = ", ".join(f"{name}={value}" for name, value in told.items())
        self._agreed.confirm(f"epoch/{epoch}", value)
        self._confirmed.add(epoch)

    def _warn(self, saved: SamplerState) -> None:
        """Say once that micro-batches which had run are run again."""
        if saved.step not in self._warned:
            self._warned.add(saved.step)
            logger.warning(
                "Step %d is begun anew: %d of its micro-batches had run on %s, which are not %s.",
                saved.step,
                saved.micro_batch,
                saved.world,
                self._world,
            )
