"""The example model: what packing must not change, against a plain reference."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from libra.examples.model import ModelSettings, Transformer, loss_sum

SETTINGS = ModelSettings(vocabulary_size=50, hidden=32, heads=4, kv_heads=2, head_dim=8)
# float32 rounds at 6e-8; a few hundred additions in another order stay well below this.
TOLERANCE = 1e-5


def attend(q: Tensor, k: Tensor, v: Tensor, layout: list[int]) -> Tensor:
    """Causal attention within documents of the given lengths."""
    parts = zip(q.split(layout), k.split(layout), v.split(layout), strict=True)
    return torch.cat([_attend_document(*part) for part in parts])


def _attend_document(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(0, 1)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    model = Transformer(SETTINGS, attend)
    for parameter in model.parameters():
        # At the usual small initial weights attention is all but flat and hides errors.
        torch.nn.init.normal_(parameter, mean=0.0, std=0.3)
    return model


def test_logits_equal_the_formulas(model: Transformer) -> None:
    """One document gives the very numbers of the transformer's formulas, at any positions."""
    tokens = torch.randint(50, (12,))
    positions = torch.randint(1, 4, (12,)).cumsum(0)

    logits = model(tokens, positions, [12])

    expected = _reference(model, tokens, positions)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_packed_documents_equal_documents_alone(model: Transformer) -> None:
    """A document's logits do not depend on what is packed before it."""
    lengths = [5, 1, 9]
    tokens = torch.randint(50, (15,))
    positions = torch.cat([torch.arange(length) for length in lengths])

    packed = model(tokens, positions, lengths)

    parts = zip(tokens.split(lengths), positions.split(lengths), strict=True)
    alone = torch.cat([_reference(model, *part) for part in parts])
    torch.testing.assert_close(packed, alone, atol=TOLERANCE, rtol=TOLERANCE)


def test_loss_is_a_sum_over_labels() -> None:
    """Chunks change nothing, ignored labels count nothing, ranks' sums add up."""
    torch.manual_seed(0)
    logits = torch.randn(5000, 7, dtype=torch.float64)
    labels = torch.randint(7, (5000,))
    labels[::3] = -100
    kept = labels != -100
    expected = -logits.log_softmax(1)[kept].gather(1, labels[kept][:, None]).sum()

    torch.testing.assert_close(loss_sum(logits, labels).double(), expected, rtol=1e-5, atol=0)
    assert loss_sum(logits[:1], labels[:1]) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_head_is_tied_as_asked(tied: bool) -> None:
    """A tied head is the embedding itself: one parameter, one gradient."""
    model = Transformer(ModelSettings(tied_head=tied), attend)

    assert (model.head.weight is model.embedding.weight) is tied


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kv_heads": 3}, "kv_heads=3: must divide heads=8"),
        ({"head_dim": 7}, "head_dim=7: must be even"),
        ({"layers": 0}, "layers=0: must be at least 1"),
    ],
)
def test_sizes_are_checked(setting: dict[str, Any], message: str) -> None:
    """A size that cannot work is named when the settings are made."""
    with pytest.raises(ValueError, match=message):
        ModelSettings(**setting)


def _reference(model: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """The model on one document, written with loops over heads and complex rotations."""
    s = model.settings
    x = model.embedding.weight[tokens]
    for block in model.blocks:
        normed = _norm(x, block.attention_norm.weight)
        x = x + _attention(block, normed, positions, s) @ block.out.weight.T
        gate, up = (_norm(x, block.mlp_norm.weight) @ block.gate_up.weight.T).chunk(2, dim=1)
        x = x + (gate * torch.sigmoid(gate) * up) @ block.down.weight.T
    logits: Tensor = _norm(x, model.norm.weight) @ model.head.weight.T
    return logits


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + SETTINGS.norm_eps).sqrt() * weight


def _attention(block: Any, x: Tensor, positions: Tensor, s: ModelSettings) -> Tensor:
    heads = list((x @ block.qkv.weight.T).split(s.head_dim, dim=1))
    q, k, v = heads[: s.heads], heads[s.heads : -s.kv_heads], heads[-s.kv_heads :]
    hidden = torch.ones(len(x), len(x)).triu(1).bool()
    outs = []
    for head in range(s.heads):
        shared = head // (s.heads // s.kv_heads)
        scores = (
            _rotate(q[head], positions, s)
            @ _rotate(k[shared], positions, s).T
            / math.sqrt(s.head_dim)
        )
        outs.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[shared])
    return torch.cat(outs, dim=1)


def _rotate(x: Tensor, positions: Tensor, s: ModelSettings) -> Tensor:
    half = s.head_dim // 2
    speeds = s.rope_base ** -(torch.arange(half) / half)
    turns = torch.polar(torch.ones(len(x), half), positions[:, None] * speeds)
    turned = torch.complex(x[:, :half], x[:, half:]) * turns
    return torch.cat([turned.real, turned.imag], dim=1)
