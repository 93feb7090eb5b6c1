//! Linear layers of every encoding.

use basert_quant::{Encoding, FloatDtype, Fp4, GgmlType, ScaleDtype};

use super::*;
use crate::reference::quantize::{Quantize, quantize};
use crate::{KernelError, LinearJob, Matrix, Scratch, Weights};

const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];

/// Every quantised encoding with a kernel, with column counts that end inside a block of 64 where they can.
fn quantized() -> Vec<(Encoding, Vec<usize>)> {
    let mut all = Vec::new();
    for bits in BITS {
        for (group, cols) in [
            (16, vec![16, 48, 64, 208]),
            (32, vec![32, 96, 320]),
            (64, vec![64, 576]),
            (128, vec![128, 1152]),
            (192, vec![384]),
        ] {
            for scale in ScaleDtype::ALL {
                for symmetric in [false, true] {
                    all.push((Encoding::Affine { bits, group, scale, symmetric }, cols.clone()));
                }
            }
        }
    }
    for kind in [GgmlType::Q4K, GgmlType::Q5K, GgmlType::Q6K] {
        all.push((Encoding::Super(kind), vec![256, 768]));
    }
    all.push((Encoding::Fp4(Fp4::Mx), vec![32, 96, 320]));
    all.push((Encoding::Fp4(Fp4::Nv), vec![16, 48, 208]));
    all
}

const FLOATS: [Encoding; 3] =
    [Encoding::Float(FloatDtype::F32), Encoding::Float(FloatDtype::F16), Encoding::Float(FloatDtype::Bf16)];

/// A payload of arbitrary bits: all codes, and scales of any size and sign, infinities and NaN among them.
fn arbitrary(rng: &mut Rng, encoding: Encoding, rows: usize, cols: usize) -> Vec<u8> {
    rng.bytes(encoding.payload_len((rows * cols) as u64).unwrap() as usize)
}

/// A payload with ordinary numbers.
fn ordinary(rng: &mut Rng, encoding: Encoding, rows: usize, cols: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    if let Encoding::Super(kind) = encoding {
        payload = arbitrary(rng, encoding, rows, cols);
        let factors = if kind == GgmlType::Q6K { 208..210 } else { 0..4 };
        for block in payload.chunks_exact_mut(kind.block_bytes()) {
            for factor in block[factors.clone()].chunks_exact_mut(2) {
                factor.copy_from_slice(&half::f16::from_f32(0.001 + rng.floats(1)[0].abs()).to_le_bytes());
            }
        }
        return payload;
    }
    match encoding.encode(&rng.floats(rows * cols), &mut payload) {
        Ok(()) => payload,
        // e8m0 biases cannot be encoded from values; positive ones around 1 do as well.
        Err(_) => {
            let regions = encoding.regions((rows * cols) as u64).unwrap();
            payload = rng.bytes(regions.codes as usize);
            payload.extend((0..regions.scales + regions.biases).map(|_| 120 + (rng.bits() % 8) as u8));
            payload
        }
    }
}

fn linear(cpu: &Cpu, w: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len() / w.cols * w.rows];
    cpu.linear(&mut Scratch::default(), x, &mut [LinearJob { w, out: &mut out }]);
    out
}

#[test]
fn every_quantized_encoding_has_the_references_bits() {
    let mut rng = Rng::new(1);
    let (reference, devices) = (reference(), devices());
    for (case, (encoding, cols)) in quantized().into_iter().enumerate() {
        for cols in cols {
            // Rows and tokens around the tile sizes, rotated over the cases.
            let rows = [1, 7, 16, 17, 33][case % 5];
            for tokens in [1, 2, [5, 8, 9, 33][case % 4]] {
                let arbitrary = arbitrary(&mut rng, encoding, rows, cols);
                let ordinary = ordinary(&mut rng, encoding, rows, cols);
                let x = rng.spread(tokens * cols);
                for payload in [ordinary, arbitrary] {
                    let w = Matrix::new(encoding, rows, cols, &payload).unwrap();
                    let expected = linear(&reference, w, &x);
                    for cpu in &devices {
                        let what = format_args!("{encoding:?} [{rows}, {cols}] x {tokens} on {cpu:?}");
                        assert_same(&linear(cpu, w, &x), &expected, what);
                    }
                }
            }
        }
    }
}

