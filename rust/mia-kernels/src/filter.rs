//! Which words a text may have, told by their first letters.

#![expect(
    clippy::indexing_slicing,
    reason = "there is a mark for every hash, and a fill for every length modulo their number"
)]

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::places::{Place, letters};

/// Letters that a word is told by.
const LETTERS: usize = 8;

/// What is put behind a shorter word, for each length: bytes that no UTF-8 has.
const FILLS: [u64; 32] = {
    let mut fills = [0; 32];
    let mut length = 0;
    while length < LETTERS {
        fills[length] = u64::MAX << (8 * length);
        length += 1;
    }
    fills
};

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

    /// The first letters, multiplied by an odd number (Knuth, The Art of Computer Programming 3,
    /// section 6.4).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a hash has few bits")]
    fn hash(&self, text: &[u8], [start, end]: Place) -> usize {
        let fill = FILLS[(end - start) as usize % FILLS.len()];
        let letters = u64::from_le_bytes(letters(text, start)) | fill;
        (letters.wrapping_mul(self.seed) >> (u64::BITS - BITS)) as usize
    }
}
