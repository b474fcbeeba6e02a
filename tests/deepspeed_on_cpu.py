"""DeepSpeed's own Ulysses attention over gloo, for a test and a benchmark to compare with.

Shapes: T tokens of a sequence, t = T / C of a rank; H query heads; G kv heads; D head dim.
"""

import datetime
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def deepspeed_attention(mesh: DeviceMesh) -> Attention:
    """Return DeepSpeed's attention over ``mesh``, on the process group that already exists.

    It takes q [t, H, D], k and v [t, G, D] of one causal document, and returns [t, H, D].
    """
    os.environ["DS_ACCELERATOR"] = "cpu"
    comm: Any = import_module("deepspeed.comm")
    backend: Any = import_module("deepspeed.comm.torch")
    layer: Any = import_module("deepspeed.sequence.layer")
    # Its all-reduce through shared memory, which nothing here calls, takes a minute to compile,
    # and a run killed meanwhile leaves a lock that hangs every later one.
    backend.build_shm_op = lambda: None
    comm.init_distributed(
        "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=datetime.timedelta(seconds=60),
    )
    attention = layer.DistributedAttention(
        _local_attention, mesh.get_group("cp"), scatter_idx=2, gather_idx=1
    )
    return lambda q, k, v: attention(q[None], k[None], v[None], 0)[0]


def _local_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally over [1, T, heads, D], heads those of one rank."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)
