//! Parts of a book that generations give back.

use std::ops::Range;

use crate::error::KernelError;
use crate::limits::number;
use crate::words::WordRule;

/// A part of a book, from its first word to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Characters of the book before it.
    pub start: u32,
    /// Characters of the book before what follows it.
    pub end: u32,
    /// Its words that came out.
    pub words: u32,
}

/// Where the words of a book stand, in characters.
pub(crate) struct WordSpans(Vec<(u32, u32)>);

impl WordSpans {
    pub(crate) fn of(book: &str, rule: WordRule) -> Result<Self, KernelError> {
        let mut spans = Vec::new();
        rule.spans(book, |start, end| spans.push((start, end)))?;
        Ok(Self(spans))
    }

    /// The passage of these words, of which so many came out; `None` if there is no word.
    pub(crate) fn passage(&self, words: &Range<usize>, n_words: usize) -> Option<Passage> {
        let (first, last) = (self.0.get(words.start)?, words.end.checked_sub(1)?);
        Some(Passage {
            start: first.0,
            end: self.0.get(last)?.1,
            words: number(n_words),
        })
    }
}
