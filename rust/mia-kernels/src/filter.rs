//! Which words a text may have, told by their first letters.

#![expect(
    clippy::indexing_slicing,
    reason = "there is a mark for each hash, and a fill for each length modulo their number"
)]

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::letters::{FILLS, letters};
use crate::places::Place;

/// So that of 500 different words few are taken for others, and the marks do not fill the cache.
const BITS: u32 = 12;

/// A Bloom filter (Bloom 1970, "Space/time trade-offs in hash coding with allowable errors") of
/// one hash.
pub(crate) struct Filter {
    marks: Box<[bool; 1 << BITS]>,
    /// Differs from run to run, so that no text can be made to pass.
    seed: u64,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            marks: Box::new([false; 1 << BITS]),
            seed: DefaultHashBuilder::default().hash_one(0) | 1,
        }
    }
}

impl Filter {
    /// Forgets the last text and reads another.
    pub(crate) fn read(&mut self, text: &[u8], places: &[Place]) {
        self.marks.fill(false);
        for &place in places {
            self.marks[self.hash(text, place)] = true;
        }
    }

    /// Whether the text may have the word that stands at a place of another.
    #[inline]
    pub(crate) fn may_have(&self, text: &[u8], place: Place) -> bool {
        self.marks[self.hash(text, place)]
    }

    /// The first eight letters, multiplied by an odd number (Knuth, The Art of Computer
    /// Programming 3, section 6.4). Of a word longer than the fills it may be some others of them.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "eight letters are enough")]
    fn hash(&self, text: &[u8], [start, end]: Place) -> usize {
        let fill = FILLS[(end - start) as usize % FILLS.len()] as u64;
        let letters = u64::from_le_bytes(letters(text, start)) | fill;
        (letters.wrapping_mul(self.seed) >> (u64::BITS - BITS)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Filter;

    #[test]
    fn every_word_that_was_read_passes() {
        let word = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF";
        let mut filter = Filter::default();
        for length in 1..=42 {
            let (text, other) = (format!("x {word}"), format!("{word} y"));
            filter.read(text.as_bytes(), &[[0, 1], [2, 2 + length]]);
            assert!(filter.may_have(other.as_bytes(), [0, length]));
        }
    }

    #[test]
    fn most_other_words_do_not_pass() {
        let words: Vec<_> = (0..1000).map(|number| format!("{number:03}")).collect();
        let text = words.join(" ");
        let places: Vec<_> = (0..1000).map(|at| [4 * at, 4 * at + 3]).collect();
        let (some, others) = places.split_at(100);
        let seed = 0x9e37_79b9_7f4a_7c15; // one in hundreds lets more of such regular words pass
        let mut filter = Filter {
            seed,
            ..Filter::default()
        };
        filter.read(text.as_bytes(), some);
        let passing = others.iter();
        let passing = passing.filter(|place| filter.may_have(text.as_bytes(), **place));
        assert!(passing.count() < 200);
    }
}
