//! Where words stand, as an Arrow struct array of lists.

use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, StructArray, UInt32Array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use mia_kernels::WordRule;
use pyo3_arrow::error::PyArrowError;

use crate::error::NativeError;
use crate::rows::map_rows;

/// First characters of a text's words, and characters behind their last.
type Spans = [Vec<u32>; 2];

/// One struct per text with a list of `starts` and one of `ends`; null where the text is.
pub(crate) fn struct_array(
    texts: &[Option<&str>],
    rule: WordRule,
) -> Result<StructArray, NativeError> {
    let spans = map_rows(
        texts,
        || (),
        |(), text| {
            let [mut starts, mut ends] = Spans::default();
            rule.spans(text, |start, end| {
                starts.push(start);
                ends.push(end);
            })?;
            Ok([starts, ends])
        },
    )?;
    let valid: NullBuffer = texts.iter().map(Option::is_some).collect();
    let starts = lists(&spans, |[starts, _]| starts, &valid)?;
    let ends = lists(&spans, |[_, ends]| ends, &valid)?;
    let field = |name, column: &ArrayRef| Field::new(name, column.data_type().clone(), true);
    let fields = Fields::from(vec![field("starts", &starts), field("ends", &ends)]);
    let array = StructArray::try_new(fields, vec![starts, ends], Some(valid));
    Ok(array.map_err(PyArrowError::from)?)
}

fn lists(
    spans: &[Option<Spans>],
    side: impl Fn(&Spans) -> &Vec<u32>,
    valid: &NullBuffer,
) -> Result<ArrayRef, NativeError> {
    let lists = spans
        .iter()
        .map(|spans| spans.as_ref().map_or(&[][..], |spans| side(spans)));
    let offsets = OffsetBuffer::from_lengths(lists.clone().map(<[u32]>::len));
    let values: Vec<u32> = lists.flatten().copied().collect();
    let item = Arc::new(Field::new("item", DataType::UInt32, true));
    let values = Arc::new(UInt32Array::from(values));
    let array = LargeListArray::try_new(item, offsets, values, Some(valid.clone()));
    Ok(Arc::new(array.map_err(PyArrowError::from)?))
}
