//! Reference logits in slots: what the source's own values give for the replayed tokens.

use basert_format::{BaseFile, SlotKind};

use crate::MeasureError;

/// First bytes of our Custom slot.
const TAG: &[u8; 8] = b"BRTQUAL1";
/// Bytes before the token ids: tag, tokens, positions, vocabulary.
const FIXED: usize = TAG.len() + 3 * 4;
/// Most positions that are kept, and most bytes of logits.
const MAX_POSITIONS: usize = 8;
const MAX_LOGIT_BYTES: usize = 16 << 20;
/// Tokens of a TraceReference.
pub(super) const TRACE_TOKENS: usize = 16;

/// Logits of the source at several positions; the Custom slot tagged `BRTQUAL1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// All tokens that were read.
    pub ids: Vec<u32>,
    /// Positions whose logits are kept, ascending.
    pub positions: Vec<usize>,
    /// Logits per position.
    pub vocab: usize,
    /// `[positions, vocab]`.
    pub logits: Vec<f32>,
}

impl Reference {
    /// Keeps up to eight evenly spaced positions, the last included, of logits `[ids, vocab]`.
    pub(super) fn new(ids: &[u32], logits: &[f32], vocab: usize) -> Reference {
        let count = MAX_POSITIONS.min(ids.len()).min((MAX_LOGIT_BYTES / 4 / vocab.max(1)).max(1));
        let positions: Vec<usize> = (1..=count).map(|i| i * ids.len() / count - 1).collect();
        let rows = positions.iter().flat_map(|&p| &logits[p * vocab..(p + 1) * vocab]);
        Reference { ids: ids.to_vec(), logits: rows.copied().collect(), vocab, positions }
    }

    /// The reference in a file, if it has one.
    ///
    /// # Errors
    /// [`MeasureError::Record`] if the slot's numbers do not fit together.
    pub fn of(file: &BaseFile) -> Result<Option<Reference>, MeasureError> {
        for (index, slot) in file.slots().iter().enumerate() {
            let payload = file.slot_payload(index).map_err(basert_engine::EngineError::from)?;
            if slot.kind == SlotKind::Custom && payload.starts_with(TAG) {
                return Reference::parse(payload).map(Some).ok_or_else(|| damaged(file, index));
            }
        }
        Ok(None)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = TAG.to_vec();
        let counts = [self.ids.len(), self.positions.len(), self.vocab];
        counts.iter().for_each(|&count| bytes.extend((count as u32).to_le_bytes()));
        self.ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        self.positions.iter().for_each(|&position| bytes.extend((position as u32).to_le_bytes()));
        self.logits.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    /// `None` unless lengths, positions and ids are consistent.
    fn parse(payload: &[u8]) -> Option<Reference> {
        let words: Vec<u32> = words(payload.get(TAG.len()..)?)?;
        let [tokens, count, vocab] = [0, 1, 2].map(|i| words.get(i).map(|&word| word as usize));
        let (tokens, count, vocab) = (tokens?, count?, vocab?);
        let logits = count.checked_mul(vocab)?;
        let expected = tokens.checked_add(count)?.checked_add(logits)?.checked_mul(4)?.checked_add(FIXED)?;
        if payload.len() != expected || tokens == 0 || count == 0 {
            return None;
        }
        let (ids, rest) = words[3..].split_at(tokens);
        let (positions, logits) = rest.split_at(count);
        let positions: Vec<usize> = positions.iter().map(|&position| position as usize).collect();
        let ascending = positions.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = positions.iter().all(|&position| position < tokens);
        let known = ids.iter().all(|&id| (id as usize) < vocab);
        let logits = logits.iter().map(|&word| f32::from_bits(word)).collect();
        (ascending && inside && known).then_some(Reference { ids: ids.to_vec(), positions, vocab, logits })
    }
}

/// Logits after sixteen tokens: the TraceReference slot of the container.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Token ids `[16]`.
    pub ids: Vec<u32>,
    /// Logits after the last `[vocab]`.
    pub logits: Vec<f32>,
}

