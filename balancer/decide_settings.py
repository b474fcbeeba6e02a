"""When a policy is published, and how far it may go."""

from dataclasses import dataclass, field

from libra.balancer.effects import TrialSettings
from libra.balancer.speeds import SpeedSettings

_FRUITLESS_FACTOR = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideSettings:
    """When a policy is published.

    Attributes:
        min_observations: kernel calls of each kind.
        max_error: cost-weighted prequential error of each kind.
        min_steps: complete steps to judge by.
        min_gain: hysteresis; a share of the slowest rank's kernel seconds.
        min_change: relative change of predicted costs that calls for a successor; twice as much
            after one that measurably improved nothing.
        max_factor: one policy changes a rank's speed or predicted share by no more.
        cooldown_steps: complete steps between two policies; doubled by each rollback.
        max_cooldown_factor: but never to more than this many times.
        refusal_steps: complete steps for which a policy that was rolled back is not tried again.
        speeds: when a rank counts as slow or fast.
        trial: how the effect of a policy is judged.
    """

    min_observations: int = 20
    max_error: float = 0.35
    min_steps: int = 2
    min_gain: float = 0.02
    min_change: float = 0.05
    max_factor: float = 2.0
    cooldown_steps: int = 5
    max_cooldown_factor: int = 16
    refusal_steps: int = 2000
    speeds: SpeedSettings = field(default_factory=SpeedSettings)
    trial: TrialSettings = field(default_factory=TrialSettings)

    def __post_init__(self) -> None:
        for name in ("min_observations", "min_steps", "cooldown_steps", "max_cooldown_factor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("max_error", "min_gain", "min_change"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be between 0 and 1")
        if not self.max_factor > 1:
            raise ValueError(f"max_factor={self.max_factor}: must be more than 1")
        if self.refusal_steps < 0:
            raise ValueError(f"refusal_steps={self.refusal_steps}: must not be negative")

    def change(self, fruitless: bool) -> float:
        """Return the change of costs that calls for a successor."""
        return self.min_change * (_FRUITLESS_FACTOR if fruitless else 1.0)

    def cooldown(self, setbacks: int) -> int:
        """Return the cool-down in complete steps after this many rollbacks in a row."""
        # The power is bounded too: a job may live long.
        return self.cooldown_steps * min(1 << min(setbacks, 30), self.max_cooldown_factor)
