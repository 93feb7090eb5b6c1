//! Room for copies of recurrent states, allocated once.

/// Slots for states of one length.
pub(crate) struct Snapshots {
    /// `[slots, state_len]`.
    values: Vec<f32>,
    state_len: usize,
    free: Vec<usize>,
    slots: usize,
}

impl Snapshots {
    /// `slots` free slots. Memory that is never written costs nothing.
    pub fn new(slots: usize, state_len: usize) -> Snapshots {
        Snapshots { values: vec![0.0; slots * state_len], state_len, free: (0..slots).rev().collect(), slots }
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        (self.values.len() * size_of::<f32>()) as u64
    }

    /// All slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Elements of a state.
    pub fn state_len(&self) -> usize {
        self.state_len
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        self.slots - self.free.len()
    }

    /// A free slot.
    pub fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// The state in a slot.
    pub fn get(&self, slot: usize) -> &[f32] {
        &self.values[slot * self.state_len..(slot + 1) * self.state_len]
    }

    /// The same, to write.
    pub fn get_mut(&mut self, slot: usize) -> &mut [f32] {
        &mut self.values[slot * self.state_len..(slot + 1) * self.state_len]
    }

    /// Whether each of the slots in `used` and of the free ones is there once.
    pub fn check(&self, used: impl Iterator<Item = usize>) -> Result<(), String> {
        let mut all: Vec<usize> = self.free.iter().copied().chain(used).collect();
        all.sort_unstable();
        if all.iter().copied().eq(0..self.slots) {
            return Ok(());
        }
        Err(format!("{} snapshots are there once or more, of {}", all.len(), self.slots))
    }
}