impl Trace {
    /// The first sixteen of `ids`, whose logits are `[ids, vocab]`; `None` if there are fewer.
    pub(super) fn new(ids: &[u32], logits: &[f32], vocab: usize) -> Option<Trace> {
        let ids = ids.get(..TRACE_TOKENS)?.to_vec();
        let row = logits.get((TRACE_TOKENS - 1) * vocab..TRACE_TOKENS * vocab)?;
        Some(Trace { ids, logits: row.to_vec() })
    }

    /// The first trace in a file, if it has one.
    ///
    /// # Errors
    /// [`MeasureError::Record`] if the slot's length does not fit its vocabulary.
    pub fn of(file: &BaseFile) -> Result<Option<Trace>, MeasureError> {
        let Some(index) = file.slots().iter().position(|slot| slot.kind == SlotKind::TraceReference) else {
            return Ok(None);
        };
        let payload = file.slot_payload(index).map_err(basert_engine::EngineError::from)?;
        Trace::parse(payload).map(Some).ok_or_else(|| damaged(file, index))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.extend((self.logits.len() as u32).to_le_bytes());
        self.logits.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    fn parse(payload: &[u8]) -> Option<Trace> {
        let words = words(payload)?;
        let (ids, rest) = words.split_at_checked(TRACE_TOKENS)?;
        let (&vocab, logits) = rest.split_first()?;
        let logits: Vec<f32> = logits.iter().map(|&word| f32::from_bits(word)).collect();
        let fits = logits.len() == vocab as usize && ids.iter().all(|&id| id < vocab);
        fits.then(|| Trace { ids: ids.to_vec(), logits })
    }
}

/// Little-endian 32-bit words; `None` if bytes are left over.
fn words(bytes: &[u8]) -> Option<Vec<u32>> {
    let (words, rest) = bytes.as_chunks();
    rest.is_empty().then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

fn damaged(file: &BaseFile, index: usize) -> MeasureError {
    MeasureError::Record {
        path: file.path().to_path_buf(),
        problem: format!("slot {index} does not hold what its kind says"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<u32>, Vec<f32>) {
        let ids: Vec<u32> = (0..20).map(|i| i % 5).collect();
        let logits = (0..100).map(|i| i as f32 * 0.5 - 3.0).collect();
        (ids, logits)
    }

    #[test]
    fn references_survive_writing_and_reading() {
        let (ids, logits) = sample();
        let reference = Reference::new(&ids, &logits, 5);
        assert_eq!(reference.positions, [1, 4, 6, 9, 11, 14, 16, 19]);
        assert_eq!(reference.logits[..5], logits[5..10]);
        assert_eq!(Reference::parse(&reference.to_bytes()), Some(reference));
        let trace = Trace::new(&ids, &logits, 5).unwrap();
        assert_eq!(trace.logits, logits[75..80]);
        assert_eq!(Trace::parse(&trace.to_bytes()), Some(trace));
        assert_eq!(Trace::new(&ids[..15], &logits[..75], 5), None);
    }

    #[test]
    fn damaged_slots_are_refused() {
        let (ids, logits) = sample();
        let good = Reference::new(&ids, &logits, 5).to_bytes();
        let with = |at: usize, word: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            bytes
        };
        let (ids_at, positions_at) = (FIXED, FIXED + 20 * 4);
        let cases = [
            ("cut", good[..good.len() - 1].to_vec()),
            ("a word short", good[..good.len() - 4].to_vec()),
            ("only a tag", TAG.to_vec()),
            ("absurd counts", with(8, u32::MAX)),
            ("absurd vocabulary", with(16, u32::MAX)),
            ("id outside the vocabulary", with(ids_at, 5)),
            ("position outside the tokens", with(positions_at + 7 * 4, 20)),
            ("positions out of order", with(positions_at, 5)),
        ];
        for (what, bytes) in cases {
            assert_eq!(Reference::parse(&bytes), None, "{what}");
        }
        let trace = Trace::new(&ids, &logits, 5).unwrap().to_bytes();
        assert_eq!(Trace::parse(&trace[..trace.len() - 4]), None);
        assert_eq!(Trace::parse(&trace[..60]), None);
    }
}
