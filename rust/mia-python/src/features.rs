//! Features of pairs as an Arrow struct array.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray, UInt32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields};

/// The numbers of one pair, field by field; `None` for a null pair.
pub(crate) type Row = Option<Vec<Option<u32>>>;

/// One struct per pair; a null pair gives a null struct with null fields.
pub(crate) fn struct_array(names: Vec<String>, rows: &[Row]) -> Result<StructArray, ArrowError> {
    let columns = (0..names.len()).map(|field| column(rows, field)).collect();
    let fields: Fields = names
        .into_iter()
        .map(|name| Field::new(name, DataType::UInt32, true))
        .collect();
    let valid: NullBuffer = rows.iter().map(Option::is_some).collect();
    StructArray::try_new(fields, columns, Some(valid))
}

fn column(rows: &[Row], field: usize) -> ArrayRef {
    let values = rows
        .iter()
        .map(|row| row.as_ref()?.get(field).copied().flatten());
    Arc::new(values.collect::<UInt32Array>())
}
