"""What an operator asks for: the settings of a policy that are to change, and why.

Shapes: W ranks; F = 6 features.
"""

from typing import Annotated

import msgspec

from libra.attention.cost import TileCost
from libra.balancer.policy import HOME_POLICY, Author, Count, PerMille, Policy, Speed, Waves

Reason = Annotated[str, msgspec.Meta(max_length=1000)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class DraftError(ValueError):
    """A draft that no policy can be made of; ``field`` is the place at fault."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class PolicyDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a publication; what is left out stays as in the policy in force.

    Attributes:
        pooling: move tiles and place sequences, or plain Ulysses.
        coefficients_seconds: F seconds per feature of a tile, forward plus backward.
        cost, cost_scale_bits: the same, F integers in units of ``2 ** -cost_scale_bits`` s.
        speeds_permille: [W], 1000 is nominal; an empty list makes all equal.
        tolerance_permille, min_gain_permille, waves: as in a policy.
        reason, author: for the history.
    """

    pooling: bool | None = None
    coefficients_seconds: tuple[Seconds, ...] | None = None
    cost: tuple[Count, Count, Count, Count, Count, Count] | None = None
    cost_scale_bits: Count | None = None
    speeds_permille: tuple[Speed, ...] | None = None
    tolerance_permille: PerMille | None = None
    min_gain_permille: PerMille | None = None
    waves: Waves | None = None
    reason: Reason = "published by hand"
    author: Author = "operator"

    def policy(self, current: Policy, world_size: int) -> Policy:
        """Return the current policy with the draft's settings.

        Raises:
            DraftError: the settings contradict each other, the job or what a plan can bear.
        """
        names = ("pooling", "tolerance_permille", "min_gain_permille", "waves", "speeds_permille")
        check_author(self.author)
        given = {name: getattr(self, name) for name in names}
        changed = {name: value for name, value in given.items() if value is not None}
        speeds = self.speeds_permille
        if speeds and len(speeds) != world_size:
            detail = f"{len(speeds)} speeds: must be one for each of {world_size} ranks, or none"
            raise DraftError("$.speeds_permille", detail)
        policy = msgspec.structs.replace(
            current, **changed, **self._costs(), reason=self.reason, author=self.author
        )
        try:
            _ = policy.tile_cost
        except ValueError as error:
            raise DraftError("$.cost", str(error)) from error
        return policy

    def _costs(self) -> dict[str, object]:
        """Return the policy's fields of costs that the draft changes."""
        seconds = self.coefficients_seconds
        if (self.cost is None) != (self.cost_scale_bits is None):
            raise DraftError("$.cost", "cost and cost_scale_bits: must come together")
        if self.cost is not None and seconds is not None:
            detail = "coefficients_seconds and cost: must not both be given"
            raise DraftError("$.coefficients_seconds", detail)
        if self.cost is not None:
            return {"cost": self.cost, "cost_scale_bits": self.cost_scale_bits}
        if seconds is None:
            return {}
        try:
            cost = TileCost.from_seconds(seconds)
        except ValueError as error:
            raise DraftError("$.coefficients_seconds", str(error)) from error
        return {"cost": cost.coefficients, "cost_scale_bits": cost.scale_bits}


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a rollback.

    Attributes:
        to_version: whose settings to bring back, 0 for plain Ulysses; by default those that the
            settings in force have replaced.
        reason, author: for the history.
    """

    to_version: Count | None = None
    reason: Reason = ""
    author: Author = "operator"


def check_author(author: str) -> None:
    """Raise ``DraftError`` where a person would pass for the balancer."""
    if author == HOME_POLICY.author:
        raise DraftError("$.author", f"author={author!r}: must name who asks, not the balancer")
