//! Passages of books as Arrow lists, and what is made of them.

use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, StructArray, UInt32Array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use mia_kernels::{BookCoverage, Covered, Passage, Recall, RecallReader, WordRule};
use pyo3_arrow::error::PyArrowError;

use crate::error::NativeError;
use crate::features::Pair;
use crate::parts::map_parts;
use crate::rows::map_rows;

/// One struct per generation and book; a null pair gives a null struct with null fields.
pub(crate) fn recalls(pairs: &[Pair<'_>], rule: WordRule) -> Result<StructArray, NativeError> {
    let new_reader = || RecallReader::new(rule);
    let parts = map_parts(pairs, 1, new_reader, |reader, _, pairs| {
        let read = pairs
            .iter()
            .map(|pair| pair.map(|(generation, book)| reader.read(generation, book)));
        read.map(Option::transpose).collect::<Result<Vec<_>, _>>()
    })?;
    let recalls: Vec<_> = parts.into_iter().flatten().collect();
    let column = |number: fn(&Recall) -> u32| {
        let numbers = recalls.iter().map(|recall| recall.as_ref().map(number));
        Arc::new(numbers.collect::<UInt32Array>()) as ArrayRef
    };
    let passages = recalls
        .iter()
        .map(|recall| recall.as_ref().map(|recall| &recall.passages[..]));
    struct_array(
        vec![
            ("words_book", column(|recall| recall.words_book)),
            ("words_generation", column(|recall| recall.words_generation)),
            ("passages", lists(passages)?),
        ],
        recalls.iter().map(Option::is_some).collect(),
    )
}

/// A single struct for a book and all generations; a null generation adds nothing.
pub(crate) fn coverage(
    book: &BookCoverage,
    generations: &[Option<&str>],
    instructions: &[Option<&str>],
) -> Result<StructArray, NativeError> {
    let rows = generations.iter().zip(instructions);
    let rows: Vec<_> = rows
        .map(|(generation, instruction)| generation.map(|text| (text, *instruction)))
        .collect();
    let add = |(): &mut (), (generation, instruction)| book.add(generation, instruction);
    map_rows(&rows, || (), add)?;
    let Covered {
        words,
        blocks,
        longest_span,
        long_spans,
    } = book.covered();
    let number = |number: u32| Arc::new(UInt32Array::from(vec![number])) as ArrayRef;
    struct_array(
        vec![
            ("words_book", number(words)),
            ("longest_span_words", number(longest_span)),
            ("blocks", lists([Some(&blocks[..])].into_iter())?),
            ("long_spans", lists([Some(&long_spans[..])].into_iter())?),
        ],
        NullBuffer::new_valid(1),
    )
}

/// A list of structs per row.
fn lists<'a>(
    rows: impl Iterator<Item = Option<&'a [Passage]>> + Clone,
) -> Result<ArrayRef, NativeError> {
    let valid: NullBuffer = rows.clone().map(|row| row.is_some()).collect();
    let rows = rows.map(Option::unwrap_or_default);
    let offsets = OffsetBuffer::from_lengths(rows.clone().map(<[Passage]>::len));
    let column = |number: fn(&Passage) -> u32| {
        let numbers = rows.clone().flatten().map(number);
        Arc::new(numbers.collect::<UInt32Array>()) as ArrayRef
    };
    let columns = vec![
        ("start", column(|passage| passage.start)),
        ("end", column(|passage| passage.end)),
        ("words", column(|passage| passage.words)),
    ];
    let n_passages = rows.clone().flatten().count();
    let passages = Arc::new(struct_array(columns, NullBuffer::new_valid(n_passages))?);
    let item = Field::new("item", DataType::Struct(passages.fields().clone()), true);
    let array = LargeListArray::try_new(Arc::new(item), offsets, passages, Some(valid));
    Ok(Arc::new(array.map_err(PyArrowError::from)?))
}

fn struct_array(
    columns: Vec<(&str, ArrayRef)>,
    valid: NullBuffer,
) -> Result<StructArray, NativeError> {
    let (fields, columns): (Vec<_>, Vec<_>) = columns
        .into_iter()
        .map(|(name, column)| (Field::new(name, column.data_type().clone(), true), column))
        .unzip();
    let array = StructArray::try_new(Fields::from(fields), columns, Some(valid));
    Ok(array.map_err(PyArrowError::from)?)
}
