//! Each cause to its own Python exception.

use arrow_schema::ArrowError;
use mia_kernels::KernelError;
use pyo3::PyErr;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3_arrow::error::PyArrowError;
use thiserror::Error;

/// Why a call from Python gives no array.
#[derive(Debug, Error)]
pub(crate) enum NativeError {
    #[error("{name} must be an Arrow column of strings, not {found}; cast it")]
    NotText { name: &'static str, found: String },
    #[error("{name} has bytes that are not UTF-8 in row {row}, counted from 0; decode them anew")]
    NotUtf8 { name: &'static str, row: usize },
    #[error("{name} is not a valid Arrow column: {cause}; make it again")]
    NotValid {
        name: &'static str,
        cause: ArrowError,
    },
    #[error("{name} has {n_rows} rows, more than memory holds; cut it")]
    TooManyRows { name: &'static str, n_rows: usize },
    #[error("{name} is {found}; use {allowed}")]
    NotAllowed {
        name: &'static str,
        found: String,
        allowed: &'static str,
    },
    #[error("{name} must be an Arrow column of UInt32 without nulls")]
    NotNumbers { name: &'static str },
    #[error("{name} must be an Arrow column of large lists of Float64; cast it")]
    NotLists { name: &'static str },
    #[error("{} has {} rows and {} {}; pass columns of one length", .0.0, .0.1, .1.0, .1.1)]
    UnequalLengths((&'static str, usize), (&'static str, usize)),
    #[error("unknown word rule {0:?}; use those of mia_batch.kernels.WORD_RULES")]
    UnknownRule(String),
    #[error("unknown group {0:?}; use those of mia_batch.kernels.GROUPS")]
    UnknownGroup(String),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Arrow(#[from] PyArrowError),
    #[error(transparent)]
    Python(#[from] PyErr),
}

impl From<NativeError> for PyErr {
    fn from(error: NativeError) -> Self {
        let message = error.to_string();
        match error {
            NativeError::NotText { .. }
            | NativeError::NotNumbers { .. }
            | NativeError::NotLists { .. } => PyTypeError::new_err(message),
            NativeError::NotUtf8 { .. }
            | NativeError::NotValid { .. }
            | NativeError::TooManyRows { .. }
            | NativeError::NotAllowed { .. }
            | NativeError::UnequalLengths(..)
            | NativeError::UnknownRule(_)
            | NativeError::UnknownGroup(_)
            | NativeError::Kernel(_) => PyValueError::new_err(message),
            NativeError::Arrow(error) => error.into(),
            NativeError::Python(error) => error,
        }
    }
}

/// A number that is out of range.
pub(crate) fn not_allowed(
    name: &'static str,
    found: &impl ToString,
    allowed: &'static str,
) -> NativeError {
    NativeError::NotAllowed {
        name,
        found: found.to_string(),
        allowed,
    }
}

/// Refuses 0.
pub(crate) fn positive<T: Default + PartialEq>(
    name: &'static str,
    number: T,
) -> Result<T, NativeError> {
    if number == T::default() {
        return Err(not_allowed(name, &0, "a whole number, at least 1"));
    }
    Ok(number)
}
