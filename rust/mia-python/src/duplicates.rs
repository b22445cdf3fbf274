//! Shared runs as an Arrow struct array.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray, UInt32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields};
use mia_kernels::{KernelError, RunIndex, RunReader, SharedRuns};
use pyo3_arrow::error::PyArrowError;

use crate::error::NativeError;
use crate::rows::map_rows;

/// One struct per text; a null text gives a null struct with null fields.
pub(crate) fn compare_runs(
    texts: &[Option<&str>],
    others: &[Option<&str>],
    new_reader: impl Fn() -> RunReader + Send + Sync,
) -> Result<StructArray, NativeError> {
    let index = index(others, &new_reader)?;
    let compared = map_rows(texts, new_reader, |reader, text| {
        index.compare(reader, text)
    })?;
    let column = |number: fn(SharedRuns) -> Option<u32>| -> ArrayRef {
        let numbers = compared.iter().map(|shared| shared.and_then(number));
        Arc::new(numbers.collect::<UInt32Array>())
    };
    let columns = vec![
        column(|shared| Some(shared.runs)),
        column(|shared| Some(shared.shared)),
        column(|shared| shared.other),
    ];
    let names = ["runs", "shared", "other"].into_iter();
    let fields: Fields = names
        .map(|name| Field::new(name, DataType::UInt32, true))
        .collect();
    let valid: NullBuffer = texts.iter().map(Option::is_some).collect();
    let array = StructArray::try_new(fields, columns, Some(valid));
    Ok(array.map_err(PyArrowError::from)?)
}

fn index(
    others: &[Option<&str>],
    new_reader: impl Fn() -> RunReader + Send + Sync,
) -> Result<RunIndex, KernelError> {
    let runs = map_rows(others, new_reader, |reader, text| {
        Ok(reader.runs(text)?.collect::<Vec<_>>())
    })?;
    let runs: Vec<_> = runs.into_iter().map(Option::unwrap_or_default).collect();
    Ok(RunIndex::new(&runs))
}
