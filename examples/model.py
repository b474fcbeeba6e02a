"""A small decoder-only transformer, plain on purpose: its attention is whatever you pass in.

Documents are packed one after another without a batch dimension; every layer but attention works
token by token, so a rank runs it on its own shard as it is.

Shapes: t tokens of a rank's shard; E hidden size; H query heads and G kv heads of D features each;
F features inside the MLP; V ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# (q [t, H, D], k [t, G, D], v [t, G, D], layout) -> [t, H, D]
Attention = Callable[[Tensor, Tensor, Tensor, Any], Tensor]

IGNORED_LABEL = -100
_LOSS_CHUNK_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Sizes of a transformer; the defaults are the demo's."""

    vocabulary_size: int = 1024
    layers: int = 2
    hidden: int = 128
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    mlp_hidden: int = 384
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    tied_head: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "layers", "hidden", "heads", "kv_heads", "mlp_hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads}: must divide heads={self.heads}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim}: must be even, rotations take pairs")


class Transformer(nn.Module):
    """Logits of packed tokens; documents are kept apart by the attention and the positions."""

    def __init__(self, settings: ModelSettings, attention: Attention) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Embedding(settings.vocabulary_size, settings.hidden)
        self.blocks = nn.ModuleList(Block(settings, attention) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(settings.hidden, eps=settings.norm_eps)
        self.head = nn.Linear(settings.hidden, settings.vocabulary_size, bias=False)
        self.apply(_initialise)
        if settings.tied_head:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        """Return logits [t, V] of tokens [t] at positions [t], counted within each document."""
        rotation = rope(positions, self.settings.head_dim, self.settings.rope_base)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rotation, layout)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """Attention, then a gated MLP, each on the normalised stream and added to it."""

    def __init__(self, settings: ModelSettings, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.head_counts = [settings.heads, settings.kv_heads, settings.kv_heads]
        self.head_dim = settings.head_dim
        inner = settings.heads * settings.head_dim
        self.attention_norm = nn.RMSNorm(settings.hidden, eps=settings.norm_eps)
        self.qkv = nn.Linear(settings.hidden, sum(self.head_counts) * settings.head_dim, bias=False)
        self.out = nn.Linear(inner, settings.hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(settings.hidden, eps=settings.norm_eps)
        self.gate_up = nn.Linear(settings.hidden, 2 * settings.mlp_hidden, bias=False)
        self.down = nn.Linear(settings.mlp_hidden, settings.hidden, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, layout: Any) -> Tensor:
        """Return the stream after this block: [t, E] to [t, E]."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(1, (-1, self.head_dim))
        q, k, v = qkv.split(self.head_counts, dim=1)
        attended = self.attention(rotate(q, rotation), rotate(k, rotation), v, layout)
        x = x + self.out(attended.flatten(1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=1)
        update: Tensor = self.down(functional.silu(gate) * up)
        return x + update


def rope(positions: Tensor, head_dim: int, base: float) -> Tensor:
    """Return the rotation of each position, [2, t, 1, D / 2]: cosines, then sines."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
    angles = positions[:, None, None] * base**-exponents
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the feature pairs (i, i + D / 2) of [t, H, D]."""
    cos, sin = rotation.to(x.dtype)
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy summed over labels; those of -100 count nothing.

    It is a sum, so that ranks with unequal numbers of labels add up to the global mean. Chunks
    bound the memory of the float32 softmax.

    Args:
        logits: [t, V].
        labels: [t] ids or -100.
    """
    chunks = zip(logits.split(_LOSS_CHUNK_TOKENS), labels.split(_LOSS_CHUNK_TOKENS), strict=True)
    losses = [
        functional.cross_entropy(part.float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
        for part, wanted in chunks
    ]
    return torch.stack(losses).sum()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
