//! Lists of numbers from Python, and one number of each.

use std::sync::Arc;

use arrow_array::Float64Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_schema::DataType;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;

use crate::columns::{checked, import};
use crate::error::{NativeError, not_allowed, positive};
use crate::rows::map_rows;

/// `Float64`: words of the parse over the number of values, of each list of log-probabilities.
#[pyfunction]
#[pyo3(signature = (logprobs, *, bins))]
pub(crate) fn lempel_ziv_complexity(
    py: Python<'_>,
    logprobs: &Bound<'_, PyAny>,
    bins: u32,
) -> Result<PyArray, NativeError> {
    let bins = positive("bins", bins)?;
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
    let m = positive("m", m)?;
    if !r.is_finite() || r < 0.0 {
        return Err(not_allowed("r", &r, "a finite number, 0 or more"));
    }
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
    let (chunks, field) = import(name, argument)?.into_inner();
    match field.data_type() {
        DataType::LargeList(item) if *item.data_type() == DataType::Float64 => {}
        _ => return Err(NativeError::NotLists { name }),
    }
    py.detach(|| {
        let mut found = Vec::new();
        for chunk in chunks {
            let chunk = checked(chunk).map_err(|cause| NativeError::NotValid { name, cause })?;
            let lists: Vec<_> = chunk.as_list::<i64>().iter().collect();
            let rows = lists.iter().map(Option::as_ref);
            let rows = rows.map(|list| list.map(AsArray::as_primitive::<Float64Type>));
            let rows: Vec<_> = rows.collect();
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
