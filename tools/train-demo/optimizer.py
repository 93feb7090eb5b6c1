"""Muon for matrices and Adam for the rest, over one flat buffer of parameters.

Muon (Jordan et al. 2024) steps along the orthogonalised momentum of each matrix. Fused projections are cut into the
matrices that they consist of. Work is dealt out over ranks by item, so a step costs each process its share.
"""

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(g, steps=5):
    """Batch of matrices [n, r, c] with r <= c to nearly orthogonal ones."""
    a, b, c = NEWTON_SCHULZ
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def matrix_blocks(model):
    """parameter name -> row counts of the matrices that Muon treats as one each."""
    c = model.config
    keys, values = c.key_heads * c.key_dim, c.value_heads * c.value_dim
    queries, kv = 2 * c.heads * c.head_dim, c.kv_heads * c.head_dim
    rows = {
        "mixer.qkvz": (keys, keys, values, values),
        "mixer.qkv": (queries, kv, kv),
        "gate_up": (c.intermediate, c.intermediate),
    }
    whole = ("mixer.out", "down", "fc")
    out = {}
    for name, p in model.named_parameters():
        for ending, cut in rows.items():
            if name.endswith(ending):
                out[name] = cut
        if name.endswith(whole):
            out[name] = (p.shape[0],)
    return out


class Optimizer:
    """State and steps for `model`, whose parameters are views of the flat tensor `flat`."""

    def __init__(self, model, flat, first, second, rank, world):
        """`first` and `second` are flat like the parameters: momentum (Muon) or both moments (Adam)."""
        self.rank, self.world = rank, world
        self.flat, self.first, self.second = flat, first, second
        blocks, at = matrix_blocks(model), 0
        self.matrices, self.ranges = {}, []  # (rows, columns) -> [(start, end)]; [(start, end, rate factor)]
        for name, p in model.named_parameters():
            if name in blocks:
                for rows in blocks[name]:
                    self.matrices.setdefault((rows, p.shape[1]), []).append((at, at + rows * p.shape[1]))
                    at += rows * p.shape[1]
            else:
                self.ranges.append((at, at + p.numel(), 1.0 if name == "embed" else 2.0))
                at += p.numel()

    def step(self, grad, count, muon_rate, adam_rate, decay):
        """One step with the flat gradient; `count` starts at 1."""
        for (rows, columns), spans in self.matrices.items():
            mine = spans[self.rank :: self.world]
            if mine:
                self.muon(grad, mine, rows, columns, muon_rate, decay)
        for start, end, factor in self.ranges[self.rank :: self.world]:
            self.adam(grad[start:end], slice(start, end), count, adam_rate * factor)

    def muon(self, grad, spans, rows, columns, rate, decay):
        updates = []
        for start, end in spans:
            momentum = self.first[start:end].mul_(0.95).add_(grad[start:end], alpha=0.05)
            updates.append((momentum * 0.95 + grad[start:end] * 0.05).view(rows, columns))
        stacked = torch.stack(updates)
        wide = rows <= columns
        stepped = orthogonalise(stacked if wide else stacked.transpose(1, 2))
        stepped = stepped if wide else stepped.transpose(1, 2)
        scale = rate * max(1.0, rows / columns) ** 0.5
        for (start, end), update in zip(spans, stepped):
            self.flat[start:end].mul_(1.0 - rate * decay).sub_(update.reshape(-1), alpha=scale)

    def adam(self, g, span, count, rate, betas=(0.9, 0.95), eps=1e-10):
        m = self.first[span].mul_(betas[0]).add_(g, alpha=1 - betas[0])
        v = self.second[span].mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        scale = (v / (1 - betas[1] ** count)).sqrt_().add_(eps)
        self.flat[span].addcdiv_(m, scale, value=-rate / (1 - betas[0] ** count))
