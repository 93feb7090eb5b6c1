//! Memory by part, computed from the model's geometry by the sizes that also allocate.

use basert_model::ModelSpec;

use crate::cache::CacheSizes;
use crate::speculate::DraftSizes;
use crate::workspace::Workspace;

/// Bytes that a loaded engine holds, by part. Vectors (norms, biases), tables of strings and the program itself are not
/// in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Tensor payloads used from the memory map.
    pub weights_mapped: u64,
    /// The same where they are locked in memory or copied, so that the system cannot take them back.
    pub weights_held: u64,
    /// Matrices held as decoded f32.
    pub weights_decoded: u64,
    /// K and V pools of all sequences at full context.
    pub kv: u64,
    /// The keys' part of [`kv`](Self::kv).
    pub kv_keys: u64,
    /// Recurrent state of all sequences.
    pub state: u64,
    /// Pages of prefixes that outlive their sequences.
    pub prefix_kv: u64,
    /// Snapshots of recurrent states at the ends of such prefixes.
    pub snapshots: u64,
    /// Activations of the largest step.
    pub workspace: u64,
    /// Logits of the largest step.
    pub logits: u64,
    /// The kernels' scratch of all threads: quantised activations, tiles, states of attention.
    pub scratch: u64,
    /// What sequences keep of guessed tokens.
    pub drafts: u64,
}

impl MemoryPlan {
    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        self.parts().into_iter().map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
    }

    /// What of it the system cannot take back.
    pub fn resident(&self) -> u64 {
        self.total() - self.weights_mapped
    }

    /// All parts that add up to the total, with their names.
    pub fn parts(&self) -> [(&'static str, u64); 12] {
        [
            ("weights (mapped)", self.weights_mapped),
            ("weights (held)", self.weights_held),
            ("weights (decoded)", self.weights_decoded),
            ("K", self.kv_keys),
            ("V", self.kv - self.kv_keys),
            ("state", self.state),
            ("prefix pages", self.prefix_kv),
            ("snapshots", self.snapshots),
            ("workspace", self.workspace),
            ("logits", self.logits),
            ("scratch", self.scratch),
            ("drafts", self.drafts),
        ]
    }

    /// Caches and workspace for the given sizes; weights and scratch are added by the caller.
    pub(crate) fn of(
        spec: &ModelSpec,
        sizes: &CacheSizes,
        step_tokens: usize,
        logit_rows: usize,
    ) -> MemoryPlan {
        let layers = spec.layers.iter().chain(&spec.draft);
        let pools = layers.filter_map(|layer| Some(sizes.pool_bytes(layer.mixer.attention()?)));
        let pools = pools.fold((0u64, 0u64), |sum, (k, v)| {
            (sum.0.saturating_add(k as u64), sum.1.saturating_add(v as u64))
        });
        // Every page is as large as any other.
        let pages = (sizes.pages() as u64).max(1);
        let of_sequences = |bytes: u64| bytes / pages * sizes.sequence_pages() as u64;
        let (keys, all) = (of_sequences(pools.0), pools.0.saturating_add(pools.1));
        let state = spec.layers.iter().filter_map(CacheSizes::state_elements);
        let state: usize = state.map(|(delta, conv)| (delta + conv) * size_of::<f32>()).sum();
        let logits = (logit_rows * spec.vocab * size_of::<f32>()) as u64;
        MemoryPlan {
            kv: keys.saturating_add(of_sequences(pools.1)),
            kv_keys: keys,
            state: (state as u64).saturating_mul(sizes.sequences as u64),
            prefix_kv: (all / pages).saturating_mul(sizes.cached_pages as u64),
            snapshots: (state as u64).saturating_mul(sizes.snapshots as u64),
            workspace: Workspace::planned_bytes(spec, step_tokens, logit_rows) as u64 - logits,
            logits,
            drafts: (DraftSizes::new(spec, sizes.drafts).bytes() as u64)
                .saturating_mul(sizes.sequences as u64),
            ..MemoryPlan::default()
        }
    }
}

