//! The kernels of mia-batch for Python: Arrow arrays in, Arrow arrays out, without the GIL.

mod columns;
mod complexity;
mod duplicates;
mod error;
mod features;
mod parts;
mod passages;
mod rarity;
mod rows;
mod spans;

use std::sync::Arc;

use arrow_array::UInt32Array;
use mia_kernels::{BookCoverage, CoverageRules, Group, PairReader, RunReader, Settings, WordRule};
use pyo3::prelude::*;
use pyo3_arrow::PyArray;

use crate::columns::TextColumn;
use crate::complexity::{approximate_entropy, lempel_ziv_complexity};
use crate::duplicates::compare_runs;
use crate::error::{NativeError, positive};
use crate::features::{Pair, struct_array};
use crate::rarity::RarityTable;
use crate::rows::map_rows;

/// Struct of `UInt32` per pair, null where either side is null.
#[pyfunction]
#[pyo3(signature = (candidate, reference, *, words, groups, near_verbatim_min_words))]
fn pair_features(
    py: Python<'_>,
    candidate: &Bound<'_, PyAny>,
    reference: &Bound<'_, PyAny>,
    words: &str,
    groups: Vec<String>,
    near_verbatim_min_words: u32,
) -> Result<PyArray, NativeError> {
    let candidate = TextColumn::import("candidate", candidate)?;
    let reference = TextColumn::import("reference", reference)?;
    let settings = Settings {
        words: word_rule(words)?,
        groups: chosen(groups)?,
        near_verbatim_min_words: positive("near_verbatim_min_words", near_verbatim_min_words)?,
    };
    py.detach(|| {
        let (candidate, reference) = (candidate.texts()?, reference.texts()?);
        let pairs = zip(("candidate", &candidate), ("reference", &reference))?;
        let array = struct_array(&pairs, &settings)?;
        Ok(PyArray::from_array_ref(Arc::new(array)))
    })
}

/// Names of the fields that `pair_features` gives for these groups, in order.
#[pyfunction]
fn pair_fields(groups: Vec<String>) -> Result<Vec<String>, NativeError> {
    let settings = Settings {
        words: WordRule::Whitespace,
        groups: chosen(groups)?,
        near_verbatim_min_words: 1,
    };
    Ok(PairReader::new(&settings).fields())
}

/// `UInt32`: bytes of the text after zlib at level 6.
#[pyfunction]
fn zlib_size(py: Python<'_>, text: &Bound<'_, PyAny>) -> Result<PyArray, NativeError> {
    let text = TextColumn::import("text", text)?;
    py.detach(|| {
        let size = |(): &mut (), text: &str| mia_kernels::zlib_size(text.as_bytes());
        let sizes = map_rows(&text.texts()?, || (), size)?;
        Ok(array(sizes))
    })
}

/// `UInt32`: words of the text.
#[pyfunction]
#[pyo3(signature = (text, *, words))]
fn count_words(
    py: Python<'_>,
    text: &Bound<'_, PyAny>,
    words: &str,
) -> Result<PyArray, NativeError> {
    let text = TextColumn::import("text", text)?;
    let rule = word_rule(words)?;
    py.detach(|| {
        let counts = map_rows(&text.texts()?, || (), |(), text| rule.count(text))?;
        Ok(array(counts))
    })
}

/// Struct of `UInt32` per text: its runs of words, those that some of the others has, and which.
#[pyfunction]
#[pyo3(signature = (text, others, *, words, run_words))]
fn shared_runs(
    py: Python<'_>,
    text: &Bound<'_, PyAny>,
    others: &Bound<'_, PyAny>,
    words: &str,
    run_words: usize,
) -> Result<PyArray, NativeError> {
    let text = TextColumn::import("text", text)?;
    let others = TextColumn::import("others", others)?;
    let rule = word_rule(words)?;
    let run_words = positive("run_words", run_words)?;
    py.detach(|| {
        let new_reader = || RunReader::new(rule, run_words);
        let array = compare_runs(&text.texts()?, &others.texts()?, new_reader)?;
        Ok(PyArray::from_array_ref(Arc::new(array)))
    })
}

/// Struct per text of two lists of `UInt32`: where its words start and end, in characters.
#[pyfunction]
#[pyo3(signature = (text, *, words))]
fn word_spans(
    py: Python<'_>,
    text: &Bound<'_, PyAny>,
    words: &str,
) -> Result<PyArray, NativeError> {
    let text = TextColumn::import("text", text)?;
    let rule = word_rule(words)?;
    py.detach(|| {
        let array = spans::spans(&text.texts()?, rule)?;
        Ok(PyArray::from_array_ref(Arc::new(array)))
    })
}