#[test]
fn rows_longer_than_a_chunk_have_the_references_bits() {
    let mut rng = Rng::new(8);
    let devices = devices();
    for (bits, group, cols) in [(4, 16, 2064), (8, 32, 1056), (4, 64, 2112), (3, 192, 1152), (6, 128, 2176)] {
        let encoding = Encoding::Affine { bits, group, scale: ScaleDtype::Bf16, symmetric: false };
        let payload = ordinary(&mut rng, encoding, 34, cols);
        let w = Matrix::new(encoding, 34, cols, &payload).unwrap();
        for tokens in [3, 13] {
            let x = rng.spread(tokens * cols);
            let expected = linear(&reference(), w, &x);
            for cpu in &devices {
                assert_same(
                    &linear(cpu, w, &x),
                    &expected,
                    format_args!("{encoding:?} x {tokens} on {cpu:?}"),
                );
            }
        }
    }
}

#[test]
fn float_weights_have_the_references_bits() {
    let mut rng = Rng::new(2);
    let (reference, devices) = (reference(), devices());
    for encoding in FLOATS {
        for cols in [1, 7, 16, 17, 63, 64, 65, 576] {
            for rows in [1, 2, 3, 4, 5, 17] {
                for tokens in [1, 2, 3, 4, 25, 33] {
                    let x = rng.spread(tokens * cols);
                    let payload = ordinary(&mut rng, encoding, rows, cols);
                    let w = Matrix::new(encoding, rows, cols, &payload).unwrap();
                    let expected = linear(&reference, w, &x);
                    for cpu in &devices {
                        let what = format_args!("{encoding:?} [{rows}, {cols}] x {tokens} on {cpu:?}");
                        assert_same(&linear(cpu, w, &x), &expected, what);
                    }
                }
            }
        }
        let payload = arbitrary(&mut rng, encoding, 9, 70);
        let w = Matrix::new(encoding, 9, 70, &payload).unwrap();
        let x = rng.spread(2 * 70);
        for cpu in &devices {
            assert_same(
                &linear(cpu, w, &x),
                &linear(&reference, w, &x),
                format_args!("{encoding:?} on {cpu:?}"),
            );
        }
    }
}

#[test]
fn an_underflowing_negative_product_keeps_its_sign_in_the_tail() {
    for cols in [1, 17] {
        let payload: Vec<u8> = vec![-1e-30f32; cols].into_iter().flat_map(f32::to_le_bytes).collect();
        let w = Matrix::new(FLOATS[0], 1, cols, &payload).unwrap();
        let x = vec![1e-30; cols];
        for cpu in devices() {
            assert_same(&linear(&cpu, w, &x), &linear(&reference(), w, &x), format_args!("{cpu:?}"));
        }
    }
}

#[test]
fn inputs_that_are_not_finite_or_all_zero() {
    let mut rng = Rng::new(3);
    for encoding in [
        Encoding::Affine { bits: 4, group: 64, scale: ScaleDtype::F16, symmetric: false },
        Encoding::Affine { bits: 8, group: 32, scale: ScaleDtype::Bf16, symmetric: true },
        Encoding::Fp4(Fp4::Nv),
    ] {
        let payload = ordinary(&mut rng, encoding, 17, 256);
        let w = Matrix::new(encoding, 17, 256, &payload).unwrap();
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-38, 0.0] {
            let mut x = rng.floats(2 * 256);
            x[64..128].fill(0.0);
            x[100] = special;
            let expected = linear(&reference(), w, &x);
            assert!(special.is_finite() || expected[..17].iter().all(|y| y.is_nan()), "{special}");
            assert!(expected[17..].iter().all(|y| y.is_finite()), "the other token is untouched");
            for cpu in devices() {
                assert_same(
                    &linear(&cpu, w, &x),
                    &expected,
                    format_args!("{encoding:?}, {special} on {cpu:?}"),
                );
            }
        }
        let zero = linear(&reference(), w, &[0.0; 256]);
        assert!(zero.iter().all(|y| *y == 0.0));
    }
}

#[test]
fn a_token_does_not_depend_on_its_neighbours() {
    let mut rng = Rng::new(4);
    let encodings = [
        Encoding::Affine { bits: 4, group: 32, scale: ScaleDtype::F16, symmetric: false },
        Encoding::Affine { bits: 8, group: 128, scale: ScaleDtype::Bf16, symmetric: false },
        Encoding::Fp4(Fp4::Mx),
        FLOATS[1],
    ];
    for encoding in encodings {
        let payload = ordinary(&mut rng, encoding, 40, 384);
        let w = Matrix::new(encoding, 40, 384, &payload).unwrap();
        let x = rng.spread(33 * 384);
        for cpu in devices() {
            let whole = linear(&cpu, w, &x);
            let single: Vec<f32> = x.chunks(384).flat_map(|x| linear(&cpu, w, x)).collect();
            assert_same(&whole, &single, format_args!("{encoding:?} on {cpu:?}"));
        }
    }
}

