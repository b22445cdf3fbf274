//! Counts that compare two texts: words, shared n-grams, compressed size.
//!
//! The crate knows nothing of Python or Arrow. [`PairReader`] reads a candidate and a
//! reference once and gives the [`Group`]s of numbers it was asked for; [`zlib_size`] and
//! [`WordRule`] serve texts that stand alone, and [`RunIndex`] finds what a text shares with any
//! of many; [`RecallReader`] and [`BookCoverage`] measure how much of a
//! book long generations give back. Readers keep their buffers, so a batch allocates nothing per word.
//! [`lempel_ziv_complexity`] and [`approximate_entropy`] read numbers instead of texts.

mod automaton;
mod bits;
mod blocks;
mod book_coverage;
mod candidate;
mod character_runs;
mod characters;
mod complexity;
mod coverage;
mod distinct;
mod duplicates;
mod error;
mod features;
mod filter;
mod foresight;
mod group;
mod joined;
mod kernel;
mod lcs;
mod leading;
mod letters;
mod limits;
mod longest_run;
mod marks;
mod near_verbatim;
mod ngram;
mod numbers;
mod passages;
mod places;
mod rarity;
mod recall;
mod reference;
mod scan;
mod size;
mod spans;
mod vectorize;
mod vocabulary;
mod words;
mod zlib;

pub use book_coverage::{BookCoverage, CoverageRules, Covered, LONG_SPAN_WORDS};
pub use complexity::{approximate_entropy, lempel_ziv_complexity};
pub use duplicates::{RunIndex, RunReader, SharedRuns};
pub use error::{KernelError, MAX_BYTES};
pub use features::{PairReader, Settings};
pub use foresight::{Foreseen, foreseen_words};
pub use group::Group;
pub use passages::Passage;
pub use rarity::{Frequencies, RARITY_MAX_N, Rarity, RarityReader};
pub use recall::{Recall, RecallReader};
pub use size::zlib_size;
pub use words::{WordRule, Words};
pub use zlib::ZlibSizer;
