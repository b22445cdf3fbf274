//! Words to numbers.

use hashbrown::HashMap;

use crate::numbers::{Numbers, UNKNOWN};
use crate::places::{Place, letters};

/// What stands behind a word of up to 16 bytes in its key: a byte that no UTF-8 has.
const FILL: u8 = 0xff;

/// What is filled, for each length of such a word.
const FILLS: [u128; 17] = {
    let mut fills = [u128::MAX; 17];
    let mut length = 1;
    while length < 17 {
        fills[length] = fills[length - 1] << 8;
        length += 1;
    }
    fills
};

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

/// The key of a word of up to 16 bytes, which is read with what stands behind it.
#[inline]
fn short_key(text: &[u8], [start, end]: Place) -> Option<u128> {
    let fill = FILLS.get((end - start) as usize)?;
    Some(u128::from_le_bytes(letters(text, start)) | fill)
}

/// The key of a longer word, which starts as no short word does.
fn long_key(number: usize) -> u128 {
    (number as u128) << 8 | u128::from(FILL)
}
