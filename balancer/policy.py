"""A policy: the versioned settings that plans and placements are made under.

It travels from the balancer to every sampler and through the job's own store, and every rank
must derive the same plan from it, so it holds integers only where a plan depends on it.
"""

import hashlib
from typing import Annotated

import msgspec

from libra.attention.cost import FLOPS_COST, TileCost
from libra.attention.plan import MIN_GAIN_PERMILLE, TOLERANCE_PERMILLE

Count = Annotated[int, msgspec.Meta(ge=0)]
PerMille = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Speed = Annotated[int, msgspec.Meta(ge=100, le=10_000)]
Waves = Annotated[int, msgspec.Meta(ge=0, le=16)]
Author = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the settings of one job.

    Attributes:
        version: 0 is the home policy that every job starts with; it needs no balancer.
        parent: the version that this one replaced.
        pooling: move tiles inside pools and place sequences; off means plain Ulysses in order.
        cost: coefficients of ``TileCost``, forward plus backward, fixed point.
        cost_scale_bits: their unit, ``2 ** -cost_scale_bits`` seconds.
        speeds_permille: speed of each rank against the job's typical rank, 1000 is nominal;
            empty when all are equal.
        tolerance_permille: a pool is even when its slowest rank is this close to the mean.
        min_gain_permille: a cell whose slowest rank gains less than this stays home.
        waves: exchanges that what moves is divided among; 0 leaves it to the sampler's settings.
        author: who published it: "balancer", or an operator.
        reason: why it was published, for people.
        created_s: Unix time of publishing; no plan depends on it.
    """

    version: Count
    parent: Count = 0
    pooling: bool
    cost: tuple[Count, Count, Count, Count, Count, Count] = FLOPS_COST.coefficients
    cost_scale_bits: Count = FLOPS_COST.scale_bits
    speeds_permille: tuple[Speed, ...] = ()
    tolerance_permille: PerMille = TOLERANCE_PERMILLE
    min_gain_permille: PerMille = MIN_GAIN_PERMILLE
    waves: Waves = 0
    author: Author = "balancer"
    reason: str = ""
    created_s: float = 0.0

    @property
    def tile_cost(self) -> TileCost:
        return TileCost(coefficients=self.cost, scale_bits=self.cost_scale_bits)

    @property
    def checksum(self) -> str:
        """Sixteen hex digits over the encoded body."""
        return checksum_of(encode_policy(self))


HOME_POLICY = Policy(version=0, pooling=False, reason="plain Ulysses until a policy arrives")


def checksum_of(body: bytes) -> str:
    """Return the checksum of an encoded policy, whatever this version understands of it."""
    return hashlib.sha256(body).hexdigest()[:16]


def encode_policy(policy: Policy) -> bytes:
    """Return the one canonical encoding, JSON with fields in their order of declaration."""
    return msgspec.json.encode(policy)


def decode_policy(body: bytes) -> Policy:
    """Return the policy; raise ``ValueError`` (msgspec's) that names the field at fault."""
    policy = msgspec.json.decode(body, type=Policy)
    _ = policy.tile_cost
    return policy
