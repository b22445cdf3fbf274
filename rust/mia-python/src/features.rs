//! Features of pairs as an Arrow struct array.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray, UInt32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields};
use mia_kernels::{KernelError, PairReader, Settings};
use pyo3_arrow::error::PyArrowError;

use crate::error::NativeError;
use crate::parts::map_parts;
use crate::rows::MIN_ROWS;

/// A candidate and its reference; `None` where either is null.
pub(crate) type Pair<'a> = Option<(&'a str, &'a str)>;

/// The numbers of some pairs, one pair after the other, `None` where one is null.
type Numbers = Vec<Option<u32>>;

/// One struct per pair; a null pair gives a null struct with null fields.
pub(crate) fn struct_array(
    pairs: &[Pair<'_>],
    settings: &Settings,
) -> Result<StructArray, NativeError> {
    let names = PairReader::new(settings).fields();
    let new_reader = || PairReader::new(settings);
    let parts = map_parts(pairs, MIN_ROWS, new_reader, |reader, _, pairs| {
        read(reader, pairs, names.len())
    })?;
    let fields: Vec<_> = (0..names.len()).collect();
    let columns = map_parts(
        &fields,
        1,
        || (),
        |(), _, fields| {
            let columns = fields
                .iter()
                .map(|field| column(&parts, *field, names.len()));
            Ok::<Vec<_>, KernelError>(columns.collect())
        },
    )?;
    let columns = columns.into_iter().flatten().collect();
    let fields = names.into_iter();
    let fields: Fields = fields
        .map(|name| Field::new(name, DataType::UInt32, true))
        .collect();
    let valid: NullBuffer = pairs.iter().map(Option::is_some).collect();
    let array = StructArray::try_new(fields, columns, Some(valid));
    Ok(array.map_err(PyArrowError::from)?)
}

fn read(
    reader: &mut PairReader,
    pairs: &[Pair<'_>],
    n_fields: usize,
) -> Result<Numbers, KernelError> {
    let mut numbers = Vec::with_capacity(pairs.len() * n_fields);
    for pair in pairs {
        match pair {
            Some((candidate, reference)) => reader.read(candidate, reference, &mut numbers)?,
            None => numbers.extend(std::iter::repeat_n(None, n_fields)),
        }
    }
    Ok(numbers)
}

fn column(parts: &[Numbers], field: usize, n_fields: usize) -> ArrayRef {
    let values = parts
        .iter()
        .flat_map(|numbers| numbers.iter().skip(field).step_by(n_fields));
    Arc::new(values.copied().collect::<UInt32Array>())
}
