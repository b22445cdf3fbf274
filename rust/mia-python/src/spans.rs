//! Numbers of words and where words stand, as Arrow struct arrays of lists.

use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, StructArray, UInt32Array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use mia_kernels::{WordRule, foreseen_words};
use pyo3_arrow::error::PyArrowError;

use crate::error::NativeError;
use crate::features::Pair;
use crate::rows::map_rows;

/// Two lists of one text.
type Lists = [Vec<u32>; 2];

/// One struct per text with a list of `starts` and one of `ends`; null where the text is.
pub(crate) fn spans(texts: &[Option<&str>], rule: WordRule) -> Result<StructArray, NativeError> {
    let spans = map_rows(
        texts,
        || (),
        |(), text| {
            let [mut starts, mut ends] = Lists::default();
            rule.spans(text, |start, end| {
                starts.push(start);
                ends.push(end);
            })?;
            Ok([starts, ends])
        },
    )?;
    struct_array(&spans, ["starts", "ends"])
}

/// One struct per pair with a list of `foreseen` words and one of those that are `cut`.
pub(crate) fn foreseen(pairs: &[Pair<'_>], rule: WordRule) -> Result<StructArray, NativeError> {
    let read = |(): &mut (), (before, text): (&str, &str)| {
        let found = foreseen_words(before, text, rule)?;
        Ok([found.words, found.cut])
    };
    struct_array(&map_rows(pairs, || (), read)?, ["foreseen", "cut"])
}

fn struct_array(rows: &[Option<Lists>], names: [&str; 2]) -> Result<StructArray, NativeError> {
    let valid: NullBuffer = rows.iter().map(Option::is_some).collect();
    let first = lists(rows, |[first, _]| first, &valid)?;
    let second = lists(rows, |[_, second]| second, &valid)?;
    let columns = vec![first, second];
    let fields = names.iter().zip(&columns);
    let fields: Fields = fields
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let array = StructArray::try_new(fields, columns, Some(valid));
    Ok(array.map_err(PyArrowError::from)?)
}

fn lists(
    rows: &[Option<Lists>],
    side: impl Fn(&Lists) -> &Vec<u32>,
    valid: &NullBuffer,
) -> Result<ArrayRef, NativeError> {
    let lists = rows
        .iter()
        .map(|row| row.as_ref().map_or(&[][..], |row| side(row)));
    let offsets = OffsetBuffer::from_lengths(lists.clone().map(<[u32]>::len));
    let values: Vec<u32> = lists.flatten().copied().collect();
    let item = Arc::new(Field::new("item", DataType::UInt32, true));
    let values = Arc::new(UInt32Array::from(values));
    let array = LargeListArray::try_new(item, offsets, values, Some(valid.clone()));
    Ok(Arc::new(array.map_err(PyArrowError::from)?))
}