#[test]
fn several_matrices_in_one_dispatch_equal_one_after_the_other() {
    let mut rng = Rng::new(5);
    let (cols, tokens) = (256, 3);
    let encodings: Vec<Encoding> = quantized()
        .into_iter()
        .map(|(encoding, _)| encoding)
        .filter(|encoding| cols % encoding.group() == 0)
        .step_by(17)
        .chain(FLOATS)
        .collect();
    let payloads: Vec<(Encoding, usize, Vec<u8>)> = (5..)
        .zip(encodings)
        .map(|(rows, encoding)| (encoding, rows, ordinary(&mut rng, encoding, rows, cols)))
        .collect();
    let x = rng.spread(tokens * cols);
    assert!(payloads.len() > 8, "more than fit one dispatch");
    for cpu in devices() {
        let mut scratch = Scratch::default();
        let mut outs: Vec<Vec<f32>> = payloads.iter().map(|(_, rows, _)| vec![0.0; tokens * rows]).collect();
        let mut jobs: Vec<LinearJob<'_>> = payloads
            .iter()
            .zip(&mut outs)
            .map(|((encoding, rows, payload), out)| LinearJob {
                w: Matrix::new(*encoding, *rows, cols, payload).unwrap(),
                out,
            })
            .collect();
        // Twice, so that the second call meets scratch of the first.
        cpu.linear(&mut scratch, &x, &mut jobs);
        cpu.linear(&mut scratch, &x, &mut jobs);
        for ((encoding, rows, payload), out) in payloads.iter().zip(&outs) {
            let w = Matrix::new(*encoding, *rows, cols, payload).unwrap();
            assert_same(out, &linear(&reference(), w, &x), format_args!("{encoding:?} on {cpu:?}"));
        }
    }
}

/// `sx·code` for every element.
fn dequantized_activations(x: &[f32], block: usize) -> Vec<f64> {
    let blocks = x.len() / block;
    let (mut codes, mut sums) = (vec![0; x.len()], vec![0; blocks]);
    let (mut scales, mut weighted) = (vec![0.0; blocks], vec![0.0; blocks]);
    quantize(Quantize {
        x,
        block,
        stride: 1,
        codes: &mut codes,
        sums: &mut sums,
        scales: &mut scales,
        weighted: &mut weighted,
    });
    codes.iter().enumerate().map(|(i, code)| f64::from(*code) * f64::from(scales[i / block])).collect()
}

#[test]
fn quantized_layers_equal_the_product_of_the_dequantized() {
    let mut rng = Rng::new(6);
    for (encoding, cols) in quantized() {
        for cols in cols {
            let rows = 7;
            let payload = ordinary(&mut rng, encoding, rows, cols);
            let mut weights = vec![0.0; rows * cols];
            encoding.decode(&payload, rows * cols, 0, &mut weights).unwrap();
            let x = rng.floats(cols);
            let w = Matrix::new(encoding, rows, cols, &payload).unwrap();
            let xq = dequantized_activations(&x, w.quantized().unwrap().block());
            let truth: Vec<f64> = weights
                .chunks(cols)
                .map(|w| w.iter().zip(&xq).map(|(w, x)| f64::from(*w) * x).sum())
                .collect();
            let found = linear(&Cpu::new(Isa::best(), 1).unwrap(), w, &x);
            assert_close(&found, &truth, 1e-5, format_args!("{encoding:?} [{rows}, {cols}]"));
        }
    }
}

#[test]
fn float_layers_equal_the_exact_product() {
    let mut rng = Rng::new(7);
    for encoding in FLOATS {
        let (rows, cols) = (9, 577);
        let payload = ordinary(&mut rng, encoding, rows, cols);
        let mut weights = vec![0.0; rows * cols];
        encoding.decode(&payload, rows * cols, 0, &mut weights).unwrap();
        let x = rng.floats(cols);
        let truth: Vec<f64> = weights
            .chunks(cols)
            .map(|w| w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum())
            .collect();
        let w = Matrix::new(encoding, rows, cols, &payload).unwrap();
        assert_close(&linear(&reference(), w, &x), &truth, 1e-6, format_args!("{encoding:?}"));
    }
}

