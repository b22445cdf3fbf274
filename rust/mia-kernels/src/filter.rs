//! Which words a text may have, told by their first letters.

#![expect(
    clippy::indexing_slicing,
    reason = "a hash has as many bits as the marks have places"
)]

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::places::{Place, letters};

/// Letters that a word is told by.
const LETTERS: usize = 8;

/// What stands behind a shorter word, for each length: a byte that no UTF-8 has.
const FILLS: [u64; LETTERS + 1] = {
    let mut fills = [0; LETTERS + 1];
    let mut length = 0;
    while length < LETTERS {
        fills[length] = u64::MAX << (8 * length);
        length += 1;
    }
    fills
};

const FEWEST_BITS: u32 = 10;
const MOST_BITS: u32 = 16;
/// Places for each word, at least, so that few words are taken for others.
const PLACES_PER_WORD: usize = 16;

/// A Bloom filter (Bloom 1970, "Space/time trade-offs in hash coding with allowable errors") of
/// one hash.
pub(crate) struct Filter {
    marks: Vec<bool>,
    /// Bits of a hash that are not used.
    shift: u32,
    /// Differs from run to run, so that no text can be made to pass.
    seed: u64,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            marks: Vec::new(),
            shift: 0,
            seed: DefaultHashBuilder::default().hash_one(0) | 1,
        }
    }
}

impl Filter {
    /// Forgets the last text and reads another.
    pub(crate) fn read(&mut self, text: &[u8], places: &[Place]) {
        let n_places = places.len() * PLACES_PER_WORD;
        let bits = n_places.next_power_of_two().ilog2();
        let bits = bits.clamp(FEWEST_BITS, MOST_BITS);
        self.shift = u64::BITS - bits;
        self.marks.clear();
        self.marks.resize(1 << bits, false);
        for &place in places {
            let hash = self.hash(text, place);
            self.marks[hash] = true;
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
    #[expect(clippy::cast_possible_truncation, reason = "a hash keeps what fits")]
    fn hash(&self, text: &[u8], [start, end]: Place) -> usize {
        let fill = FILLS[LETTERS.min((end - start) as usize)];
        let letters = u64::from_le_bytes(letters(text, start)) | fill;
        let product = letters.wrapping_mul(self.seed);
        (product >> self.shift) as usize
    }
}
