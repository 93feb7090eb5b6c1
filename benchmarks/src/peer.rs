//! llama.cpp.

use std::hint::black_box;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use llama_cpp_sys_2 as llama;

use crate::files::c_path;
use crate::runner::{Ids, Runner};

/// How the peer is set up. All of it is tried; the fastest is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Weights repacked at load for this processor (`use_extra_bufts`: repacking, AMX).
    pub repack: bool,
    pub flash_attention: bool,
}

impl Setting {
    pub const ALL: [Setting; 4] = [
        Setting { repack: true, flash_attention: true },
        Setting { repack: true, flash_attention: false },
        Setting { repack: false, flash_attention: true },
        Setting { repack: false, flash_attention: false },
    ];

    pub fn name(self) -> &'static str {
        match (self.repack, self.flash_attention) {
            (true, true) => "repacked, FA",
            (true, false) => "repacked",
            (false, true) => "FA",
            (false, false) => "plain",
        }
    }
}

/// Element types of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    pub k: llama::ggml_type,
    pub v: llama::ggml_type,
}

/// A loaded GGUF with a context.
pub struct Peer {
    context: NonNull<llama::llama_context>,
    model: NonNull<llama::llama_model>,
    batch: Batch,
    sequences: usize,
    position: usize,
    ids: Ids,
}

/// Tokens of one call at most, as BaseRT takes them.
const BATCH: usize = 512;

/// What is linked.
pub const CRATE: &str = "the crate llama-cpp-sys-2 0.1.161";

/// Silences and starts the library. Once per process.
pub fn start() {
    unsafe extern "C" fn quiet(
        _: llama::ggml_log_level,
        _: *const std::ffi::c_char,
        _: *mut std::ffi::c_void,
    ) {
    }
    // SAFETY: the callback lives for ever and uses nothing.
    unsafe {
        llama::llama_log_set(Some(quiet), std::ptr::null_mut());
        llama::llama_backend_init();
    }
}

/// What the library says it was built for.
pub fn system_info() -> String {
    // SAFETY: returns a C string that lives until the next call.
    unsafe { std::ffi::CStr::from_ptr(llama::llama_print_system_info()) }.to_string_lossy().trim().to_owned()
}

impl Peer {
    pub fn load(
        gguf: &Path,
        setting: Setting,
        kv: Kv,
        threads: usize,
        context: usize,
        sequences: usize,
    ) -> Result<Peer> {
        let path = c_path(gguf)?;
        // SAFETY: plain values, and a path that outlives the call.
        let model = unsafe {
            let mut params = llama::llama_model_default_params();
            params.use_extra_bufts = setting.repack;
            llama::llama_model_load_from_file(path.as_ptr(), params)
        };
        let model =
            NonNull::new(model).with_context(|| format!("llama.cpp cannot load {}", gguf.display()))?;
        // SAFETY: the model was just loaded.
        let context = unsafe {
            let mut params = llama::llama_context_default_params();
            // One sequence's share of a cache that is not unified is n_ctx / n_seq_max.
            params.n_ctx = u32::try_from(context.next_multiple_of(256) * sequences)?;
            params.n_batch = BATCH as u32;
            params.n_ubatch = BATCH as u32;
            params.n_seq_max = u32::try_from(sequences)?;
            params.n_threads = i32::try_from(threads)?;
            params.n_threads_batch = params.n_threads;
            params.flash_attn_type = if setting.flash_attention {
                llama::LLAMA_FLASH_ATTN_TYPE_ENABLED
            } else {
                llama::LLAMA_FLASH_ATTN_TYPE_DISABLED
            };
            (params.type_k, params.type_v) = (kv.k, kv.v);
            llama::llama_init_from_model(model.as_ptr(), params)
        };
        let Some(context) = NonNull::new(context) else {
            // SAFETY: nothing else holds the model.
            unsafe { llama::llama_model_free(model.as_ptr()) };
            bail!("llama.cpp refuses this context");
        };
        // SAFETY: the model is alive.
        let vocab = unsafe { llama::llama_vocab_n_tokens(llama::llama_model_get_vocab(model.as_ptr())) };
        let ids = Ids::new(usize::try_from(vocab)?);
        Ok(Peer { context, model, batch: Batch::new(), sequences: 0, position: 0, ids })
    }

