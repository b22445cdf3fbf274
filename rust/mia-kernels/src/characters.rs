//! Clipped overlap of character n-grams, for text without spaces.
//!
//! The n-grams are distinguished by their characters, 21 bits each, never by a hash alone.

#![expect(
    clippy::indexing_slicing,
    reason = "n-grams are numbered in the order of their counts"
)]

use crate::candidate::Cut;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::limits::number;
use crate::numbers::Numbers;
use crate::reference::Reference;

/// Characters of the n-grams that are counted, in ascending order.
const SIZES: [u32; 2] = [3, 5];

/// Bits of a Unicode character.
const BITS: u32 = 21;

/// Counts the character n-grams that a candidate shares with its reference.
pub(crate) struct CharacterCounter {
    overlaps: [NgramOverlap; SIZES.len()],
    n_reference: u32,
    window: Window,
    /// Bytes of the candidate that were read.
    n_read: usize,
}

impl Default for CharacterCounter {
    fn default() -> Self {
        Self {
            overlaps: SIZES.map(NgramOverlap::new),
            n_reference: 0,
            window: Window::default(),
            n_read: 0,
        }
    }
}

impl Kernel for CharacterCounter {
    fn fields(&self) -> Vec<String> {
        let overlaps = SIZES.map(|n| format!("characters_overlap_{n}"));
        [vec!["characters_candidate".to_owned()], overlaps.to_vec()].concat()
    }

    fn reference_fields(&self) -> Vec<String> {
        vec!["characters_reference".to_owned()]
    }

    fn read_reference(&mut self, reference: &Reference) {
        self.n_reference = number(reference.text().chars().count());
        for overlap in &mut self.overlaps {
            overlap.read_reference(reference.text());
        }
    }

    fn start(&mut self, _: &Reference) {
        self.window = Window::default();
        self.n_read = 0;
        for overlap in &mut self.overlaps {
            overlap.start();
        }
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        _: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        let text = cut.text();
        let new = text.get(self.n_read..).unwrap_or_default();
        self.n_read = text.len();
        for character in new.chars() {
            self.window.push(character);
            // The reference has no n-gram without its shorter suffixes.
            let _ = self
                .overlaps
                .iter_mut()
                .all(|overlap| overlap.count(&self.window));
        }
        numbers.push(Some(self.window.length));
        numbers.extend(self.overlaps.iter().map(|overlap| Some(overlap.matched)));
        Ok(())
    }

    fn reference_numbers(&self, _: &Reference, numbers: &mut Vec<Number>) {
        numbers.push(Some(self.n_reference));
    }
}

/// The overlap of n-grams of one size.
struct NgramOverlap {
    n: u32,
    /// The reference's n-grams, numbered from 0.
    ngrams: Numbers,
    /// How often each occurs in the reference.
    counts: Vec<u32>,
    /// How many of these the candidate has not matched yet.
    unmatched: Vec<u32>,
    matched: u32,
}

impl NgramOverlap {
    fn new(n: u32) -> Self {
        Self {
            n,
            ngrams: Numbers::default(),
            counts: Vec::new(),
            unmatched: Vec::new(),
            matched: 0,
        }
    }

    fn read_reference(&mut self, text: &str) {
        self.ngrams.clear();
        self.counts.clear();
        let mut window = Window::default();
        for character in text.chars() {
            window.push(character);
            if let Some(ngram) = window.last(self.n) {
                let at = self.ngrams.intern(ngram) as usize;
                if at == self.counts.len() {
                    self.counts.push(0);
                }
                self.counts[at] += 1;
            }
        }
    }

    fn start(&mut self) {
        self.unmatched.clone_from(&self.counts);
        self.matched = 0;
    }

    /// Counts the n-gram that ends here and says whether the reference has it.
    fn count(&mut self, window: &Window) -> bool {
        let at = window
            .last(self.n)
            .map(|ngram| self.ngrams.get(ngram) as usize);
        let Some(unmatched) = at.and_then(|at| self.unmatched.get_mut(at)) else {
            return false;
        };
        if *unmatched > 0 {
            *unmatched -= 1;
            self.matched += 1;
        }
        true
    }
}

/// The last six characters of a text.
#[derive(Default)]
struct Window {
    /// Characters of the whole text so far.
    length: u32,
    characters: u128,
}

impl Window {
    fn push(&mut self, character: char) {
        self.length += 1;
        self.characters = (self.characters << BITS) | u128::from(u32::from(character));
    }

    /// The last `n` characters, once there are so many.
    fn last(&self, n: u32) -> Option<u128> {
        let mask = (1 << (n * BITS)) - 1;
        (self.length >= n).then_some(self.characters & mask)
    }
}
