//! Words to numbers.

use hashbrown::HashMap;

use crate::letters::{FILL, FILLS, letters};
use crate::numbers::{Numbers, UNKNOWN};
use crate::places::Place;

/// Bytes of the longest word that is its own key.
const SHORT: u32 = 16;

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

    /// The number of the word that stands at a place of `text`, or [`UNKNOWN`].
    #[inline]
    pub(crate) fn get(&self, text: &[u8], place: Place) -> u32 {
        match short_key(text, place) {
            Some(key) => self.words.get(key),
            None => self.get_long(word(text, place)),
        }
    }

    /// The number of the word that stands at a place of `text`, a new one if it has none.
    pub(crate) fn intern(&mut self, text: &[u8], place: Place) -> u32 {
        let key = short_key(text, place).unwrap_or_else(|| {
            let next = long_key(self.long.len());
            *self.long.entry_ref(word(text, place)).or_insert(next)
        });
        self.words.intern(key)
    }

    #[cold]
    fn get_long(&self, word: &[u8]) -> u32 {
        let key = self.long.get(word).copied();
        key.map_or(UNKNOWN, |key| self.words.get(key))
    }
}

fn word(text: &[u8], [start, end]: Place) -> &[u8] {
    text.get(start as usize..end as usize).unwrap_or_default()
}

/// The key of a short word, which is read with what stands behind it.
#[inline]
#[expect(clippy::indexing_slicing, reason = "there is a fill for each length")]
fn short_key(text: &[u8], [start, end]: Place) -> Option<u128> {
    let length = end - start;
    if length > SHORT {
        return None;
    }
    Some(u128::from_le_bytes(letters(text, start)) | FILLS[length as usize])
}

/// The key of a longer word, which starts as no short word does.
fn long_key(number: usize) -> u128 {
    (number as u128) << 8 | u128::from(FILL)
}
