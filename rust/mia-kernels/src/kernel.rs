//! What every group of numbers is computed from, and how.

use crate::automaton::{Automaton, Match};
use crate::error::KernelError;
use crate::vocabulary::Vocabulary;
use crate::words::WordRule;

/// A number of a pair; `None` where it is undefined.
pub(crate) type Number = Option<u32>;

/// Stands for every word that the reference does not have.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// What the kernels need to know of the words.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// Their numbers in the reference's vocabulary.
    pub(crate) numbers: bool,
    /// The longest runs of them that the reference has.
    pub(crate) runs: bool,
    /// Their letters.
    pub(crate) letters: bool,
}

/// One side of many pairs, read once.
#[derive(Default)]
pub(crate) struct Reference {
    text: Option<String>,
    pub(crate) vocabulary: Vocabulary,
    /// Its words, by their numbers in the vocabulary.
    pub(crate) words: Vec<u32>,
    /// Every run of its words; empty if nobody asked for it.
    pub(crate) automaton: Automaton,
}

impl Reference {
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Reads `text` and says whether it differs from the text before.
    pub(crate) fn read(&mut self, text: &str, rule: WordRule, needs: Needs) -> bool {
        if self.text.as_deref() == Some(text) {
            return false;
        }
        text.clone_into(self.text.get_or_insert_default());
        self.vocabulary.clear();
        self.words.clear();
        let mut folded = Vec::new();
        for word in rule.words(text) {
            folded.clear();
            rule.fold(word, &mut folded);
            self.words.push(self.vocabulary.intern(&folded));
        }
        if needs.runs {
            self.automaton.read(self.words.iter().copied());
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
    /// The longest run of words that ends at each of them and that the reference has; empty if
    /// nobody asked for it.
    matches: Vec<Match>,
    /// The words joined by single spaces, if anybody asked for their letters.
    joined: Vec<u8>,
    /// Where each word ends in `joined`, and in the text.
    ends: Vec<(usize, usize)>,
    /// The text in ASCII lower case, if the rule takes it so.
    lowered: String,
}

impl Candidate {
    pub(crate) fn read(&mut self, text: &str, rule: WordRule, reference: &Reference, needs: Needs) {
        self.words.clear();
        self.joined.clear();
        self.ends.clear();
        let mut lowered = std::mem::take(&mut self.lowered);
        let text = match rule {
            WordRule::Rouge => lower(text, &mut lowered),
            _ => text,
        };
        for word in rule.words(text) {
            let end = word.as_ptr_range().end.addr() - text.as_ptr().addr();
            let word = if needs.letters || rule.changes(word) {
                self.join(word, rule)
            } else {
                word
            };
            let number = if needs.numbers {
                reference.vocabulary.get(word)
            } else {
                None
            };
            self.words.push(number.unwrap_or(UNKNOWN));
            self.ends.push((self.joined.len(), end));
        }
        self.lowered = lowered;
        if needs.runs {
            reference.automaton.matches(&self.words, &mut self.matches);
        }
    }

    /// Appends the word and gives it as it is compared.
    fn join(&mut self, word: &[u8], rule: WordRule) -> &[u8] {
        if !self.joined.is_empty() {
            self.joined.push(b' ');
        }
        let start = self.joined.len();
        rule.fold(word, &mut self.joined);
        self.joined.get(start..).unwrap_or_default()
    }

    pub(crate) fn n_words(&self) -> usize {
        self.words.len()
    }

    /// Its first `n_words` words, of which `n_old` have been seen; `text` is where it stands.
    pub(crate) fn cut<'a>(&'a self, text: &'a str, n_old: usize, n_words: usize) -> Cut<'a> {
        let last = n_words.checked_sub(1);
        let (joined, end) = last
            .and_then(|last| self.ends.get(last).copied())
            .unwrap_or_default();
        let end = if n_words < self.words.len() {
            end
        } else {
            text.len()
        };
        Cut {
            words: self.words.get(..n_words).unwrap_or_default(),
            matches: self.matches.get(..n_words).unwrap_or_default(),
            n_old,
            ends: self.ends.get(..n_words).unwrap_or_default(),
            joined: self.joined.get(..joined).unwrap_or_default(),
            text: text.get(..end).unwrap_or_default(),
        }
    }
}

/// The text with its ASCII letters in lower case, every byte in its place.
fn lower<'a>(text: &str, lowered: &'a mut String) -> &'a str {
    text.clone_into(lowered);
    lowered.make_ascii_lowercase();
    lowered
}

/// A candidate from its start to the end of some word.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// Its words, by their numbers in the reference's vocabulary.
    pub(crate) words: &'a [u32],
    /// The longest run of words that ends at each of them and that the reference has.
    pub(crate) matches: &'a [Match],
    /// How many of them the kernels have seen since the candidate's start.
    n_old: usize,
    /// Where each word ends in `joined`, and in the whole text.
    ends: &'a [(usize, usize)],
    /// Its words joined by single spaces.
    pub(crate) joined: &'a [u8],
    /// Its text; to the very end if no word was cut.
    pub(crate) text: &'a str,
}

impl<'a> Cut<'a> {
    /// The words that the kernels have not seen.
    pub(crate) fn new_words(self) -> &'a [u32] {
        self.words.get(self.n_old..).unwrap_or_default()
    }

    /// The letters of the words that the kernels have not seen.
    pub(crate) fn new_letters(self) -> impl Iterator<Item = &'a [u8]> {
        let old = self
            .n_old
            .checked_sub(1)
            .and_then(|last| self.ends.get(last));
        let mut start = old.map_or(0, |(end, _)| end + 1);
        let new = self.ends.get(self.n_old..).unwrap_or_default();
        new.iter().map(move |&(end, _)| {
            let letters = self.joined.get(start..end).unwrap_or_default();
            start = end + 1;
            letters
        })
    }

    /// The matches that the kernels have not seen.
    pub(crate) fn new_matches(self) -> &'a [Match] {
        self.matches.get(self.n_old..).unwrap_or_default()
    }
}

/// Computes one group of numbers.
pub(crate) trait Kernel {
    /// Fields of [`numbers`](Self::numbers), in order.
    fn fields(&self) -> Vec<String>;

    /// Fields of [`reference_numbers`](Self::reference_numbers), in order.
    fn reference_fields(&self) -> Vec<String> {
        Vec::new()
    }

    /// Forgets the last reference and reads another.
    fn read_reference(&mut self, _: &Reference) {}

    /// Prepares for a new candidate.
    fn start(&mut self, _: &Reference) {}

    /// Appends the numbers of a candidate that has grown to `cut`.
    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError>;

    /// Appends the numbers of the reference alone.
    fn reference_numbers(&self, _: &Reference, _: &mut Vec<Number>) {}
}
