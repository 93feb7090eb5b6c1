"""The demo's network: Qwen 3.5's hybrid of Gated DeltaNet and gated attention, with its MTP layer, for training on CPUs.

The arithmetic is that of transformers' `Qwen3_5ForCausalLM` (`verify.py` compares the logits); what differs is the
layout: projections that read the same input are one matrix, and everything is float32. Shapes: B rows of T tokens.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

import fused

CHUNK = 64  # tokens per chunk of the delta rule


@dataclass
class Config:
    vocab: int = 3072
    hidden: int = 256
    layers: int = 8
    interval: int = 4  # every `interval`-th layer is full attention
    intermediate: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int = 16  # a quarter of head_dim
    theta: float = 1e7
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv: int = 4
    eps: float = 1e-6

    @property
    def qkv_channels(self):
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def is_full(self, layer):
        return (layer + 1) % self.interval == 0

    def to_dict(self):
        return asdict(self)


class Norm(nn.Module):
    """RMSNorm with a zero-centred gain, as stored in the checkpoint."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return fused.norm(x, 1.0 + self.weight, 1.0 / x.shape[-1], self.eps)


def matrix(rows, columns, scale=1.0):
    return nn.Parameter(torch.randn(rows, columns) * (scale / math.sqrt(columns)))


def rope_tables(config, length):
    """cos and sin, each [length, head_dim], and the signed permutation [head_dim, head_dim] that pairs the dims.

    Dims beyond `rotary` have angle 0. As a product with a matrix the rotation has no slices, whose gradients are slow.
    """
    frequencies = config.theta ** (-torch.arange(0, config.rotary, 2, dtype=torch.float64) / config.rotary)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat((angles, angles, torch.zeros(length, config.head_dim - config.rotary, dtype=torch.float64)), -1)
    pairs, half = torch.zeros(config.head_dim, config.head_dim), config.rotary // 2
    for i in range(half):
        pairs[i + half, i], pairs[i, i + half] = -1.0, 1.0
    return angles.cos().float(), angles.sin().float(), pairs


def rotate(x, tables):
    """RoPE on the first dims of x [B, heads, T, head_dim]."""
    cos, sin, pairs = tables
    return x * cos + (x @ pairs) * sin


class Attention(nn.Module):
    """Grouped-query attention with q/k norms, partial rotary positions and an output gate."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        # Rows: per head query then gate, then keys, then values.
        self.qkv = matrix(2 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim, c.hidden)
        self.out = matrix(c.hidden, c.heads * c.head_dim, 1.0 / math.sqrt(2 * c.layers))
        self.q_norm = Norm(c.head_dim, c.eps)
        self.k_norm = Norm(c.head_dim, c.eps)

    def project(self, x, tables):
        """q [B, heads, T, head_dim], k and v [B, kv_heads, T, head_dim], gate [B, T, heads, head_dim]."""
        c = self.c
        b, t, _ = x.shape
        q, k, v = F.linear(x, self.qkv).split(
            (2 * c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim), -1
        )
        q, gate = q.view(b, t, c.heads, 2, c.head_dim).unbind(3)
        q = rotate(self.q_norm(q).transpose(1, 2), tables)
        k = rotate(self.k_norm(k.view(b, t, c.kv_heads, c.head_dim)).transpose(1, 2), tables)
        return q, k, v.view(b, t, c.kv_heads, c.head_dim).transpose(1, 2), gate

    def attend(self, q, k, v, gate, **mask):
        groups = self.c.heads // self.c.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        o = F.scaled_dot_product_attention(q, k, v, **mask).transpose(1, 2)
        return F.linear((o * gate.sigmoid()).flatten(2), self.out)

    def forward(self, x, tables):
        return self.attend(*self.project(x, tables), is_causal=True)


def delta_rule(q, k, v, g, beta):
    """The gated delta rule over whole rows, in chunks (Yang et al. 2024, "Gated Delta Networks").

    q, k: [B, H, T, dk], normalised, q scaled; v: [B, H, T, dv]; g (log decay), beta: [B, H, T]. T is a multiple of
    CHUNK. Returns [B, H, T, dv] and the state after the last token, [B, H, dk, dv].
    """
    b, h, t, dk = q.shape
    n = t // CHUNK
    q, k, v = (x.reshape(b, h, n, CHUNK, -1) for x in (q, k, v))
    g, beta = g.reshape(b, h, n, CHUNK).cumsum(-1), beta.reshape(b, h, n, CHUNK, 1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    k_beta = k * beta
    system = (k_beta @ k.transpose(-1, -2)) * decay
    right = torch.cat((v * beta, k_beta * g.exp()[..., None]), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_v, k_seen = solved.split((v.shape[-1], dk), -1)
    inner = (q @ k.transpose(-1, -2)) * decay
    q_seen = q * g.exp()[..., None]
    k_left = (k * (g[..., -1:] - g).exp()[..., None]).transpose(-1, -2)
    left = g[..., -1].exp()[..., None, None]
    state, out = q.new_zeros(b, h, dk, v.shape[-1]), []
    # unbind, not indexing: the gradient of n slices would be n tensors of full size.
    chunks = zip(*(x.unbind(2) for x in (new_v, k_seen, q_seen, inner, k_left, left)))
    for new_v_i, k_seen_i, q_seen_i, inner_i, k_left_i, left_i in chunks:
        fresh = new_v_i - k_seen_i @ state
        out.append(q_seen_i @ state + inner_i @ fresh)
        state = state * left_i + k_left_i @ fresh
    return torch.stack(out, 2).reshape(b, h, t, -1), state


def normalise(x):
    return fused.norm(x, x.new_ones(x.shape[-1]), 1.0, 1e-6)


class DeltaNet(nn.Module):
    """Gated DeltaNet: short convolution, delta rule, gated norm."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.qkvz = matrix(c.qkv_channels + c.value_heads * c.value_dim, c.hidden)
        self.ba = matrix(2 * c.value_heads, c.hidden)
        self.conv = nn.Parameter(torch.randn(c.conv, c.qkv_channels) * 0.2 + torch.eye(c.conv)[-1][:, None] * 0.5)
        # Memory from a few tokens to thousands: decay rates spread over the heads, as Mamba does it.
        self.a_log = nn.Parameter(torch.linspace(0.0, math.log(8.0), c.value_heads))
        rates = torch.exp(torch.linspace(math.log(0.001), math.log(0.05), c.value_heads))
        self.dt_bias = nn.Parameter(rates + torch.log(-torch.expm1(-rates)))
        self.norm = nn.Parameter(torch.ones(c.value_dim))
        self.out = matrix(c.hidden, c.value_heads * c.value_dim, 1.0 / math.sqrt(2 * c.layers))

    def project(self, x):
        """Channels before the convolution [B, T, C], output gate [B, T, Hv * dv], log decay and beta [B, Hv, T]."""
        c = self.c
        mixed, z = F.linear(x, self.qkvz).split((c.qkv_channels, c.value_heads * c.value_dim), -1)
        beta, a = F.linear(x, self.ba).transpose(1, 2).split(c.value_heads, 1)
        g = -self.a_log.exp()[:, None] * F.softplus(a + self.dt_bias[:, None])
        return mixed, z, g, beta.sigmoid()

    def heads(self, mixed):
        """Channels after convolution and silu [B, T, C] to q, k, v [B, Hv, T, dim], ready for the delta rule."""
        c = self.c
        b, t, _ = mixed.shape
        q, k, v = mixed.split((c.key_heads * c.key_dim, c.key_heads * c.key_dim, c.value_heads * c.value_dim), -1)
        q = normalise(q.view(b, t, c.key_heads, c.key_dim)).transpose(1, 2) * c.key_dim**-0.5
        k = normalise(k.view(b, t, c.key_heads, c.key_dim)).transpose(1, 2)
        groups = c.value_heads // c.key_heads
        return (
            q.repeat_interleave(groups, 1),
            k.repeat_interleave(groups, 1),
            v.view(b, t, c.value_heads, c.value_dim).transpose(1, 2),
        )

    def finish(self, o, z):
        """Gated norm of o [B, Hv, T, dv], and the output projection."""
        return F.linear(fused.gated_norm(o.transpose(1, 2), self.norm, z, self.c.eps).flatten(2), self.out)

    def forward(self, x):
        mixed, z, g, beta = self.project(x)
        return self.finish(delta_rule(*self.heads(fused.conv_silu(mixed, self.conv)), g, beta)[0], z)


