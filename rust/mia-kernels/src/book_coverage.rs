//! How much of a book comes out in any of many generations (bmc@k; Liu et al. 2026,
//! arXiv:2603.20957).
//!
//! A **span** is a run of words that book and generation both have and that can be made longer on
//! neither side. What of a span the generation's instruction gave away is cut out of it; the
//! pieces of at least k words cover the book.
//!
//! Spans are found from the places where the book has the k words that start at each word of the
//! generation, so that the time grows with the number of places that both share.

#![expect(
    clippy::indexing_slicing,
    reason = "words of the book and of the generation, counted from their starts"
)]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;

use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::passages::{Passage, WordSpans};
use crate::places::Places;
use crate::reference::{Needs, Reference};
use crate::words::WordRule;

/// A span of more words than these is a long one.
pub const LONG_SPAN_WORDS: u32 = 20;

const NEEDS: Needs = Needs {
    numbers: false,
    runs: false,
    letters: false,
};

/// What counts as covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoverageRules {
    /// How texts are cut into words.
    pub words: WordRule,
    /// Words of the shortest span, k; at least 1.
    pub min_words: usize,
    /// Words of a run that, where the instruction has it, is cut out of a span; at least 1.
    pub trim_words: usize,
}

/// What of one book came out so far; generations may be added by several threads in any order.
pub struct BookCoverage {
    rules: CoverageRules,
    book: Reference,
    spans: WordSpans,
    /// The places of the book at which `min_words` words start, sorted by these words.
    order: Vec<u32>,
    /// For each word of the book and its end, how many more pieces cover it than the word before.
    changes: Vec<AtomicU32>,
    /// For each word of the book, the longest span that starts at it.
    longest: Vec<AtomicU32>,
}

/// What of a book came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Words of the book.
    pub words: u32,
    /// Covered words without a gap, as long as can be, in order.
    pub blocks: Vec<Passage>,
    /// Words of the longest span, with what the instruction gave away.
    pub longest_span: u32,
    /// Spans of more than [`LONG_SPAN_WORDS`] words, in order: the longest first, then each that
    /// overlaps none before it.
    pub long_spans: Vec<Passage>,
}