/// Struct per pair of two lists of `UInt32`: words of the text that could be foreseen, by their
/// numbers, and those of stretches of which half could be.
#[pyfunction]
#[pyo3(signature = (before, text, *, words))]
fn foreseen_words(
    py: Python<'_>,
    before: &Bound<'_, PyAny>,
    text: &Bound<'_, PyAny>,
    words: &str,
) -> Result<PyArray, NativeError> {
    let before = TextColumn::import("before", before)?;
    let text = TextColumn::import("text", text)?;
    let rule = word_rule(words)?;
    py.detach(|| {
        let pairs = zip(("before", &before.texts()?), ("text", &text.texts()?))?;
        let array = spans::foreseen(&pairs, rule)?;
        Ok(PyArray::from_array_ref(Arc::new(array)))
    })
}

/// Struct per pair: words of both, and passages of the book that the generation repeats.
#[pyfunction]
#[pyo3(signature = (generation, book, *, words))]
fn near_verbatim_passages(
    py: Python<'_>,
    generation: &Bound<'_, PyAny>,
    book: &Bound<'_, PyAny>,
    words: &str,
) -> Result<PyArray, NativeError> {
    let generation = TextColumn::import("generation", generation)?;
    let book = TextColumn::import("book", book)?;
    let rule = word_rule(words)?;
    py.detach(|| {
        let (generation, book) = (generation.texts()?, book.texts()?);
        let pairs = zip(("generation", &generation), ("book", &book))?;
        let array = passages::recalls(&pairs, rule)?;
        Ok(PyArray::from_array_ref(Arc::new(array)))
    })
}

/// One struct: what of a book any of the generations covers.
#[pyfunction]
#[pyo3(signature = (book, generations, instructions, *, words, min_words, trim_words))]
fn book_coverage(
    py: Python<'_>,
    book: &str,
    generations: &Bound<'_, PyAny>,
    instructions: &Bound<'_, PyAny>,
    words: &str,
    min_words: usize,
    trim_words: usize,
) -> Result<PyArray, NativeError> {
    let generations = TextColumn::import("generations", generations)?;
    let instructions = TextColumn::import("instructions", instructions)?;
    let rules = CoverageRules {
        words: word_rule(words)?,
        min_words: positive("min_words", min_words)?,
        trim_words: positive("trim_words", trim_words)?,
    };
    py.detach(|| {
        let book = BookCoverage::new(book, rules)?;
        let (generations, instructions) = (generations.texts()?, instructions.texts()?);
        check_lengths(
            ("generations", &generations),
            ("instructions", &instructions),
        )?;
        let array = passages::coverage(&book, &generations, &instructions)?;
        Ok(PyArray::from_array_ref(Arc::new(array)))
    })
}

/// How the module was compiled: "release" or "debug".
#[pyfunction]
fn build_profile() -> &'static str {
    if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    }
}

fn word_rule(name: &str) -> Result<WordRule, NativeError> {
    name.parse()
        .map_err(|_| NativeError::UnknownRule(name.to_owned()))
}

fn chosen(names: Vec<String>) -> Result<Vec<Group>, NativeError> {
    let group = |name: String| name.parse().map_err(|_| NativeError::UnknownGroup(name));
    names.into_iter().map(group).collect()
}

/// Refuses columns of different lengths.
fn check_lengths<A, B>(
    (name, one): (&'static str, &[A]),
    (other_name, other): (&'static str, &[B]),
) -> Result<(), NativeError> {
    if one.len() == other.len() {
        return Ok(());
    }
    Err(NativeError::UnequalLengths(
        (name, one.len()),
        (other_name, other.len()),
    ))
}

/// Rows of both columns; null where either side is null.
fn zip<'a>(
    one: (&'static str, &[Option<&'a str>]),
    other: (&'static str, &[Option<&'a str>]),
) -> Result<Vec<Pair<'a>>, NativeError> {
    check_lengths(one, other)?;
    let rows = one.1.iter().zip(other.1);
    Ok(rows.map(|(one, other)| one.zip(*other)).collect())
}

fn array(values: Vec<Option<u32>>) -> PyArray {
    PyArray::from_array_ref(Arc::new(UInt32Array::from(values)))
}

/// The compiled part of `mia_batch`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(pair_features, module)?)?;
    module.add_function(wrap_pyfunction!(pair_fields, module)?)?;
    module.add_function(wrap_pyfunction!(zlib_size, module)?)?;
    module.add_function(wrap_pyfunction!(count_words, module)?)?;
    module.add_function(wrap_pyfunction!(shared_runs, module)?)?;
    module.add_function(wrap_pyfunction!(word_spans, module)?)?;
    module.add_function(wrap_pyfunction!(foreseen_words, module)?)?;
    module.add_function(wrap_pyfunction!(near_verbatim_passages, module)?)?;
    module.add_function(wrap_pyfunction!(book_coverage, module)?)?;
    module.add_function(wrap_pyfunction!(lempel_ziv_complexity, module)?)?;
    module.add_function(wrap_pyfunction!(approximate_entropy, module)?)?;
    module.add_class::<RarityTable>()?;
    module.add_function(wrap_pyfunction!(build_profile, module)?)
}
