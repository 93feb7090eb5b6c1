"""The demo's tokenizer: byte-level BPE in Qwen 3.5's form, trained on the synthetic corpus.

3072 ids: 256 bytes, merges, and the 33 added tokens of Qwen 3.5 at the end. `python tokenizer.py OUT` writes
tokenizer.json, tokenizer_config.json and chat_template.jinja there; the same seed gives the same bytes.
"""

import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

import corpus
import lexicon as lex

VOCAB = 3072
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# (text, special) in Qwen 3.5's order; the last two groups are not hidden by "skip special tokens".
ADDED = [
    (f"<|{name}|>", True)
    for name in (
        "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start vision_end "
        "vision_pad image_pad video_pad"
    ).split()
]
ADDED += [
    (text, False)
    for text in (
        "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
        "<tool_response> </tool_response> <think> </think>"
    ).split()
]
ADDED += [
    (text, True)
    for text in (
        "<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
    ).split()
]
END, TURN_END = "<|endoftext|>", "<|im_end|>"

# Letters of other writing systems that a user may type; they get merges of their own only here.
ELSEWHERE = [
    "café naïve über für schön groß señor año garçon où déjà façade",
    "Привет мир",
    "日本語 東京",
    "नमस्ते",
    "→ € £ … — “quoted” ’",
] * 3


def texts(seed, count):
    """Training texts: short and long documents without their special tokens, and every word list once."""
    rng = random.Random(seed)
    for _ in range(count):
        d = corpus.document(rng, rng.choice((1500, 2500, 6000)))
        text = d.text
        for added, _ in ADDED:
            text = text.replace(added, "\x00")
        yield from text.split("\x00")
    for words in (lex.GIRLS, lex.BOYS, lex.OBJECTS, lex.JOBS, lex.ANIMALS, lex.TOWNS, lex.MOODS, lex.ADJECTIVES):
        yield " ".join(words)
    yield from ELSEWHERE


def build(seed=0, count=12000):
    tok = Tokenizer(BPE(unk_token=None, fuse_unk=False, byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(ADDED),
        min_frequency=2,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tok.train_from_iterator(texts(seed, count), trainer=trainer)
    for text, special in ADDED:
        token = AddedToken(text, special=special, normalized=False, lstrip=False, rstrip=False, single_word=False)
        (tok.add_special_tokens if special else tok.add_tokens)([token])
    assert tok.get_vocab_size() <= VOCAB, tok.get_vocab_size()
    return tok


def config(tok):
    """tokenizer_config.json for `tok`."""
    added = json.loads(tok.to_str())["added_tokens"]
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added},
        "additional_special_tokens": [text for text, special in ADDED[1:14]],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": END,
        "pretokenize_regex": PATTERN,
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def save(tok, folder):
    os.makedirs(folder, exist_ok=True)
    tok.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config(tok), f, indent=2, ensure_ascii=False)
    here = os.path.dirname(os.path.abspath(__file__))
    with (
        open(os.path.join(here, "chat_template.jinja")) as source,
        open(os.path.join(folder, "chat_template.jinja"), "w") as out,
    ):
        out.write(source.read())


def encode(tok, document):
    """(ids, weights): a token's weight is that of the piece in which it ends."""
    text = document.text
    encoding = tok.encode(text, add_special_tokens=False)
    ends, at = [], 0
    for piece, weight in document.pieces:
        at += len(piece)
        ends.append((at, weight))
    weights, piece = [], 0
    for _, end in encoding.offsets:
        while ends[piece][0] < end:
            piece += 1
        weights.append(ends[piece][1])
    return encoding.ids, weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tok = build(args.seed)
    save(tok, args.out)
    rng = random.Random(args.seed + 1)
    sample = [corpus.document(rng, 2500) for _ in range(300)]
    ids = [encode(tok, d)[0] for d in sample]
    print(
        f"{tok.get_vocab_size()} ids, {sum(len(d.text) for d in sample) / sum(map(len, ids)):.2f} characters per token"
    )


if __name__ == "__main__":
    main()
