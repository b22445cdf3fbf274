//! Tables of how often n-grams are said, and weighted overlap as an Arrow struct array.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, ArrayRef, Float64Array, StructArray, UInt32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields};
use mia_kernels::{Frequencies, Rarity, RarityReader};
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use pyo3_arrow::error::PyArrowError;

use crate::columns::{TextColumn, import};
use crate::error::{NativeError, not_allowed};
use crate::rows::map_rows;
use crate::{check_lengths, word_rule, zip};

/// In how many groups of texts each n-gram of up to three words occurs.
#[pyclass]
pub(crate) struct RarityTable(Frequencies);

#[pymethods]
impl RarityTable {
    #[new]
    fn new(bits: u32) -> Result<Self, NativeError> {
        let table = Frequencies::new(bits).map(Self);
        table.ok_or_else(|| not_allowed("bits", &bits, "a number from 1 to 28"))
    }

    /// A table with these counts.
    #[staticmethod]
    fn counted(counts: &Bound<'_, PyAny>) -> Result<Self, NativeError> {
        let counts = numbers("counts", counts)?;
        let n_entries = counts.len();
        let table = Frequencies::counted(counts).map(Self);
        table.ok_or_else(|| {
            let found = format!("a column of {n_entries} rows");
            not_allowed("counts", &found, "one of 2^bits rows, with 1 to 28 bits")
        })
    }

    /// Counts the n-grams of texts; those of one group come one after the other.
    #[pyo3(signature = (text, groups, *, words))]
    fn add(
        &mut self,
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        groups: &Bound<'_, PyAny>,
        words: &str,
    ) -> Result<(), NativeError> {
        let text = TextColumn::import("text", text)?;
        let groups = numbers("groups", groups)?;
        let rule = word_rule(words)?;
        if groups.contains(&u32::MAX) {
            let allowed = "numbers below it for groups";
            return Err(not_allowed("groups", &u32::MAX, allowed));
        }
        py.detach(|| {
            let texts = text.texts()?;
            check_lengths(("text", &texts), ("groups", &groups))?;
            for (text, group) in texts.into_iter().zip(&groups) {
                if let Some(text) = text {
                    self.0.add(text, *group, rule)?;
                }
            }
            Ok(())
        })
    }

    /// `UInt32`: the counts.
    fn counts(&self) -> PyArray {
        let counts = UInt32Array::from(self.0.counts().to_vec());
        PyArray::from_array_ref(Arc::new(counts))
    }

    /// Struct of `Float64` per pair, null where either side is null; `others` as in the reader.
    #[pyo3(signature = (candidate, reference, others, *, words, total))]
    fn weigh(
        &self,
        py: Python<'_>,
        candidate: &Bound<'_, PyAny>,
        reference: &Bound<'_, PyAny>,
        others: &Bound<'_, PyAny>,
        words: &str,
        total: u32,
    ) -> Result<PyArray, NativeError> {
        let candidate = TextColumn::import("candidate", candidate)?;
        let reference = TextColumn::import("reference", reference)?;
        let others = numbers("others", others)?;
        let rule = word_rule(words)?;
        py.detach(|| {
            let (candidate, reference) = (candidate.texts()?, reference.texts()?);
            let pairs = zip(("candidate", &candidate), ("reference", &reference))?;
            check_lengths(("candidate", &pairs), ("others", &others))?;
            if total == 0 && !pairs.is_empty() {
                return Err(not_allowed(
                    "total",
                    &total,
                    "the number of groups, at least 1",
                ));
            }
            let rows = pairs.into_iter().zip(others);
            let rows: Vec<_> = rows.map(|(pair, others)| pair.zip(Some(others))).collect();
            let new_reader = || RarityReader::new(&self.0, rule, total);
            let found = map_rows(
                &rows,
                new_reader,
                |reader, ((candidate, reference), others)| {
                    reader.read(candidate, reference, others)
                },
            )?;
            Ok(PyArray::from_array_ref(Arc::new(struct_array(&found)?)))
        })
    }
}

fn struct_array(found: &[Option<Rarity>]) -> Result<StructArray, NativeError> {
    let column = |number: fn(Rarity) -> f64| -> ArrayRef {
        let numbers = found.iter().map(|rarity| rarity.map(number));
        Arc::new(numbers.collect::<Float64Array>())
    };
    let columns = vec![
        column(|rarity| rarity.leading),
        column(|rarity| rarity.overlap[0]),
        column(|rarity| rarity.overlap[1]),
        column(|rarity| rarity.overlap[2]),
    ];
    let names = ["rarity_leading", "rarity_1", "rarity_2", "rarity_3"];
    let fields: Fields = names
        .into_iter()
        .map(|name| Field::new(name, DataType::Float64, true))
        .collect();
    let valid: NullBuffer = found.iter().map(Option::is_some).collect();
    let array = StructArray::try_new(fields, columns, Some(valid));
    Ok(array.map_err(PyArrowError::from)?)
}

fn numbers(name: &'static str, argument: &Bound<'_, PyAny>) -> Result<Vec<u32>, NativeError> {
    let (chunks, _) = import(name, argument)?.into_inner();
    let mut numbers = Vec::new();
    for chunk in &chunks {
        let found = chunk.as_primitive_opt::<UInt32Type>();
        let whole = found.filter(|numbers| numbers.null_count() == 0);
        numbers.extend_from_slice(whole.ok_or(NativeError::NotNumbers { name })?.values());
    }
    Ok(numbers)
}