    fn start_over(&mut self, sequences: usize) {
        // SAFETY: the context is alive.
        unsafe { llama::llama_memory_clear(llama::llama_get_memory(self.context.as_ptr()), true) };
        (self.sequences, self.position) = (sequences, 0);
    }

    /// Reads the same `tokens` tokens' worth into `sequence`; logits of the last token if `logits`.
    fn read(&mut self, sequence: usize, tokens: &[u32], logits: bool) -> Result<()> {
        for (i, piece) in tokens.chunks(BATCH).enumerate() {
            let first = i * BATCH;
            let last = first + piece.len() == tokens.len();
            self.batch.clear();
            for (j, &token) in piece.iter().enumerate() {
                self.batch.push(token, first + j, sequence, logits && last && j + 1 == piece.len());
            }
            self.run()?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        // SAFETY: the context is alive, and the batch holds as many entries as it says.
        let status = unsafe {
            let status = llama::llama_decode(self.context.as_ptr(), self.batch.raw);
            llama::llama_synchronize(self.context.as_ptr());
            status
        };
        ensure!(status == 0, "llama_decode returned {status}");
        Ok(())
    }
}

impl Runner for Peer {
    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        self.start_over(1);
        let ids = self.ids.take(tokens);
        let start = Instant::now();
        self.read(0, &ids, true)?;
        // SAFETY: the last token's logits were asked for.
        black_box(unsafe { llama::llama_get_logits_ith(self.context.as_ptr(), -1) });
        Ok(start.elapsed().as_secs_f64())
    }

    fn fill(&mut self, depth: usize, sequences: usize) -> Result<()> {
        self.start_over(sequences);
        for sequence in 0..sequences {
            let ids = self.ids.take(depth);
            self.read(sequence, &ids, false)?;
        }
        self.position = depth;
        Ok(())
    }

    fn decode(&mut self, steps: usize) -> Result<f64> {
        let tokens: Vec<Vec<u32>> = (0..steps).map(|_| self.ids.take(self.sequences)).collect();
        let start = Instant::now();
        for tokens in &tokens {
            self.batch.clear();
            for (sequence, &token) in tokens.iter().enumerate() {
                self.batch.push(token, self.position, sequence, true);
            }
            self.run()?;
            self.position += 1;
            // SAFETY: the last token's logits were asked for.
            black_box(unsafe { llama::llama_get_logits_ith(self.context.as_ptr(), -1) });
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: both are alive, and nothing uses them afterwards.
        unsafe {
            llama::llama_free(self.context.as_ptr());
            llama::llama_model_free(self.model.as_ptr());
        }
    }
}

/// Up to [`BATCH`] tokens of one sequence each.
struct Batch {
    raw: llama::llama_batch,
}

impl Batch {
    fn new() -> Batch {
        // SAFETY: allocates; freed on drop.
        Batch { raw: unsafe { llama::llama_batch_init(BATCH as i32, 0, 1) } }
    }

    fn clear(&mut self) {
        self.raw.n_tokens = 0;
    }

    fn push(&mut self, token: u32, position: usize, sequence: usize, logits: bool) {
        let i = self.raw.n_tokens as usize;
        assert!(i < BATCH, "a batch holds {BATCH} tokens");
        // SAFETY: the arrays hold BATCH entries, and there is one place for a sequence in each.
        unsafe {
            *self.raw.token.add(i) = token as i32;
            *self.raw.pos.add(i) = position as i32;
            *self.raw.n_seq_id.add(i) = 1;
            *(*self.raw.seq_id.add(i)) = sequence as i32;
            *self.raw.logits.add(i) = i8::from(logits);
        }
        self.raw.n_tokens += 1;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: made by `llama_batch_init`.
        unsafe { llama::llama_batch_free(self.raw) };
    }
}
