"""Writes a Hugging Face checkpoint of a training run: bf16 weights, config, tokenizer, chat template.

`python export.py RUN OUT`. Names and layout are those of a text-only Qwen 3.5 checkpoint with its `mtp.*` tensors.
"""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import tokenizer as tk
from model import Config, Model


def load(path):
    """The model of a training checkpoint, and how many tokens it has seen."""
    found = torch.load(path, mmap=True)
    model, at = Model(Config(**found["config"])), 0
    for p in model.parameters():
        p.data = found["flat"][at : at + p.numel()].view(p.shape).clone()
        at += p.numel()
    return model, found["seen"]


def block_tensors(prefix, block, c):
    """The tensors of one decoder layer."""
    out = {
        f"{prefix}.input_layernorm.weight": block.norm1.weight,
        f"{prefix}.post_attention_layernorm.weight": block.norm2.weight,
        f"{prefix}.mlp.down_proj.weight": block.down,
    }
    out[f"{prefix}.mlp.gate_proj.weight"], out[f"{prefix}.mlp.up_proj.weight"] = block.gate_up.chunk(2)
    mixer = block.mixer
    if block.full:
        prefix += ".self_attn"
        q, k, v = mixer.qkv.split((2 * c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim))
        out.update(
            {
                f"{prefix}.q_proj.weight": q,
                f"{prefix}.k_proj.weight": k,
                f"{prefix}.v_proj.weight": v,
                f"{prefix}.o_proj.weight": mixer.out,
                f"{prefix}.q_norm.weight": mixer.q_norm.weight,
                f"{prefix}.k_norm.weight": mixer.k_norm.weight,
            }
        )
        return out
    prefix += ".linear_attn"
    qkv, z = mixer.qkvz.split((c.qkv_channels, c.value_heads * c.value_dim))
    b, a = mixer.ba.chunk(2)
    out.update(
        {
            f"{prefix}.in_proj_qkv.weight": qkv,
            f"{prefix}.in_proj_z.weight": z,
            f"{prefix}.in_proj_b.weight": b,
            f"{prefix}.in_proj_a.weight": a,
            f"{prefix}.conv1d.weight": mixer.conv.T[:, None],
            f"{prefix}.A_log": mixer.a_log,
            f"{prefix}.dt_bias": mixer.dt_bias,
            f"{prefix}.norm.weight": mixer.norm,
            f"{prefix}.out_proj.weight": mixer.out,
        }
    )
    return out


def tensors(model):
    """Hugging Face name -> tensor, float32."""
    c, mtp = model.config, model.mtp
    out = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm.weight}
    for i, block in enumerate(model.blocks):
        out.update(block_tensors(f"model.layers.{i}", block, c))
    out.update(
        {
            "mtp.fc.weight": mtp.fc,
            "mtp.norm.weight": mtp.norm.weight,
            "mtp.pre_fc_norm_embedding.weight": mtp.norm_embedding.weight,
            "mtp.pre_fc_norm_hidden.weight": mtp.norm_hidden.weight,
        }
    )
    out.update(block_tensors("mtp.layers.0", mtp.block, c))
    return {name: t.detach().contiguous() for name, t in out.items()}


def config(c, end, turn_end):
    """config.json, in the keys that Qwen 3.5 uses."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "eos_token_id": turn_end,
        "pad_token_id": end,
        "full_attention_interval": c.interval,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden,
        "initializer_range": 0.02,
        "intermediate_size": c.intermediate,
        "layer_types": ["full_attention" if c.is_full(i) else "linear_attention" for i in range(c.layers)],
        "linear_conv_kernel_dim": c.conv,
        "linear_key_head_dim": c.key_dim,
        "linear_num_key_heads": c.key_heads,
        "linear_num_value_heads": c.value_heads,
        "linear_value_head_dim": c.value_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "rms_norm_eps": c.eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "rope_type": "default",
            "rope_theta": int(c.theta),
            "partial_rotary_factor": c.rotary / c.head_dim,
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": c.vocab,
    }


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def export(run, out, dtype=torch.bfloat16):
    """Writes the checkpoint of the folder `run` to `out`. A_log, dt_bias and the gated norm stay float32."""
    model, seen = load(os.path.join(run, "checkpoint.pt"))
    os.makedirs(out, exist_ok=True)
    exact = (".A_log", ".dt_bias", "linear_attn.norm.weight")
    save_file(
        {n: t if n.endswith(exact) else t.to(dtype) for n, t in tensors(model).items()},
        os.path.join(out, "model.safetensors"),
        metadata={"format": "pt"},
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(run, name), os.path.join(out, name))
    tok = Tokenizer.from_file(os.path.join(run, "tokenizer.json"))
    end, turn_end = tok.token_to_id(tk.END), tok.token_to_id(tk.TURN_END)
    write_json(out, "config.json", config(model.config, end, turn_end))
    write_json(
        out,
        "generation_config.json",
        {
            "do_sample": True,
            "temperature": 0.3,
            "top_k": 20,
            "top_p": 0.95,
            "bos_token_id": end,
            "eos_token_id": [turn_end, end],
            "pad_token_id": end,
        },
    )
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="the --out of train.py")
    parser.add_argument("out", help="folder to write")
    args = parser.parse_args()
    print(f"exported after {export(args.run, args.out)} tokens")


if __name__ == "__main__":
    main()
