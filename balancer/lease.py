"""How long a balancer may answer as the one that leads. Pure: it reads no clock."""

from dataclasses import dataclass

# A lease ends in the database this much later than for the one who holds it: clocks of two
# machines do not run equally fast.
MARGIN = 1.1
MAX_LEAD_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The right to answer between two times of the holder's clock, in seconds.

    Attributes:
        generation: grows with every session that leads; the database refuses writes of lower ones.
        begins_s: who led before has stopped answering.
        ends_s: ``lead_timeout_s`` after the last word that the database confirmed was sent.
    """

    generation: int
    begins_s: float
    ends_s: float

    def holds(self, now_s: float) -> bool:
        return self.begins_s <= now_s < self.ends_s
