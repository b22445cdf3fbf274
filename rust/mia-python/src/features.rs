//! Features of pairs as an Arrow struct array.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray, UInt32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields};
use mia_kernels::PairFeatures;

const N_FIELDS: usize = 15;

const NAMES: [&str; N_FIELDS] = [
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
pub(crate) type Numbers = [u32; N_FIELDS];

/// Lays out the features of one pair.
pub(crate) fn numbers(features: &PairFeatures) -> Numbers {
    let PairFeatures {
        words_reference,
        candidate,
        matched,
    } = features;
    let [o1, o2, o3, o4, o5] = candidate.overlaps;
    let [m1, m2, m3, m4, m5] = matched.overlaps;
    #[rustfmt::skip]
    let numbers = [
        candidate.words, *words_reference, o1, o2, o3, o4, o5, candidate.zlib,
        matched.words, m1, m2, m3, m4, m5, matched.zlib,
    ];
    numbers
}

/// One struct per pair; a null pair gives a null struct with null fields.
pub(crate) fn struct_array(pairs: &[Option<Numbers>]) -> Result<StructArray, ArrowError> {
    let fields: Fields = NAMES
        .iter()
        .map(|&name| Field::new(name, DataType::UInt32, true))
        .collect();
    let columns = (0..N_FIELDS).map(|field| column(pairs, field)).collect();
    let valid: NullBuffer = pairs.iter().map(Option::is_some).collect();
    StructArray::try_new(fields, columns, Some(valid))
}

fn column(pairs: &[Option<Numbers>], field: usize) -> ArrayRef {
    let values = pairs
        .iter()
        .map(|numbers| numbers.and_then(|numbers| numbers.get(field).copied()));
    Arc::new(values.collect::<UInt32Array>())
}