/// Runs the quantiser of every level on one row.
fn codes(x: &[f32], block: usize) -> (Vec<i8>, Vec<i32>, Vec<f32>, Vec<f32>) {
    let run = |level: Option<Level>| {
        let blocks = x.len() / block;
        let (mut codes, mut sums) = (vec![1; x.len()], vec![1; blocks]);
        let (mut scales, mut weighted) = (vec![1.0; blocks], vec![1.0; blocks]);
        let job = Quantize {
            x,
            block,
            stride: 1,
            codes: &mut codes,
            sums: &mut sums,
            scales: &mut scales,
            weighted: &mut weighted,
        };
        match level {
            Some(level) => level.run(job),
            None => quantize(job),
        }
        (codes, sums, scales, weighted)
    };
    let expected = run(None);
    for level in Level::all() {
        let found = run(Some(level));
        assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{level:?}");
        assert_same(&found.2, &expected.2, format_args!("{level:?}"));
        assert_same(&found.3, &expected.3, format_args!("{level:?}"));
    }
    expected
}

#[test]
fn activation_codes_follow_the_rule() {
    let mut rng = Rng::new(8);
    for block in [16, 32, 64] {
        for _ in 0..200 {
            let x = rng.spread(block);
            let amax = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let (codes, sums, scales, weighted) = codes(&x, block);
            for (code, x) in codes.iter().zip(&x) {
                let exact = x * (127.0 / amax);
                let expected = exact.round_ties_even().clamp(-127.0, 127.0);
                assert_eq!(f32::from(*code), expected, "{x} of {amax}");
            }
            assert_eq!(scales, [amax / 127.0]);
            assert_eq!(sums, [codes.iter().map(|c| i32::from(*c)).sum::<i32>()]);
            assert_eq!(weighted, [sums[0] as f32 * scales[0]]);
        }
    }
}

#[test]
fn activation_codes_at_the_edges() {
    let row = |value: f32| {
        let mut x = [0.0; 16];
        (x[0], x[15]) = (value, 1.0);
        codes(&x, 16)
    };
    // 127 / 1 is exact, so these are ties: to even.
    let mut ties = [0.0; 16];
    ties[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
    assert_eq!(codes(&ties, 16).0[..6], [127, 0, 2, 2, 0, -2]);
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (codes, sums, scales, weighted) = row(broken);
        assert!(codes == [0; 16] && sums == [0] && scales[0].is_nan() && weighted[0].is_nan(), "{broken}");
    }
    assert_eq!(row(f32::MAX).0[0], 127);
    assert_eq!(row(-f32::MAX).0[0], -127);
    let tiny = (-100f32).exp2();
    assert_eq!(codes(&[tiny; 16], 16).0, [127; 16]);
    let below = f32::from_bits(tiny.to_bits() - 1);
    assert_eq!(codes(&[below; 16], 16), (vec![0; 16], vec![0], vec![0.0], vec![0.0]));
    assert_eq!(codes(&[-0.0; 16], 16), (vec![0; 16], vec![0], vec![0.0], vec![0.0]));
}

#[test]
fn embedding_rows_are_the_decoded_rows() {
    let mut rng = Rng::new(9);
    let encodings = quantized().into_iter().chain(FLOATS.map(|encoding| (encoding, vec![1, 70])));
    for (encoding, cols) in encodings {
        for cols in cols {
            let rows = 5;
            let payload = ordinary(&mut rng, encoding, rows, cols);
            let table = Matrix::new(encoding, rows, cols, &payload).unwrap();
            let ids = [4, 0, 2, 2];
            let mut expected = vec![0.0; ids.len() * cols];
            for (id, row) in ids.iter().zip(expected.chunks_mut(cols)) {
                encoding.decode(&payload, rows * cols, id * cols, row).unwrap();
            }
            for cpu in devices() {
                let mut out = vec![1.0; ids.len() * cols];
                cpu.embed(table, &ids.map(|id| id as u32), &mut out);
                assert!(out == expected, "{encoding:?} on {cpu:?}");
            }
        }
    }
}

#[test]
fn a_slice_of_rows_is_a_matrix_of_its_own() {
    let mut rng = Rng::new(10);
    for (encoding, cols) in quantized().into_iter().chain(FLOATS.map(|encoding| (encoding, vec![70]))) {
        let cols = cols[0];
        let payload = ordinary(&mut rng, encoding, 12, cols);
        let w = Matrix::new(encoding, 12, cols, &payload).unwrap();
        let x = rng.floats(cols);
        let whole = linear(&reference(), w, &x);
        let part = w.slice_rows(5..9);
        assert_eq!((part.rows, part.cols), (4, cols));
        assert_same(&linear(&reference(), part, &x), &whole[5..9], format_args!("{encoding:?}"));
        assert_same(
            &linear(&reference(), part.slice_rows(1..2), &x),
            &whole[6..7],
            format_args!("{encoding:?}"),
        );
    }
}

