//! What every group of numbers is computed from, and how.

use crate::error::KernelError;
use crate::vocabulary::Vocabulary;
use crate::words::WordRule;

/// A number of a pair; `None` where it is undefined.
pub(crate) type Number = Option<u32>;

/// Stands for every word that the reference does not have.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// One side of many pairs, read once.
#[derive(Default)]
pub(crate) struct Reference {
    text: Option<String>,
    pub(crate) vocabulary: Vocabulary,
    /// Its words, by their numbers in the vocabulary.
    pub(crate) words: Vec<u32>,
}

impl Reference {
    /// Reads `text` and says whether it differs from the text before.
    pub(crate) fn read(&mut self, text: &str, rule: WordRule) -> bool {
        if self.text.as_deref() == Some(text) {
            return false;
        }
        text.clone_into(self.text.get_or_insert_default());
        self.vocabulary.clear();
        self.words.clear();
        for word in rule.words(text) {
            self.words.push(self.vocabulary.intern(word));
        }
        true
    }
}

/// The words of one candidate.
#[derive(Default)]
pub(crate) struct Candidate {
    /// Their numbers in the reference's vocabulary; those it does not have are not below its
    /// length.
    words: Vec<u32>,
    /// The words joined by single spaces.
    joined: Vec<u8>,
    /// Where each word ends in `joined`.
    ends: Vec<usize>,
}

impl Candidate {
    pub(crate) fn read(&mut self, text: &str, rule: WordRule, vocabulary: &Vocabulary) {
        self.words.clear();
        self.joined.clear();
        self.ends.clear();
        for word in rule.words(text) {
            if !self.joined.is_empty() {
                self.joined.push(b' ');
            }
            self.joined.extend_from_slice(word);
            self.words.push(vocabulary.get(word).unwrap_or(UNKNOWN));
            self.ends.push(self.joined.len());
        }
    }

    pub(crate) fn n_words(&self) -> usize {
        self.words.len()
    }

    /// Its first `n_words` words, of which `n_old` have been seen.
    pub(crate) fn cut(&self, n_old: usize, n_words: usize) -> Cut<'_> {
        let last = n_words.checked_sub(1);
        let end = last.and_then(|last| self.ends.get(last)).copied();
        Cut {
            words: self.words.get(..n_words).unwrap_or_default(),
            n_old,
            joined: self.joined.get(..end.unwrap_or(0)).unwrap_or_default(),
        }
    }
}

/// A candidate from its start to the end of some word.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// Its words, by their numbers in the reference's vocabulary.
    pub(crate) words: &'a [u32],
    /// How many of them the kernels have seen since the candidate's start.
    n_old: usize,
    /// Its words joined by single spaces.
    pub(crate) joined: &'a [u8],
}

impl<'a> Cut<'a> {
    /// The words that the kernels have not seen.
    pub(crate) fn new_words(self) -> &'a [u32] {
        self.words.get(self.n_old..).unwrap_or_default()
    }
}

/// Computes one group of numbers.
pub(crate) trait Kernel {
    /// Fields of [`numbers`](Self::numbers), in order.
    fn fields(&self) -> Vec<String>;

    /// Forgets the last reference and reads another.
    fn read_reference(&mut self, _: &Reference) {}

    /// Prepares for a new candidate.
    fn start(&mut self) {}

    /// Appends the numbers of a candidate that has grown to `cut`.
    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError>;
}
