//! Each cause to its own Python exception.

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
    #[error("{name} must be an Arrow column of UInt32 without nulls")]
    NotNumbers { name: &'static str },
    #[error("{name} must be an Arrow column of large lists of Float64; cast it")]
    NotLists { name: &'static str },
    #[error("candidate has {candidate} rows and reference {reference}; pass columns of one length")]
    UnequalLengths { candidate: usize, reference: usize },
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
            | NativeError::UnequalLengths { .. }
            | NativeError::UnknownRule(_)
            | NativeError::UnknownGroup(_)
            | NativeError::Kernel(_) => PyValueError::new_err(message),
            NativeError::Arrow(error) => error.into(),
            NativeError::Python(error) => error,
        }
    }
}
