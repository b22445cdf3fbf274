//! Features of pairs as an Arrow struct array.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray, UInt32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields};
use mia_kernels::PairFeatures;

const NAMES: [&str; 15] = [
    "words_candidate",
    "words_reference",
    "overlap_1",
    "overlap_2",
    "overlap_3",
    "overlap_4",
    "overlap_5",
    "zlib_candidate",
    "words_candidate_matched",
    "overlap_1_matched",
    "overlap_2_matched",
    "overlap_3_matched",
    "overlap_4_matched",
    "overlap_5_matched",
    "zlib_candidate_matched",
];

/// The numbers of one pair, in the order of [`NAMES`].
fn values(features: &PairFeatures) -> [u32; NAMES.len()] {
    let PairFeatures {
        words_reference,
        candidate,
        matched,
    } = features;
    let [o1, o2, o3, o4, o5] = candidate.overlaps;
    let [m1, m2, m3, m4, m5] = matched.overlaps;
    [
        candidate.words,
        *words_reference,
        o1,
        o2,
        o3,
        o4,
        o5,
        candidate.zlib,
        matched.words,
        m1,
        m2,
        m3,
        m4,
        m5,
        matched.zlib,
    ]
}

/// One struct per pair; a null pair gives a null struct with null fields.
pub(crate) fn struct_array(pairs: &[Option<PairFeatures>]) -> Result<StructArray, ArrowError> {
    let rows: Vec<_> = pairs.iter().map(|pair| pair.as_ref().map(values)).collect();
    let nulls: NullBuffer = pairs.iter().map(Option::is_some).collect();
    let fields: Fields = NAMES
        .iter()
        .map(|&name| Field::new(name, DataType::UInt32, true))
        .collect();
    let columns = (0..NAMES.len()).map(|i| column(&rows, i)).collect();
    StructArray::try_new(fields, columns, Some(nulls))
}

fn column(rows: &[Option<[u32; NAMES.len()]>], i: usize) -> ArrayRef {
    let values = rows
        .iter()
        .map(|row| row.and_then(|row| row.get(i).copied()));
    Arc::new(values.collect::<UInt32Array>())
}
