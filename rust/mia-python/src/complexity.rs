//! Lists of numbers from Python, and one number of each.

use std::sync::Arc;

use arrow_array::Float64Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use pyo3_arrow::input::AnyArray;

use crate::error::NativeError;
use crate::rows::map_rows;

/// `Float64`: words of the parse over the number of values, of each list of log-probabilities.
#[pyfunction]
#[pyo3(signature = (logprobs, *, bins))]
pub(crate) fn lempel_ziv_complexity(
    py: Python<'_>,
    logprobs: &Bound<'_, PyAny>,
    bins: u32,
) -> Result<PyArray, NativeError> {
    numbers_of(py, "logprobs", logprobs, |list| {
        mia_kernels::lempel_ziv_complexity(list, bins)
    })
}

/// `Float64`: approximate entropy of each list of numbers.
#[pyfunction]
#[pyo3(signature = (values, *, m, r))]
pub(crate) fn approximate_entropy(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    m: u32,
    r: f64,
) -> Result<PyArray, NativeError> {
    numbers_of(py, "values", values, |list| {
        mia_kernels::approximate_entropy(list, m as usize, r)
    })
}

/// One number of each list, whose nulls are left out.
fn numbers_of(
    py: Python<'_>,
    name: &'static str,
    argument: &Bound<'_, PyAny>,
    number: impl Fn(&[f64]) -> Option<f64> + Send + Sync,
) -> Result<PyArray, NativeError> {
    let array: AnyArray = argument.extract()?;
    let (chunks, _) = array.into_chunked_array()?.into_inner();
    py.detach(|| {
        let mut found = Vec::new();
        for chunk in &chunks {
            let lists = chunk.as_list_opt::<i64>();
            let lists: Vec<_> = lists
                .ok_or(NativeError::NotLists { name })?
                .iter()
                .collect();
            let rows = lists.iter().map(|list| {
                let numbers = list.as_ref().map(AsArray::as_primitive_opt::<Float64Type>);
                let numbers = numbers.map(|numbers| numbers.ok_or(NativeError::NotLists { name }));
                numbers.transpose()
            });
            let rows = rows.collect::<Result<Vec<_>, _>>()?;
            let read = |(): &mut (), list: &Float64Array| {
                let values: Vec<_> = list.iter().flatten().collect();
                Ok(number(&values))
            };
            found.extend(map_rows(&rows, || (), read)?);
        }
        let found: Float64Array = found.into_iter().map(Option::flatten).collect();
        Ok(PyArray::from_array_ref(Arc::new(found)))
    })
}