class Block(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.full = full
        self.mixer = Attention(c) if full else DeltaNet(c)
        self.norm1, self.norm2 = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.gate_up = matrix(2 * c.intermediate, c.hidden)
        self.down = matrix(c.hidden, c.intermediate, 1.0 / math.sqrt(2 * c.layers))

    def forward(self, x, tables):
        x = x + (self.mixer(self.norm1(x), tables) if self.full else self.mixer(self.norm1(x)))
        return self.mlp(x)

    def mlp(self, x):
        return x + F.linear(fused.swiglu(F.linear(self.norm2(x), self.gate_up)), self.down)


class Mtp(nn.Module):
    """Predicts token t+2 from the trunk's hidden state at t and the embedding of token t+1."""

    def __init__(self, c):
        super().__init__()
        self.norm_embedding, self.norm_hidden, self.norm = (Norm(c.hidden, c.eps) for _ in range(3))
        self.fc = matrix(c.hidden, 2 * c.hidden)
        self.block = Block(c, True)

    def forward(self, embedded, hidden, tables):
        """embedded: of the next tokens, [B, T, H]; hidden: [B, T, H] after the trunk's final norm."""
        x = F.linear(torch.cat((self.norm_embedding(embedded), self.norm_hidden(hidden)), -1), self.fc)
        return self.norm(self.block(x, tables))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.embed = nn.Parameter(torch.randn(c.vocab, c.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(c, c.is_full(i)) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)
        self.mtp = Mtp(c)
        self.tables = {}

    def rope(self, t):
        if t not in self.tables:
            self.tables[t] = rope_tables(self.config, t)
        return self.tables[t]

    def hidden(self, ids):
        """[B, T] ids to [B, T, hidden] after the final norm. T is a multiple of CHUNK."""
        tables = self.rope(ids.shape[1])
        x = F.embedding(ids, self.embed)
        for block in self.blocks:
            x = block(x, tables)
        return self.norm(x)

    def draft_hidden(self, ids, hidden):
        """Hidden states that predict token t+2, [B, T, hidden]; the last two positions have nothing to predict."""
        tables = self.rope(ids.shape[1])
        return self.mtp(F.embedding(ids.roll(-1, 1), self.embed), hidden, tables)

    def forward(self, ids):
        """Logits of any number of tokens, [B, T, vocab]."""
        t = ids.shape[1]
        padded = F.pad(ids, (0, -t % CHUNK))
        return F.linear(self.hidden(padded)[:, :t], self.embed)
