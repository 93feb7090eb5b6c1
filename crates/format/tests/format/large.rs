//! Tensors beyond 2 and 4 GiB, in a file of holes that takes no room on disk.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::common::{assemble, foreign_header, on_disk};
use basert_format::{BaseFile, TensorView};

const Q4_ELEMENTS: u64 = (1 << 29) + (1 << 20);
const Q4_COLUMNS: u64 = 64 * 513;
/// Not a divisor of 2^31 or 2^32, so that some row lies across those offsets.
const BF16_COLUMNS: u64 = 3000;
const BF16_ROWS: u64 = 800_000;

/// One row, decoded.
fn row(tensor: &TensorView<'_>, index: u64, columns: u64) -> Vec<f32> {
    let mut out = vec![0.0; columns as usize];
    let elements = tensor.entry.elements().expect("checked on opening") as usize;
    tensor
        .encoding
        .decode(tensor.data, elements, (index * columns) as usize, &mut out)
        .expect("inside the tensor");
    out
}

#[test]
fn rows_across_2_to_the_31_and_2_to_the_32_bytes() {
    // The q4 tensor lies across 2^31, the bf16 tensor (4.8 GB) across 2^32, both counted from the file's
    // start.
    let rows = Q4_ELEMENTS / Q4_COLUMNS;
    let (codes, scales) = (Q4_ELEMENTS / 2, Q4_ELEMENTS / 64 * 2);
    let q4_offset = (1u64 << 31) - (1 << 27);
    let bf16_offset = q4_offset + codes + 2 * scales + 1;
    let bf16_len = BF16_ROWS * BF16_COLUMNS * 2;
    assert!(bf16_len > 1 << 32);
    let header = foreign_header(&format!(
        r#"{{"name":"q4","dtype":"base_q4","shape":[{rows},{Q4_COLUMNS}],"offset":{q4_offset},"length":{},"scale_offset":{codes},"scale_length":{scales},"bias_offset":{},"bias_length":{scales},"group_size":64,"scale_dtype":"bf16","residency":"warm","checksum_xxh64":1}},{{"name":"bf16","dtype":"bf16","shape":[{BF16_ROWS},{BF16_COLUMNS}],"offset":{bf16_offset},"length":{bf16_len},"residency":"warm","checksum_xxh64":1}}"#,
        codes + 2 * scales,
        codes + scales,
    ));
    let disk = on_disk(&assemble(&header, b""));
    let file = OpenOptions::new().write(true).open(&disk.path).expect("opened");
    let blob = 65536;
    file.set_len(blob + bf16_offset + bf16_len).expect("sparse");
    let put = |at: u64, bytes: &[u8]| file.write_all_at(bytes, blob + at).expect("written");

    let across = |offset: u64, boundary: u64, row_bytes: u64| {
        let index = (boundary - blob - offset) / row_bytes;
        let start = blob + offset + index * row_bytes;
        assert!(start < boundary && boundary < start + row_bytes, "the row does not lie across {boundary}");
        index
    };
    let q4_rows = [0, across(q4_offset, 1 << 31, Q4_COLUMNS / 2), rows - 1];
    for (value, index) in (1u8..).zip(q4_rows) {
        // Codes of 0xN, scale 1.0, bias 16.0.
        put(q4_offset + index * Q4_COLUMNS / 2, &vec![value * 0x11; Q4_COLUMNS as usize / 2]);
        let groups = Q4_COLUMNS / 64;
        put(q4_offset + codes + index * groups * 2, &[0x80, 0x3f].repeat(groups as usize));
        put(q4_offset + codes + scales + index * groups * 2, &[0x80, 0x41].repeat(groups as usize));
    }
    let bf16_rows = [0, across(bf16_offset, 1 << 32, BF16_COLUMNS * 2), BF16_ROWS - 1];
    for (value, index) in (0u8..).zip(bf16_rows) {
        // 1, 2, 4 differ in the low byte and its neighbour only.
        put(bf16_offset + index * BF16_COLUMNS * 2, &[value << 7, 0x40].repeat(BF16_COLUMNS as usize));
    }

    let opened = BaseFile::open(&disk.path).expect("valid");
    let q4 = opened.tensor("q4").expect("present");
    for (value, index) in (1u8..).zip(q4_rows) {
        assert_eq!(
            row(&q4, index, Q4_COLUMNS),
            vec![f32::from(value) + 16.0; Q4_COLUMNS as usize],
            "q4 row {index}"
        );
        let neighbour = if index == 0 { 1 } else { index - 1 };
        assert_eq!(row(&q4, neighbour, Q4_COLUMNS), vec![0.0; Q4_COLUMNS as usize], "q4 row {neighbour}");
    }
    let bf16 = opened.tensor("bf16").expect("present");
    for (value, index) in [2.0, 4.0, 2.0].into_iter().zip(bf16_rows) {
        assert_eq!(row(&bf16, index, BF16_COLUMNS), vec![value; BF16_COLUMNS as usize], "bf16 row {index}");
        let neighbour = if index == 0 { 1 } else { index - 1 };
        assert_eq!(
            row(&bf16, neighbour, BF16_COLUMNS),
            vec![0.0; BF16_COLUMNS as usize],
            "bf16 row {neighbour}"
        );
    }
}
