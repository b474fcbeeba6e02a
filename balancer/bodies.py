"""A policy's settings as numbers, and back: speeds of ranks and seconds per feature.

Shapes: W ranks; F = 6 features.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import TileCost
from libra.balancer.policy import Policy

Float64 = NDArray[np.float64]

_NOMINAL = 1000


def policy_speeds(policy: Policy, world_size: int) -> Float64:
    """Return [W] speeds of a policy; nominal if it was made for another number of ranks."""
    if len(policy.speeds_permille) != world_size:
        return np.ones(world_size)
    return np.array(policy.speeds_permille, dtype=np.float64) / _NOMINAL


def policy_coefficients(policy: Policy) -> Float64:
    """Return [F] seconds per feature."""
    return np.array(policy.cost, dtype=np.float64) * 2.0**-policy.cost_scale_bits


def with_costs(policy: Policy, coefficients: Float64) -> Policy:
    """Return the policy with costs [F] in seconds; raise ``ValueError`` if they are none."""
    cost = TileCost.from_seconds(coefficients.tolist())
    return msgspec.structs.replace(policy, cost=cost.coefficients, cost_scale_bits=cost.scale_bits)


def with_speeds(policy: Policy, speeds: Float64) -> Policy:
    """Return the policy with these speeds [W]; it lists none when all are nominal."""
    permille = np.rint(speeds * _NOMINAL).astype(int)
    listed = () if (permille == _NOMINAL).all() else tuple(permille.tolist())
    return msgspec.structs.replace(policy, speeds_permille=listed)


def next_version(policy: Policy, body: Policy, *, reason: str) -> Policy:
    """Return the next version after ``policy``, with the settings of ``body``."""
    return msgspec.structs.replace(
        body,
        version=policy.version + 1,
        parent=policy.version,
        author="balancer",
        reason=reason,
        created_s=0.0,
    )
