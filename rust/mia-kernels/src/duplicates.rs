//! Runs of words that a text shares with any of many others.

use std::hash::{DefaultHasher, Hash, Hasher};

use hashbrown::HashMap;

use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::words::WordRule;

/// Reads the runs of so many words that texts have.
#[derive(Debug)]
pub struct RunReader {
    rule: WordRule,
    run_words: usize,
    words: Vec<u64>,
}

impl RunReader {
    /// A reader of runs of `run_words` words, at least 1.
    pub fn new(rule: WordRule, run_words: usize) -> Self {
        Self {
            rule,
            run_words: run_words.max(1),
            words: Vec::new(),
        }
    }

    /// Hash of each run of `text`, in order; none where it has fewer words.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn runs(&mut self, text: &str) -> Result<impl Iterator<Item = u64> + '_, KernelError> {
        check_length(text.as_bytes())?;
        let spelled = self.rule.spell(text);
        self.words.clear();
        self.words.extend(self.rule.words(&spelled).map(hash));
        Ok(self.words.windows(self.run_words).map(hash))
    }
}

/// A hash of 64 bits, the same in every process: two runs in 2^64 have the same by chance.
fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The runs of many texts, in 20 to 40 bytes each.
#[derive(Debug, Default)]
pub struct RunIndex {
    /// Each run with the first text that has it.
    first_text: HashMap<u64, u32>,
}

impl RunIndex {
    /// An index of the runs of texts, which are numbered from 0.
    pub fn new(texts: &[Vec<u64>]) -> Self {
        let n_runs = texts.iter().map(Vec::len).sum();
        let mut first_text = HashMap::with_capacity(n_runs);
        for (text, runs) in (0..).zip(texts) {
            for run in runs {
                first_text.entry(*run).or_insert(text);
            }
        }
        Self { first_text }
    }

    /// What a text has in common with those of the index.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn compare(&self, reader: &mut RunReader, text: &str) -> Result<SharedRuns, KernelError> {
        let (mut runs, mut shared, mut other) = (0, 0, None);
        for run in reader.runs(text)? {
            runs += 1;
            if let Some(first) = self.first_text.get(&run) {
                shared += 1;
                other = other.or(Some(*first));
            }
        }
        Ok(SharedRuns {
            runs: number(runs),
            shared: number(shared),
            other,
        })
    }
}

/// Runs of one text that others have, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRuns {
    /// Runs of the text, each place counted.
    pub runs: u32,
    /// Those among them that some other text has.
    pub shared: u32,
    /// The first text that has the first of these.
    pub other: Option<u32>,
}
