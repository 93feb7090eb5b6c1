"""Makes a synthetic bf16 checkpoint and measures its conversion; see bench-convert.sh.

The model is a Llama with layers of the size of an 8-billion-parameter one. Its weights are random: every bf16 number
is finite, with a magnitude of about 2^-9 to 2^-3.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCAB = 4096, 12288, 32, 8, 32000
LAYERS_PER_SHARD = 4
BLOCK = 16 << 20
# The upper byte of a bf16: sign and upper exponent bits.
UPPER = bytes((byte & 0x80) | 0x3B + byte % 3 for byte in range(256))


def tensors(layers):
    """Names and shapes by shard, in the order in which Hugging Face writes them."""
    kv = HIDDEN // HEADS * KV_HEADS
    shards = [[("model.embed_tokens.weight", [VOCAB, HIDDEN])]]
    for layer in range(layers):
        if layer % LAYERS_PER_SHARD == 0 and layer > 0:
            shards.append([])
        prefix = f"model.layers.{layer}."
        shards[-1] += [
            (prefix + "input_layernorm.weight", [HIDDEN]),
            (prefix + "mlp.down_proj.weight", [HIDDEN, INTERMEDIATE]),
            (prefix + "mlp.gate_proj.weight", [INTERMEDIATE, HIDDEN]),
            (prefix + "mlp.up_proj.weight", [INTERMEDIATE, HIDDEN]),
            (prefix + "post_attention_layernorm.weight", [HIDDEN]),
            (prefix + "self_attn.k_proj.weight", [kv, HIDDEN]),
            (prefix + "self_attn.o_proj.weight", [HIDDEN, HIDDEN]),
            (prefix + "self_attn.q_proj.weight", [HIDDEN, HIDDEN]),
            (prefix + "self_attn.v_proj.weight", [kv, HIDDEN]),
        ]
    shards[-1].append(("model.norm.weight", [HIDDEN]))
    return shards


def size(shape):
    elements = 1
    for dim in shape:
        elements *= dim
    return 2 * elements


def weights(generator, length):
    """Random finite bf16 numbers of `length` bytes, in blocks."""
    while length > 0:
        block = bytearray(min(length, BLOCK))
        block[0::2] = generator.randbytes(len(block) // 2)
        block[1::2] = generator.randbytes(len(block) // 2).translate(UPPER)
        length -= len(block)
        yield block


def make(directory, layers):
    """Writes the checkpoint into the new folder `source` of `directory`."""
    directory = os.path.join(directory, "source")
    os.mkdir(directory)
    generator = random.Random(1)
    weight_map, shards = {}, tensors(layers)
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        header, end = {}, 0
        for tensor, shape in shard:
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size(shape)]}
            end += size(shape)
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with open(os.path.join(directory, name), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for block in weights(generator, end):
                file.write(block)
    side_files = {
        "model.safetensors.index.json": {"weight_map": weight_map},
        "config.json": {
            "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": layers,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": INTERMEDIATE,
            "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
        },
    }
    for name, content in side_files.items():
        with open(os.path.join(directory, name), "w") as file:
            json.dump(content, file)
    os.sync()


def files(directory):
    return sorted(entry.path for entry in os.scandir(directory))


def cool(directory):
    """Drops the files from the page cache."""
    for path in files(directory):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(directory):
    for path in files(directory):
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


def timed(act):
    os.sync()
    start = time.monotonic()
    result = act()
    return time.monotonic() - start, result


def child(command):
    """Runs a command of its own; returns its peak resident memory in bytes and its CPU time in seconds."""
    pid = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}")
    return usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


def copy(source, target):
    """cp, with its files on the disk at the end as a conversion's are."""
    os.mkdir(target)
    child([shutil.which("cp"), "-r", source + "/.", target])
    for path in files(target):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(target)


CONVERSIONS = [
    ("base-q4 (rtn)", ["--target", "base-q4", "--method", "rtn"]),
    ("base-q8 (rtn)", ["--target", "base-q8", "--method", "rtn"]),
    ("base-q4 (mse)", ["--target", "base-q4", "--method", "mse"]),
]
# Bound by arithmetic wherever the source comes from.
SLOW = ["base-q4 (mse)"]


def measure(binary, directory, layers):
    source, output = os.path.join(directory, "source"), os.path.join(directory, "out.base")
    total = sum(size(shape) for shard in tensors(layers) for _, shape in shard)
    largest = max(size(shape) for shard in tensors(layers) for _, shape in shard)
    print(f"source: {total / 1e9:.2f} GB in {len(tensors(layers))} shards, largest tensor {largest / 2**20:.0f} MiB")
    print(f"{'':24}{'cache':>6}{'seconds':>9}{'GB/s':>7}{'CPU s':>7}{'peak RSS':>11}")
    for cache, prepare in [("cold", cool), ("warm", warm)]:
        prepare(source)
        seconds, _ = timed(lambda: copy(source, os.path.join(directory, "copy")))
        print(f"{'cp, synced':24}{cache:>6}{seconds:9.1f}{total / 1e9 / seconds:7.2f}", flush=True)
        for name, options in CONVERSIONS:
            if name in SLOW and cache == "cold":
                continue
            prepare(source)
            command = [binary, "convert", source, "-o", output, *options, "--no-tokenizer", "--no-check", "--json"]
            sys.stdout.flush()
            with open(os.devnull, "w") as null:
                saved = os.dup(1)
                os.dup2(null.fileno(), 1)
                seconds, (peak, cpu) = timed(lambda: child(command))
                os.dup2(saved, 1)
            rate = total / 1e9 / seconds
            print(f"{'convert to ' + name:24}{cache:>6}{seconds:9.1f}{rate:7.2f}{cpu:7.1f}{peak / 2**20:7.0f} MiB")
            os.remove(output)
    load = os.getloadavg()[1]
    print(f"load of the machine over the last five minutes: {load:.1f}")
    plan = [binary, "convert", source, "--target", "base-q4", "--no-tokenizer", "--plan", "--json"]
    planned = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
    print(f"--plan said for base-q4: {planned['peak_memory_bytes'] / 2**20:.0f} MiB, {json.dumps(planned.get('estimate'))}")


def main():
    # Two processes, because a child's peak memory begins with that of the process that started it.
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
