//! Text columns from Python, in whatever Arrow layout they come.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, LargeBinaryArray};
use arrow_schema::DataType;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;

use crate::error::NativeError;
use crate::parts::map_parts;

/// Fewest rows that a core looks through.
const MIN_ROWS: usize = 64;

/// A column of texts, some of them null.
pub(crate) struct TextColumn {
    name: &'static str,
    /// As bytes, because others made them and nothing has to be true of them.
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
        let bytes: fn(&ArrayRef) -> ArrayRef = match field.data_type() {
            DataType::Utf8 => |chunk| Arc::new(BinaryArray::from(chunk.as_string().clone())),
            DataType::LargeUtf8 => {
                |chunk| Arc::new(LargeBinaryArray::from(chunk.as_string().clone()))
            }
            DataType::Utf8View => |chunk| Arc::new(chunk.as_string_view().clone().to_binary_view()),
            DataType::Null => Arc::clone,
            other => return Err(not_text(other.to_string())),
        };
        let chunks = chunks.iter().map(bytes).collect();
        Ok(Self { name, chunks })
    }

    /// The texts, row by row; an error if one is no UTF-8.
    pub(crate) fn texts(&self) -> Result<Vec<Option<&str>>, NativeError> {
        let n_rows = self.chunks.iter().map(Array::len).sum();
        let mut texts = Vec::with_capacity(n_rows);
        for chunk in &self.chunks {
            match chunk.data_type() {
                DataType::Binary => texts.extend(chunk.as_binary::<i32>()),
                DataType::LargeBinary => texts.extend(chunk.as_binary::<i64>()),
                DataType::BinaryView => texts.extend(chunk.as_binary_view()),
                _ => texts.extend(std::iter::repeat_n(None, chunk.len())), // Null
            }
        }
        let parts = map_parts(
            &texts,
            MIN_ROWS,
            || (),
            |(), before, texts| {
                let texts = texts.iter().enumerate().map(|(row, text)| {
                    let text = text.map(simdutf8::basic::from_utf8).transpose();
                    text.map_err(|_| NativeError::NotUtf8 {
                        name: self.name,
                        row: before + row,
                    })
                });
                texts.collect::<Result<Vec<_>, _>>()
            },
        )?;
        Ok(parts.into_iter().flatten().collect())
    }
}

fn is_arrow(argument: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(argument.hasattr("__arrow_c_array__")? || argument.hasattr("__arrow_c_stream__")?)
}
