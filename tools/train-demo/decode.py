"""Batched greedy decoding with caches, for evaluation: the recurrent form of what `model.py` computes in chunks."""

import torch
import torch.nn.functional as F

import fused
from model import CHUNK, delta_rule


class Decoder:
    """Continues B prompts of different lengths at once."""

    def __init__(self, model, prompts, room):
        """Prefill of `prompts` (lists of ids); `room` is how many tokens may follow."""
        self.model, c = model, model.config
        self.lengths = torch.tensor([len(p) for p in prompts])
        width = int(self.lengths.max())
        width += -width % CHUNK
        ids = torch.tensor([p + [0] * (width - len(p)) for p in prompts])
        self.tables = model.rope(width + room)
        self.valid = torch.arange(width) < self.lengths[:, None]
        # Per layer: (keys, values) with room to grow, or (last inputs of the convolution, delta state).
        self.caches = []
        x = F.embedding(ids, model.embed)
        for block in model.blocks:
            h = block.norm1(x)
            x = block.mlp(
                x
                + (
                    self.prefill_attention(block.mixer, h, room)
                    if block.full
                    else self.prefill_delta(block.mixer, h, c)
                )
            )
        last = model.norm(x)[torch.arange(len(prompts)), self.lengths - 1]
        self.logits = F.linear(last, model.embed)

    def prefill_attention(self, mixer, h, room):
        cos, sin, pairs = self.tables
        t = h.shape[1]
        q, k, v, gate = mixer.project(h, (cos[:t], sin[:t], pairs))
        self.caches.append((F.pad(k, (0, 0, 0, room)), F.pad(v, (0, 0, 0, room))))
        return mixer.attend(q, k, v, gate, is_causal=True)

    def prefill_delta(self, mixer, h, c):
        mixed, z, g, beta = mixer.project(h)
        valid = self.valid[:, None].to(g)
        o, state = delta_rule(*mixer.heads(fused.conv_silu(mixed, mixer.conv)), g * valid, beta * valid)
        at = self.lengths[:, None] - torch.arange(c.conv - 1, 0, -1)
        tail = mixed.gather(1, at.clamp(min=0)[..., None].expand(-1, -1, mixed.shape[-1])) * (at >= 0)[..., None]
        self.caches.append((tail, state))
        return mixer.finish(o, z)

    def step(self, tokens):
        """Appends one token to every row, [B], and returns the next logits, [B, vocab]."""
        model, cos, sin = self.model, *self.tables[:2]
        x = F.embedding(tokens[:, None], model.embed)
        tables = (cos[self.lengths][:, None, None], sin[self.lengths][:, None, None], self.tables[2])
        for i, block in enumerate(model.blocks):
            h = block.norm1(x)
            x = block.mlp(
                x
                + (self.step_attention(i, block.mixer, h, tables) if block.full else self.step_delta(i, block.mixer, h))
            )
        self.lengths = self.lengths + 1
        self.logits = F.linear(model.norm(x)[:, 0], model.embed)
        return self.logits

    def step_attention(self, i, mixer, h, tables):
        keys, values = self.caches[i]
        q, k, v, gate = mixer.project(h, tables)
        rows = torch.arange(len(h))
        keys[rows, :, self.lengths], values[rows, :, self.lengths] = k[:, :, 0], v[:, :, 0]
        seen = torch.arange(keys.shape[2]) <= self.lengths[:, None]
        return mixer.attend(q, keys, values, gate, attn_mask=seen[:, None, None])

    def step_delta(self, i, mixer, h):
        tail, state = self.caches[i]
        mixed, z, g, beta = mixer.project(h)
        window = torch.cat((tail, mixed), 1)
        q, k, v = (x[:, :, 0] for x in mixer.heads(F.silu((window * mixer.conv).sum(1, keepdim=True))))
        state = state * g.exp()[..., None]
        change = (v - (state * k[..., None]).sum(2)) * beta
        state = state + k[..., None] * change[:, :, None]
        self.caches[i] = (window[:, 1:], state)
        return mixer.finish((state * q[..., None]).sum(2)[:, :, None], z)


@torch.no_grad()
def greedy(model, prompts, limit, stop):
    """Ids that follow each prompt, up to and with the first id of `stop`, at most `limit`."""
    decoder = Decoder(model, prompts, limit)
    out, running = [[] for _ in prompts], torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(limit):
        tokens = decoder.logits.argmax(-1)
        for i in running.nonzero()[:, 0].tolist():
            out[i].append(int(tokens[i]))
            running[i] = out[i][-1] not in stop
        if not running.any():
            break
        decoder.step(tokens)
    return out
