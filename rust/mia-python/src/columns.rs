//! Text columns from Python, in whatever Arrow layout they come.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;

use crate::error::NativeError;

/// A column of texts, some of them null.
pub(crate) struct TextColumn {
    chunks: Vec<ArrayRef>,
}

impl TextColumn {
    /// Takes the argument `name` of a Python call.
    pub(crate) fn import(
        name: &'static str,
        argument: &Bound<'_, PyAny>,
    ) -> Result<Self, NativeError> {
        let not_text = |found| NativeError::NotText { name, found };
        if !is_arrow(argument)? {
            return Err(not_text(argument.get_type().to_string()));
        }
        let array: AnyArray = argument.extract()?;
        let (chunks, field) = array.into_chunked_array()?.into_inner();
        match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => {
                Ok(Self { chunks })
            }
            other => Err(not_text(other.to_string())),
        }
    }

    /// The texts, row by row.
    pub(crate) fn texts(&self) -> Vec<Option<&str>> {
        let n_rows = self.chunks.iter().map(Array::len).sum();
        let mut texts = Vec::with_capacity(n_rows);
        for chunk in &self.chunks {
            match chunk.data_type() {
                DataType::Utf8 => texts.extend(chunk.as_string::<i32>()),
                DataType::LargeUtf8 => texts.extend(chunk.as_string::<i64>()),
                DataType::Utf8View => texts.extend(chunk.as_string_view()),
                _ => texts.extend(std::iter::repeat_n(None, chunk.len())), // Null
            }
        }
        texts
    }
}

fn is_arrow(argument: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(argument.hasattr("__arrow_c_array__")? || argument.hasattr("__arrow_c_stream__")?)
}