#[test]
fn weights_without_a_kernel_are_refused_by_name() {
    let affine = |bits, group| Encoding::Affine { bits, group, scale: ScaleDtype::F16, symmetric: false };
    let refused = |encoding, rows, cols, len| Matrix::new(encoding, rows, cols, &vec![0; len]).unwrap_err();
    let straddling = refused(Encoding::Super(GgmlType::Q4K), 2, 128, 144);
    assert!(matches!(straddling, KernelError::Straddle { cols: 128, group: 256 }));
    assert!(matches!(refused(Encoding::Super(GgmlType::Q2K), 1, 256, 84), KernelError::Quant(_)));
    assert!(matches!(refused(affine(4, 24), 1, 48, 0), KernelError::Group { group: 24 }));
    assert!(matches!(refused(affine(8, 128), 2, 192, 0), KernelError::Straddle { cols: 192, group: 128 }));
    assert!(matches!(refused(affine(7, 64), 1, 64, 0), KernelError::Quant(_)));
    assert!(matches!(
        refused(affine(4, 0), 1, 64, 0),
        KernelError::Straddle { .. } | KernelError::Group { .. }
    ));
    assert!(matches!(refused(FLOATS[0], 2, 3, 23), KernelError::Payload { expected: 24, found: 23, .. }));
    assert!(matches!(refused(FLOATS[0], usize::MAX, 2, 0), KernelError::TooLarge { .. }));
}

/// Bytes that end where the process's readable memory ends.
#[cfg(target_os = "linux")]
struct AtTheEdge {
    base: *mut u8,
    pages: usize,
    len: usize,
}

#[cfg(target_os = "linux")]
impl AtTheEdge {
    const PAGE: usize = 4096;

    fn new(bytes: &[u8]) -> AtTheEdge {
        let pages = bytes.len().div_ceil(Self::PAGE);
        let len = (pages + 1) * Self::PAGE;
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping of whole pages.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, read_write, private, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        // SAFETY: the bytes fit before the last page of the mapping, which then becomes inaccessible.
        unsafe {
            let start = base.add(pages * Self::PAGE - bytes.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            let guard = base.add(pages * Self::PAGE).cast();
            assert_eq!(libc::mprotect(guard, Self::PAGE, libc::PROT_NONE), 0);
        }
        AtTheEdge { base, pages, len: bytes.len() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, and these bytes lie before its last page.
        unsafe { std::slice::from_raw_parts(self.base.add(self.pages * Self::PAGE - self.len), self.len) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for AtTheEdge {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(self.base.cast(), (self.pages + 1) * Self::PAGE) };
    }
}

/// The regions of a payload, each with unreadable memory right behind it.
#[cfg(target_os = "linux")]
fn apart(encoding: Encoding, rows: usize, cols: usize, payload: &[u8]) -> [AtTheEdge; 3] {
    let regions = encoding.regions((rows * cols) as u64).unwrap();
    let (codes, rest) = payload.split_at(regions.codes as usize);
    let (scales, biases) = rest.split_at(regions.scales as usize);
    [codes, scales, biases].map(AtTheEdge::new)
}

#[cfg(target_os = "linux")]
fn assemble(encoding: Encoding, rows: usize, cols: usize, regions: &[AtTheEdge; 3]) -> Matrix<'_> {
    let [codes, scales, biases] = regions.each_ref().map(AtTheEdge::bytes);
    let weights = match encoding {
        Encoding::Float(dtype) => Weights::Float { dtype, data: codes },
        Encoding::Affine { bits, group, scale, symmetric } => {
            Weights::Affine { bits, group, scale, symmetric, codes, scales, biases }
        }
        Encoding::Fp4(kind) => Weights::Fp4 { kind, codes, scales },
        Encoding::Super(kind) => Weights::Super { kind, blocks: codes },
    };
    Matrix { rows, cols, weights }
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_is_read_behind_the_weights() {
    let mut rng = Rng::new(11);
    let devices: Vec<Cpu> = devices().into_iter().filter(|cpu| cpu.threads() == 1).collect();
    for (encoding, cols) in quantized().into_iter().chain(FLOATS.map(|encoding| (encoding, vec![1, 17, 70])))
    {
        for cols in cols {
            let rows = 3;
            let payload = ordinary(&mut rng, encoding, rows, cols);
            let regions = apart(encoding, rows, cols, &payload);
            let w = assemble(encoding, rows, cols, &regions);
            for tokens in [1, 9] {
                let x = rng.floats(tokens * cols);
                let expected = linear(&reference(), Matrix::new(encoding, rows, cols, &payload).unwrap(), &x);
                for cpu in &devices {
                    assert_same(&linear(cpu, w, &x), &expected, format_args!("{encoding:?} on {cpu:?}"));
                }
            }
        }
    }
}