/// Memory that this process may still take: the smaller of what the kernel calls available and what its
/// control group leaves. `None` where neither can be read.
pub fn available_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group = read("memory.max").zip(read("memory.current")).map(|(max, used)| max.saturating_sub(used));
    match (machine, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use basert_kernels::KvDtype;
    use basert_model::{
        Arch, Attention, Ffn, GatedDelta, LayerSpec, Mixer, Moe, Rope, RopePairing, RopeScaling,
    };

    use super::*;
    use crate::KvTypes;
    use crate::cache::Caches;

    fn spec(ffn: Ffn) -> ModelSpec {
        let rope = Rope { dims: 8, theta: 1e4, pairing: RopePairing::Half, scaling: RopeScaling::None };
        let attention = Attention {
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rope,
            qk_norm: true,
            output_gate: true,
            qkv_bias: false,
        };
        let delta = GatedDelta { key_heads: 2, value_heads: 6, key_dim: 16, value_dim: 16, conv_kernel: 4 };
        let layer = |mixer| LayerSpec { mixer, ffn };
        ModelSpec {
            arch: Arch::Qwen35,
            hidden: 64,
            vocab: 100,
            norm_eps: 1e-6,
            layers: vec![layer(Mixer::GatedDelta(delta)), layer(Mixer::Attention(attention))],
            draft: None,
            tied_head: true,
            max_context: None,
        }
    }

    /// Every type of K with every type of V.
    fn pairs() -> impl Iterator<Item = KvTypes> {
        let sides = KvDtype::ALL.into_iter();
        sides.flat_map(|k| KvDtype::ALL.into_iter().map(move |v| KvTypes { k, v }))
    }

    #[test]
    fn planned_bytes_are_allocated_bytes() {
        let moe =
            Moe { experts: 4, top_k: 2, intermediate: 32, shared_intermediate: Some(48), renormalise: true };
        let dense = spec(Ffn::Dense { intermediate: 96 });
        let drafting = ModelSpec { draft: Some(dense.layers[1]), ..dense.clone() };
        for (spec, drafts) in [(dense, 0), (spec(Ffn::Moe(moe)), 3), (drafting, 3)] {
            for kv in pairs() {
                for (context, page_tokens, cached_pages, snapshots) in
                    [(100, 128, 0, 0), (100, 32, 0, 0), (100, 32, 5, 2)]
                {
                    let sequences = 3;
                    let sizes =
                        CacheSizes { kv, context, page_tokens, sequences, cached_pages, snapshots, drafts };
                    let plan = MemoryPlan::of(&spec, &sizes, 48, 5);
                    let mut caches = Caches::new(&spec, sizes).unwrap();
                    let bytes: usize = caches.kv.iter().map(|l| l.k.len() + l.v.len()).sum();
                    assert_eq!(plan.kv + plan.prefix_kv, bytes as u64);
                    assert_eq!((bytes as u64, kv), (caches.pools().bytes, caches.types()));
                    let keys: usize = caches.kv.iter().map(|l| l.k.len()).sum();
                    assert_eq!(plan.kv_keys * sizes.pages() as u64, (keys * sizes.sequence_pages()) as u64);
                    assert_eq!(plan.snapshots, caches.held().snapshots);
                    let token = kv.bytes_per_token(&spec) * caches.kv.len() as u64;
                    assert_eq!(caches.pools().bytes_per_token, token);
                    assert_eq!(plan.state, (3 * caches.state_len * size_of::<f32>()) as u64);
                    let sequence = caches.open().unwrap();
                    assert_eq!(plan.drafts, 3 * caches.get(sequence).unwrap().draft.bytes() as u64);
                    let workspace = Workspace::new(&spec, 48, 5);
                    assert_eq!(plan.workspace + plan.logits, workspace.allocated_bytes() as u64);
                }
            }
        }
    }
}
