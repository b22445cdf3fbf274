//! Longest common subsequence of words (ROUGE-L, Lin 2004, section 3), bit-parallel.
//!
//! One bit stands for one word of the reference. The candidate is read word by word, and one
//! addition moves all bits of a limb at once (Hyyrö 2004, "Bit-parallel LCS-length computation
//! revisited"). The limbs are done one after the other, each for all new words, and the carry
//! of each word waits for the next limb: so memory grows with both texts, not their product.

use std::iter::zip;

use crate::candidate::{Cut, Known};
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::reference::Reference;

/// Finds the longest common subsequence of a candidate and its reference.
#[derive(Default)]
pub(crate) struct LcsCounter {
    /// One per 64 words of the reference; a cleared bit is a word more in common.
    limbs: Vec<u64>,
    /// For each word of the vocabulary its places in the limb at hand; zero between calls.
    places: Vec<u64>,
    /// What the addition of each new word that the reference has carries into the next limb.
    carries: Vec<bool>,
}

impl Kernel for LcsCounter {
    fn fields(&self) -> Vec<String> {
        vec!["lcs_words".to_owned()]
    }

    fn read_reference(&mut self, reference: &Reference) {
        self.limbs.resize(reference.words.len().div_ceil(64), 0);
        self.places.resize(reference.vocabulary.len(), 0);
    }

    fn start(&mut self, _: &Reference) {
        self.limbs.fill(u64::MAX);
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        self.carries.clear();
        self.carries.resize(cut.new_known.len(), false);

        let mut length = 0;
        for (limb, part) in zip(&mut self.limbs, reference.words.chunks(64)) {
            mark(&mut self.places, part);
            *limb = add(*limb, cut.new_known, &mut self.carries, &self.places);
            unmark(&mut self.places, part);
            length += (!*limb & low_bits(part.len())).count_ones();
        }
        numbers.push(Some(length));
        Ok(())
    }
}

fn mark(places: &mut [u64], part: &[u32]) {
    for (at, &word) in part.iter().enumerate() {
        if let Some(places) = places.get_mut(word as usize) {
            *places |= 1 << at;
        }
    }
}

fn unmark(places: &mut [u64], part: &[u32]) {
    for &word in part {
        if let Some(places) = places.get_mut(word as usize) {
            *places = 0;
        }
    }
}

/// The limb after all `words`.
#[expect(
    clippy::indexing_slicing,
    reason = "words that the vocabulary lacks were left out"
)]
fn add(mut limb: u64, words: &[Known], carries: &mut [bool], places: &[u64]) -> u64 {
    for (known, carry) in zip(words, carries) {
        let places = places[known.word as usize];
        let (sum, over) = limb.overflowing_add(limb & places);
        let (sum, over_again) = sum.overflowing_add(u64::from(*carry));
        *carry = over | over_again;
        limb = sum | (limb & !places);
    }
    limb
}

fn low_bits(n: usize) -> u64 {
    if n < 64 { (1 << n) - 1 } else { u64::MAX }
}
