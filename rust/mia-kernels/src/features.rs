//! Everything about one pair of texts from one reading of both.

use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::ngram::{MAX_N, NgramIndex, OverlapCounter};
use crate::words::WordRule;
use crate::zlib::ZlibSizer;

/// Numbers about the words of a candidate, against its reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateFeatures {
    /// Words.
    pub words: u32,
    /// n-grams shared with the reference for n = 1, 2, ..., each counted at most as often as
    /// it occurs on both sides.
    pub overlaps: [u32; MAX_N],
    /// Bytes of the zlib stream of the words joined by single spaces.
    pub zlib: u32,
}

/// Numbers that compare a candidate with its reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairFeatures {
    /// Words of the reference.
    pub words_reference: u32,
    /// The candidate as it stands.
    pub candidate: CandidateFeatures,
    /// The candidate cut to the reference's number of words.
    pub matched: CandidateFeatures,
}

/// Reads pairs one after the other and keeps what the next one can use again: the buffers,
/// and the reference if it comes again.
pub struct PairReader {
    rule: WordRule,
    reference: Option<String>,
    index: NgramIndex,
    counter: OverlapCounter,
    /// The candidate's words joined by single spaces.
    joined: Vec<u8>,
    sizer: ZlibSizer,
}

impl PairReader {
    /// A reader that cuts texts into words by `rule`.
    pub fn new(rule: WordRule) -> Self {
        Self {
            rule,
            reference: None,
            index: NgramIndex::default(),
            counter: OverlapCounter::default(),
            joined: Vec::new(),
            sizer: ZlibSizer::default(),
        }
    }

    /// The features of one pair.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if a text has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn read(&mut self, candidate: &str, reference: &str) -> Result<PairFeatures, KernelError> {
        check_length(candidate.as_bytes())?;
        check_length(reference.as_bytes())?;
        self.read_reference(reference);
        self.counter.start(&self.index);
        self.joined.clear();

        let mut words = self.rule.words(candidate);
        let matching = self.push(words.by_ref().take(self.index.n_words()));
        let matched = self.features(matching)?;
        let further = self.push(words);
        let candidate = match further {
            0 => matched,
            _ => self.features(matching + further)?,
        };
        Ok(PairFeatures {
            words_reference: number(self.index.n_words()),
            candidate,
            matched,
        })
    }

    fn read_reference(&mut self, reference: &str) {
        if self.reference.as_deref() != Some(reference) {
            self.index.read(reference, self.rule);
            reference.clone_into(self.reference.get_or_insert_default());
        }
    }

    /// Takes the next words of the candidate and says how many they were.
    fn push<'a>(&mut self, words: impl Iterator<Item = &'a [u8]>) -> u32 {
        let mut n_words = 0;
        for word in words {
            self.counter.push(word, &self.index);
            if !self.joined.is_empty() {
                self.joined.push(b' ');
            }
            self.joined.extend_from_slice(word);
            n_words += 1;
        }
        n_words
    }

    fn features(&mut self, words: u32) -> Result<CandidateFeatures, KernelError> {
        Ok(CandidateFeatures {
            words,
            overlaps: self.counter.matched(),
            zlib: self.sizer.size(&self.joined)?,
        })
    }
}
