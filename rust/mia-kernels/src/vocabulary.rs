//! Words to numbers.

use std::ops::Range;

use hashbrown::HashMap;

use crate::numbers::{Numbers, UNKNOWN};

/// Bytes of the longest word that is its own key: its letters, and above them their count.
const SHORT: usize = 15;

/// The distinct words of a text, numbered from 0 in order of appearance.
#[derive(Default)]
pub(crate) struct Vocabulary {
    words: Numbers,
    /// The keys of longer words: the place of each among them.
    long: HashMap<Vec<u8>, u128>,
}

impl Vocabulary {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.long.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// The number of the word that stands at `at` in `text`, or [`UNKNOWN`].
    #[inline]
    pub(crate) fn get(&mut self, text: &[u8], at: Range<usize>) -> u32 {
        if at.len() <= SHORT {
            self.words.get(short_key(text, at))
        } else {
            self.get_long(text.get(at).unwrap_or_default())
        }
    }

    /// The number of the word that stands at `at` in `text`, a new one if it has none.
    pub(crate) fn intern(&mut self, text: &[u8], at: Range<usize>) -> u32 {
        if at.len() <= SHORT {
            return self.words.intern(short_key(text, at));
        }
        let next = self.long.len() as u128; // no key of a short word: it has a count above
        let long = self.long.entry_ref(text.get(at).unwrap_or_default());
        self.words.intern(*long.or_insert(next))
    }

    #[cold]
    fn get_long(&mut self, word: &[u8]) -> u32 {
        let key = self.long.get(word).copied();
        key.map_or(UNKNOWN, |key| self.words.get(key))
    }
}

/// The key of a short word, which is read with what stands behind it and cut by a mask.
#[inline]
fn short_key(text: &[u8], at: Range<usize>) -> u128 {
    let length = at.len() as u128;
    let mask = (1 << (8 * length)) - 1;
    let rest = text.get(at.start..).unwrap_or_default();
    let bytes = rest.first_chunk().copied().unwrap_or_else(|| padded(rest));
    (u128::from_le_bytes(bytes) & mask) | length << (8 * SHORT)
}

/// The last bytes of a text, and zeros.
#[cold]
fn padded(rest: &[u8]) -> [u8; 16] {
    let mut padded = [0; 16];
    for (byte, &last) in padded.iter_mut().zip(rest) {
        *byte = last;
    }
    padded
}
