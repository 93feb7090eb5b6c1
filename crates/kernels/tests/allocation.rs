//! Once warm, the operations of a decode step allocate nothing.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use basert_kernels::{
    Buffer, Cpu, DeltaScratch, DeltaShape, Isa, KvDtype, KvGeometry, LinearJob, Matrix, Pairing, Scratch,
    route,
};
use basert_quant::{Encoding, FloatDtype, ScaleDtype};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Everything that a decode step calls, with its buffers.
struct Step {
    payloads: [(Encoding, Vec<u8>); 3],
    x: Vec<f32>,
    y: Vec<f32>,
    outs: [Vec<f32>; 3],
    scratch: Scratch,
    geometry: KvGeometry,
    k: Buffer,
    v: Buffer,
    delta: DeltaScratch,
    state: Vec<f32>,
    conv: Vec<f32>,
    routes: Vec<(u32, f32)>,
}

const COLS: usize = 256;
const ROWS: usize = 384;
const SHAPE: DeltaShape = DeltaShape { key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 64 };

impl Step {
    fn new() -> Step {
        let affine = |bits, group| Encoding::Affine { bits, group, scale: ScaleDtype::F16, symmetric: false };
        let values: Vec<f32> = (0..ROWS * COLS).map(|i| (i % 101) as f32 / 50.0 - 1.0).collect();
        let payloads = [affine(4, 64), affine(6, 32), Encoding::Float(FloatDtype::Bf16)].map(|encoding| {
            let mut payload = Vec::new();
            encoding.encode(&values, &mut payload).unwrap();
            (encoding, payload)
        });
        let geometry =
            KvGeometry { kv_heads: 2, head_dim: 64, page_tokens: 2048, k: KvDtype::Q8, v: KvDtype::Q4 };
        Step {
            payloads,
            x: values[..COLS].to_vec(),
            y: values[COLS..2 * COLS].to_vec(),
            outs: [vec![0.0; ROWS], vec![0.0; ROWS], vec![0.0; ROWS]],
            scratch: Scratch::default(),
            geometry,
            k: Buffer::zeroed(geometry.page_bytes(geometry.k)),
            v: Buffer::zeroed(geometry.page_bytes(geometry.v)),
            delta: DeltaScratch::default(),
            state: vec![0.0; 2 * 64 * 64],
            conv: vec![0.0; 3 * COLS],
            routes: vec![(0, 0.0); 4],
        }
    }

    fn run(&mut self, cpu: &Cpu, position: usize) {
        let Step { payloads, x, y, outs, scratch, .. } = self;
        let [a, b, c] = outs;
        let [wa, wb, wc] = payloads
            .each_ref()
            .map(|(encoding, payload)| Matrix::new(*encoding, ROWS, COLS, payload).unwrap());
        let jobs = &mut [
            LinearJob { w: wa, out: &mut *a },
            LinearJob { w: wb, out: &mut *b },
            LinearJob { w: wc, out: &mut *c },
        ];
        cpu.linear(scratch, x, jobs);
        cpu.embed(wb, &[3], y);
        cpu.rms_norm(x, &[0.5; COLS], 1e-6, y);
        cpu.rope(y, 4, 64, &[0.8; 32], &[0.6; 32], Pairing::Half);
        cpu.silu_mul_inplace(y, x);
        cpu.sigmoid_mul(y, x);
        cpu.add(y, x);
        cpu.rotate(y, 64);
        cpu.store_kv(&self.geometry, &mut self.k, &mut self.v, &[0], position, &y[..128], &y[128..]);
        cpu.attention(&self.geometry, &self.k, &self.v, &[0], position, x, 4, 0.125, y);
        cpu.conv1d_silu(x, &[0.25; 4 * COLS], &mut self.conv, 1, y);
        let gates = [0.5; 2];
        cpu.gated_delta(
            &SHAPE,
            &mut self.delta,
            &y[..SHAPE.qkv_width()],
            &gates,
            &gates,
            &gates,
            &gates,
            &mut self.state,
            1,
            &mut a[..SHAPE.value_width()],
        );
        route(x, 4, true, &mut self.routes);
    }
}

fn a_warm_step(isa: Isa) {
    // One thread: another might meet its first task, and with it its scratch, at any time.
    let cpu = Cpu::new(isa, 1).unwrap();
    let mut step = Step::new();
    // The last position first: a longer context needs more.
    step.run(&cpu, 2047);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for position in 1500..1510 {
        step.run(&cpu, position);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{isa}");
}

fn sharing_work_among_threads() {
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    let (mut x, up) = (vec![0.5; 1 << 16], vec![1.0; 1 << 16]);
    let mut round = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..100).for_each(|_| cpu.silu_mul_inplace(&mut x, &up));
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    // The worker allocates while it starts, which may be late; rounds without it show what a job costs.
    assert!((0..100).any(|_| round() == 0));
}

/// One test, because the counter counts for all threads of the process.
#[test]
fn a_warm_step_does_not_allocate() {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).for_each(a_warm_step);
    sharing_work_among_threads();
}