impl BookCoverage {
    /// Nothing of `book`.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn new(book: &str, rules: CoverageRules) -> Result<Self, KernelError> {
        let rules = CoverageRules {
            min_words: rules.min_words.max(1),
            trim_words: rules.trim_words.max(1),
            ..rules
        };
        let spans = WordSpans::of(book, rules.words)?;
        let mut reference = Reference::default();
        reference.read(book, rules.words, NEEDS);
        let words = &reference.words;
        let n_words = words.len();
        let mut order: Vec<u32> = (0..words.windows(rules.min_words).len())
            .map(number)
            .collect();
        order.sort_unstable_by_key(|&at| (&words[at as usize..][..rules.min_words], at));
        Ok(Self {
            rules,
            book: reference,
            spans,
            order,
            changes: zeros(n_words + 1),
            longest: zeros(n_words),
        })
    }

    /// Adds what comes out in a generation; `instruction` is what the model was asked.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if a text has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn add(&self, generation: &str, instruction: Option<&str>) -> Result<(), KernelError> {
        let words = self.numbers(generation)?;
        let instruction = self.numbers(instruction.unwrap_or_default())?;
        let given = given(&words, &instruction, self.rules.trim_words);
        let mut ends = HashMap::new();
        for (start, run) in words.windows(self.rules.min_words).enumerate() {
            for at in self.places(run) {
                // Two runs that the same number of words parts lie in one span.
                let end = ends.entry(at + words.len() - start).or_insert(0);
                if *end <= start {
                    let length = agreeing(&self.book.words[at..], &words[start..]);
                    *end = start + length;
                    self.take(at, start..*end, &given);
                }
            }
        }
        Ok(())
    }

    /// What came out of the book so far.
    pub fn covered(&self) -> Covered {
        let longest = self.longest_from_each();
        let passage = |span: &Range<usize>| self.spans.passage(span, span.len());
        Covered {
            words: number(self.book.words.len()),
            blocks: self.blocks().iter().filter_map(passage).collect(),
            longest_span: longest.iter().copied().max().unwrap_or(0),
            long_spans: long_spans(&longest).iter().filter_map(passage).collect(),
        }
    }

    /// The words of a text by their numbers in the book.
    fn numbers(&self, text: &str) -> Result<Vec<u32>, KernelError> {
        check_length(text.as_bytes())?;
        let spelled = self.rules.words.spell(text);
        let mut places = Places::default();
        self.rules.words.place_words(&spelled, &mut places);
        let places = places.as_slice().iter();
        let number = |&place| self.book.vocabulary.get(spelled.as_bytes(), place);
        Ok(places.map(number).collect())
    }

    /// Where the book has a run of `min_words` words.
    fn places<'a>(&'a self, run: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
        let at = move |at: &u32| &self.book.words[*at as usize..][..run.len()];
        let first = self.order.partition_point(|place| at(place) < run);
        let places = self.order[first..].iter();
        places
            .take_while(move |place| at(place) == run)
            .map(|place| *place as usize)
    }

    /// Takes a span that starts at a word of the book; its words are those of the generation.
    fn take(&self, at: usize, span: Range<usize>, given: &[usize]) {
        self.longest[at].fetch_max(number(span.len()), Relaxed);
        let trim_words = self.rules.trim_words;
        let first = given.partition_point(|&start| start < span.start);
        let inside = given[first..].iter();
        let mut from = span.start;
        for &start in inside.take_while(|&start| start + trim_words <= span.end) {
            self.cover(at + from - span.start, start.saturating_sub(from));
            from = start + trim_words;
        }
        self.cover(at + from - span.start, span.end - from);
    }

    fn cover(&self, at: usize, length: usize) {
        if length >= self.rules.min_words {
            self.changes[at].fetch_add(1, Relaxed);
            self.changes[at + length].fetch_sub(1, Relaxed);
        }
    }

    /// Covered words without a gap, as long as can be.
    fn blocks(&self) -> Vec<Range<usize>> {
        let (mut blocks, mut covers, mut start) = (Vec::new(), 0_u32, 0);
        for (at, change) in self.changes.iter().enumerate() {
            let before = covers;
            covers = covers.wrapping_add(change.load(Relaxed));
            match (before, covers) {
                (0, 1..) => start = at,
                (1.., 0) => blocks.push(start..at),
                _ => {}
            }
        }
        blocks
    }

    /// For each word of the book, the longest part of a span that starts at it.
    fn longest_from_each(&self) -> Vec<u32> {
        let mut before = 0_u32;
        let longest = self.longest.iter().map(|longest| {
            before = longest.load(Relaxed).max(before.saturating_sub(1));
            before
        });
        longest.collect()
    }
}

fn zeros(n: usize) -> Vec<AtomicU32> {
    std::iter::repeat_with(AtomicU32::default).take(n).collect()
}

fn agreeing(one: &[u32], other: &[u32]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Where the generation has runs of `n_words` words that the instruction has.
fn given(words: &[u32], instruction: &[u32], n_words: usize) -> Vec<usize> {
    let told: HashSet<_> = instruction.windows(n_words).collect();
    let runs = words.windows(n_words).enumerate();
    runs.filter(|(_, run)| told.contains(run))
        .map(|(start, _)| start)
        .collect()
}

/// Spans of more than [`LONG_SPAN_WORDS`], longest first, each that overlaps none before it.
fn long_spans(longest: &[u32]) -> Vec<Range<usize>> {
    let mut starts: Vec<_> = (0..longest.len())
        .filter(|&start| longest[start] > LONG_SPAN_WORDS)
        .collect();
    starts.sort_by_key(|&start| std::cmp::Reverse(longest[start]));
    let (mut taken, mut spans) = (vec![false; longest.len()], Vec::new());
    for start in starts {
        let span = start..start + longest[start] as usize;
        // None before it is shorter, so none lies between its ends.
        if !taken[span.start] && !taken[span.end - 1] {
            taken[span.clone()].fill(true);
            spans.push(span);
        }
    }
    spans.sort_unstable_by_key(|span| span.start);
    spans
}
