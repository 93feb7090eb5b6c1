"""Initial weights that can look back: before the first step, the network repeats what followed an earlier occurrence.

Finding a value again takes two parts that are useless alone: a layer that writes what came before a token, and an
attention layer that searches for it ("induction heads", Olsson et al. 2022). From random weights they had not met after
1.9 M tokens of training. Here the first layer and the first attention layer get them; all other weights are random, other
output projections are zero, and everything is trained.

The hidden space is cut by an orthonormal basis: `u`, which all embeddings share and which opens gates; `before` and
`before2`, where the first layer writes features of the two tokens before; and `own`, in which a token is known.
"""

import torch

# Large enough that the optimiser's first steps, which all have one size, change little.
EMBEDDING = 0.06
SIZE = 4.0
FINAL_GAIN = 0.35  # makes up for large embeddings


def basis(hidden, size):
    """u [H], before and before2 [H, size], own [H, rest]"""
    u = torch.randint(0, 2, (hidden, 1)).float() * 2 - 1
    q, _ = torch.linalg.qr(torch.cat((u, torch.randn(hidden, hidden - 1)), 1))
    return u[:, 0], q[:, 1 : 1 + size], q[:, 1 + size : 1 + 2 * size], q[:, 1 + 2 * size :]


@torch.no_grad()
def seed(model):
    c = model.config
    u, before, before2, own = basis(c.hidden, c.value_dim)
    features = torch.randn(c.value_dim, own.shape[1]) / own.shape[1] ** 0.5 @ own.T * c.hidden**0.5 / 8
    for block in model.blocks:
        block.mixer.out.zero_()
        block.down.zero_()
    model.embed.mul_(EMBEDDING / model.embed.std()).add_(EMBEDDING * u)
    model.norm.weight.fill_(FINAL_GAIN - 1.0)
    write_before(model.blocks[0].mixer, c, u, (before, before2), features)
    search(model.blocks[c.interval - 1].mixer, c, (before, before2), own, features)


def write_before(net, c, u, places, features):
    """A Gated DeltaNet whose first two value heads write the features of the token before and of the one before that."""
    keys, values, d = c.key_heads * c.key_dim, c.value_heads * c.value_dim, c.value_dim
    open_gate = u / (c.hidden / 2**0.5)  # normalised embeddings have 1 along this
    net.qkvz[: c.key_dim] = net.qkvz[keys : keys + c.key_dim]  # query = key: the newest value is read, undiluted
    net.conv[:, : c.key_dim] = net.conv[:, keys : keys + c.key_dim]
    for head, place in enumerate(places):
        rows = slice(2 * keys + head * d, 2 * keys + (head + 1) * d)
        net.qkvz[rows] = features
        net.conv[:, rows] = 0.0
        net.conv[-2 - head, rows] = 1.0
        gate = 2 * keys + values + head * d
        net.qkvz[gate : gate + d] = 2.0 * open_gate
        net.ba[head] = 4.0 * open_gate
        net.out[:, head * d : (head + 1) * d] = 1.4 * EMBEDDING * place


def search(net, c, places, own, features):
    """Attention from a token to what followed it before (first KV head), and to what followed it and the one before it
    (second): keys are what the first layer wrote, queries are the token's own features, values are the token."""
    d, turned = c.head_dim, c.rotary
    queries, keys = 2 * c.heads * d, c.kv_heads * d
    half = (d - turned) // 2
    first, second = slice(turned, turned + half), slice(turned + half, d)
    before, before2 = (place[:, : d - turned].T for place in places)
    groups = c.heads // c.kv_heads
    for kv in range(2):
        key, value = (net.qkv[start + kv * d : start + (kv + 1) * d] for start in (queries, queries + keys))
        key[first] = SIZE * before[:half]
        key[second] = SIZE * (before[half:] if kv == 0 else before2[:half])
        seen = own[:, :d] if kv == 0 else own[:, -d:]
        value.copy_(SIZE * seen.T)
        for head in range(kv * groups, (kv + 1) * groups):
            query, gate = (net.qkv[(2 * head + part) * d : (2 * head + part + 1) * d] for part in range(2))
            query[first] = 2.5 * SIZE * features[:half]
            query[second] = SIZE * (2.5 * features[half : 2 * half] if kv == 0 else before[:half])
            gate.zero_()
        net.out[:, kv * groups * d : (kv * groups + 1) * d] = 20.0 * EMBEDDING * seen
    net.q_norm.weight.fill_(1.0)
