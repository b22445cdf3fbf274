//! Words to numbers.

use hashbrown::HashMap;

use crate::numbers::{Numbers, UNKNOWN};
use crate::places::Place;

/// Bytes of the longest word that is its own key: its letters, and above them their count.
const SHORT: u32 = 15;

/// The letters of words of each length.
const MASKS: [u128; 16] = {
    let mut masks = [0; 16];
    let mut length = 1;
    while length < 16 {
        masks[length] = masks[length - 1] << 8 | 0xff;
        length += 1;
    }
    masks
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
    pub(crate) fn get(&self, text: &[u8], [start, end]: Place) -> u32 {
        if end - start <= SHORT {
            self.words.get(short_key(text, [start, end]))
        } else {
            self.get_long(word(text, [start, end]))
        }
    }

    /// The number of the word that stands at a place of `text`, a new one if it has none.
    pub(crate) fn intern(&mut self, text: &[u8], [start, end]: Place) -> u32 {
        if end - start <= SHORT {
            return self.words.intern(short_key(text, [start, end]));
        }
        let next = self.long.len() as u128; // no key of a short word: it has a count above
        let long = self.long.entry_ref(word(text, [start, end]));
        self.words.intern(*long.or_insert(next))
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

/// The key of a short word, which is read with what stands behind it and cut by a mask.
#[inline]
fn short_key(text: &[u8], [start, end]: Place) -> u128 {
    let length = (end - start) as usize;
    let start = start as usize;
    let sixteen = text.get(start..start + 16).and_then(<[u8]>::first_chunk);
    let bytes = sixteen.copied().unwrap_or_else(|| padded(text, start));
    u128::from_le_bytes(bytes) & MASKS[length] | (length as u128) << (8 * SHORT)
}

/// The last bytes of a text, and zeros.
#[cold]
fn padded(text: &[u8], start: usize) -> [u8; 16] {
    let mut padded = [0; 16];
    for (byte, &last) in padded.iter_mut().zip(text.get(start..).unwrap_or_default()) {
        *byte = last;
    }
    padded
}
