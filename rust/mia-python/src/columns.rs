//! Columns from Python, in whatever Arrow layout they come, and checked before they are read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, DataType};
use pyo3::prelude::*;
use pyo3_arrow::PyChunkedArray;
use pyo3_arrow::error::PyArrowError;
use pyo3_arrow::input::AnyArray;

use crate::error::NativeError;
use crate::parts::map_parts;

/// Fewest rows that a core looks through.
const MIN_ROWS: usize = 64;

/// Takes the chunks of an Arrow column; what they say of their values is still to be checked.
pub(crate) fn import(
    name: &'static str,
    argument: &Bound<'_, PyAny>,
) -> Result<PyChunkedArray, NativeError> {
    let import = || argument.extract::<AnyArray>()?.into_chunked_array();
    match catch_unwind(AssertUnwindSafe(import)) {
        Ok(Err(PyArrowError::ArrowError(cause))) => Err(NativeError::NotValid { name, cause }),
        Ok(chunks) => Ok(chunks?),
        // Arrow trusts a column's structure, and panics where its parts do not fit together.
        Err(_) => {
            let cause = ArrowError::CDataInterface("its parts do not fit together".to_owned());
            Err(NativeError::NotValid { name, cause })
        }
    }
}

/// The same array, if its values lie within its buffers.
pub(crate) fn checked(array: ArrayRef) -> Result<ArrayRef, ArrowError> {
    // Arrow imports an empty slice without its values, so that its offsets lie beyond them.
    if !array.is_empty() {
        array.to_data().validate_full()?;
    }
    Ok(array)
}

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
        let (chunks, field) = import(name, argument)?.into_inner();
        let bytes: fn(&ArrayRef) -> Result<ArrayRef, ArrowError> = match field.data_type() {
            DataType::Utf8 => {
                |chunk| checked(Arc::new(BinaryArray::from(chunk.as_string().clone())))
            }
            DataType::LargeUtf8 => {
                |chunk| checked(Arc::new(LargeBinaryArray::from(chunk.as_string().clone())))
            }
            DataType::Utf8View => |chunk| Ok(Arc::new(viewed(chunk)?)),
            DataType::Null => |chunk| Ok(Arc::clone(chunk)),
            other => return Err(not_text(other.to_string())),
        };
        let chunks = chunks.iter().map(bytes).collect::<Result<_, _>>();
        let chunks = chunks.map_err(|cause| NativeError::NotValid { name, cause })?;
        Ok(Self { name, chunks })
    }

    /// The texts, row by row; an error if one is no UTF-8.
    pub(crate) fn texts(&self) -> Result<Vec<Option<&str>>, NativeError> {
        let n_rows = self.chunks.iter().map(Array::len);
        let n_rows = n_rows.fold(0, usize::saturating_add);
        let mut texts = Vec::new();
        let room = texts.try_reserve_exact(n_rows); // nulls of no type take none in the column
        room.map_err(|_| NativeError::TooManyRows {
            name: self.name,
            n_rows,
        })?;
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

/// The same bytes, if they lie within the buffers; the views of nulls may be anything.
fn viewed(chunk: &ArrayRef) -> Result<BinaryViewArray, ArrowError> {
    let texts = chunk.as_string_view();
    let mut sizes = texts.data_buffers().iter().map(Buffer::len);
    if sizes.any(|size| isize::try_from(size).is_err()) {
        let cause = "a buffer has a negative size";
        return Err(ArrowError::CDataInterface(cause.to_owned()));
    }
    let views = texts.views().iter().enumerate();
    let views = views.map(|(row, view)| if texts.is_valid(row) { *view } else { 0 });
    BinaryViewArray::try_new(
        views.collect(),
        texts.data_buffers(),
        texts.nulls().cloned(),
    )
}

fn is_arrow(argument: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(argument.hasattr("__arrow_c_array__")? || argument.hasattr("__arrow_c_stream__")?)
}
