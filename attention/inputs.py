"""Refuse tensors and layouts that do not fit, before anything is sent.

Shapes: t tokens of a rank's shard; H query heads, G kv heads and D head dim of the model.
"""

from torch import Tensor

from libra.attention.layout import BatchLayout
from libra.attention.pool import Pool
from libra.attention.pools import SequencePools


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: BatchLayout,
    pools: SequencePools,
    last: BatchLayout | None,
) -> Pool:
    """Return the layout's pool, if the tensors fit each other, the layout and the mesh.

    Args:
        q: [t, H, D]; ``k`` and ``v`` [t, G, D].
        layout: what they should fit.
        pools: this rank's place.
        last: the layout attended to before, whose step cannot have had another policy.

    Raises:
        ValueError: they do not.
    """
    pool = layout_pool(layout, pools)
    _check_layout(layout, pool, pools, last)
    rows, heads = layout.shard.stop - layout.shard.start, layout.heads
    wanted = {"q": heads.query_heads, "k": heads.kv_heads, "v": heads.kv_heads}
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3 or x.shape[:2] != (rows, wanted[name]) or x.shape[2] != q.shape[2]:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: must be [{rows}, {wanted[name]}, head_dim] "
                f"for a layout of {layout.tokens} tokens, {heads.query_heads} query and "
                f"{heads.kv_heads} kv heads over {heads.cp} ranks"
            )
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name} is {x.dtype} on {x.device}: must be {q.dtype} on {q.device} as q is"
            )
        if not x.shape[2]:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: must have a head_dim of at least 1"
            )
        if not x.is_floating_point():
            raise ValueError(f"{name} is {x.dtype}: must be of floating point")
        if x.stride(2) != 1 and x.numel():
            raise ValueError(
                f"{name} has strides {x.stride()}: must be contiguous along the head dim"
            )
    return pool


def layout_pool(layout: BatchLayout, pools: SequencePools) -> Pool:
    """Return this rank's pool for a layout; raise ``ValueError`` if it has none of that size."""
    size = len(layout.lengths)
    if size not in pools.sizes:
        raise ValueError(
            f"layout has {size} sequences: must be the pool's {' or '.join(map(str, pools.sizes))}"
        )
    return pools.of(size)


def _check_layout(
    layout: BatchLayout, pool: Pool, pools: SequencePools, last: BatchLayout | None
) -> None:
    """Raise ``ValueError`` unless the layout is for this rank's place in the pool."""
    own = (layout.place, layout.cp_rank, layout.heads.cp)
    if own != (pool.place, pools.cp_rank, pools.shape.cp):
        raise ValueError(
            f"layout is for place {own[0]}, cp_rank {own[1]} of {own[2]}: must be for place "
            f"{pool.place}, cp_rank {pools.cp_rank} of {pools.shape.cp}"
        )
    if last and layout.step == last.step and layout.policy_checksum != last.policy_checksum:
        raise ValueError(
            f"layout has policy {layout.policy_checksum!r}: must be {last.policy_checksum!r}, as "
            f"the batches of step {layout.step} before it"
        )
