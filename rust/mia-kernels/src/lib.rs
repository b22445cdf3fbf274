//! Counts that compare two texts: words, shared n-grams, compressed size.
//!
//! The crate knows nothing of Python or Arrow. [`PairReader`] reads a candidate and a
//! reference once and gives their [`PairFeatures`]; [`ZlibSizer`] and [`WordRule`] serve
//! texts that stand alone. Readers keep their buffers, so a batch allocates nothing per word.

mod error;
mod features;
mod limits;
mod ngram;
mod words;
mod zlib;

pub use error::KernelError;
pub use features::{CandidateFeatures, PairFeatures, PairReader};
pub use limits::MAX_BYTES;
pub use ngram::MAX_N;
pub use words::{WordRule, Words};
pub use zlib::{ZlibSizer, zlib_version};
