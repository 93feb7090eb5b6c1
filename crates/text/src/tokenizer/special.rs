//! Tokens that steer generation instead of being text.

/// Texts of tokens that end a generation whatever the configuration says, as llama.cpp has them. A model often lists
/// only one of its ends (Qwen: `<|im_end|>`) and still produces another (`<|endoftext|>`).
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Fill-in-the-middle tokens that also end a generation: padding, repository name, file separator.
const FIM_ENDS: [&str; 11] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Pairs that mark the "harmony" kind of format, where `<|end|>` closes a message and not the reply.
const HARMONY: [[&str; 2]; 2] = [["<|return|>", "<|call|>"], ["<|calls|>", "<|flush|>"]];

/// The ids among `added` tokens, given as (text, id), that end a generation by their text.
///
/// Ordinary vocabulary entries are left out on purpose: `</s>` is also HTML, and a byte-level vocabulary may hold it as
/// a word. llama.cpp includes those.
pub(crate) fn ends_by_text<'a>(added: impl Iterator<Item = (&'a str, u32)> + Clone) -> Vec<u32> {
    let has = |text: &str| added.clone().any(|(t, _)| t == text);
    let harmony = HARMONY.iter().any(|pair| pair.iter().all(|text| has(text)));
    added
        .clone()
        .filter(|(text, _)| ENDS.contains(text) || FIM_ENDS.contains(text))
        .filter(|(text, _)| !(harmony && *text == "<|end|>"))
        // In Gemma 4 `</s>` is an HTML tag that was given a token of its own.
        .filter(|(text, _)| !(*text == "</s>" && has("<|tool_response>")))
        .map(|(_, id)| id)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_generation_by_text() {
        for (tokens, want) in [
            (&["<think>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|file_sep|>"][..], &[2, 3, 4][..]),
            (&["<s>", "</s>", "<unk>"], &[1]),
            (&["<|end|>", "<|user|>"], &[0]),
            (&["<|end|>", "<|return|>", "<|call|>"], &[1, 2]),
            (&["</s>", "<turn|>", "<|tool_response>"], &[1, 2]),
        ] {
            let added = tokens.iter().copied().zip(0..);
            assert_eq!(ends_by_text(added), want, "{tokens:?}");
        }
    }
}
