//! Words to numbers.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::limits::number;

/// The distinct words of a text, numbered from 0 in order of appearance.
#[derive(Default)]
pub(crate) struct Vocabulary {
    words: WordList,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    sketch: Sketch,
}

impl Vocabulary {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.numbers.clear();
        self.sketch = Sketch::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.words.spans.len()
    }

    /// The number of `word`, if it has one.
    pub(crate) fn get(&self, word: &[u8]) -> Option<u32> {
        if !self.sketch.may_hold(word) {
            return None;
        }
        let hash = self.hasher.hash_one(word);
        let number = self
            .numbers
            .find(hash, |&number| self.words.get(number) == word);
        number.copied()
    }

    /// The number of `word`, a new one if it has none.
    pub(crate) fn intern(&mut self, word: &[u8]) -> u32 {
        let Self {
            words,
            numbers,
            hasher,
            sketch,
        } = self;
        let entry = numbers.entry(
            hasher.hash_one(word),
            |&number| words.get(number) == word,
            |&number| hasher.hash_one(words.get(number)),
        );
        match entry {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                sketch.add(word);
                *entry.insert(words.push(word)).get()
            }
        }
    }
}

/// What is known of words at a glance: most words of a candidate are not in its reference.
struct Sketch([u64; 64]);

impl Default for Sketch {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Sketch {
    fn add(&mut self, word: &[u8]) {
        let (limb, bit) = Self::place(word);
        if let Some(limb) = self.0.get_mut(limb) {
            *limb |= bit;
        }
    }

    fn may_hold(&self, word: &[u8]) -> bool {
        let (limb, bit) = Self::place(word);
        self.0.get(limb).is_some_and(|limb| limb & bit != 0)
    }

    /// One of 4,096 bits, from the word's length and its first, middle and last byte.
    fn place(word: &[u8]) -> (usize, u64) {
        let byte = |at: usize| usize::from(word.get(at).copied().unwrap_or_default());
        let middle = word.len() / 2;
        let (first, last) = (byte(0), byte(word.len().wrapping_sub(1)));
        let mixed = first * 37 + byte(middle) * 101 + last * 673 + word.len() * 1009;
        (mixed / 64 % 64, 1 << (mixed % 64))
    }
}

/// Words stored end to end, so that one more costs no allocation.
#[derive(Default)]
struct WordList {
    letters: Vec<u8>,
    spans: Vec<Range<usize>>,
}

impl WordList {
    fn clear(&mut self) {
        self.letters.clear();
        self.spans.clear();
    }

    fn push(&mut self, word: &[u8]) -> u32 {
        let number = number(self.spans.len());
        let start = self.letters.len();
        self.letters.extend_from_slice(word);
        self.spans.push(start..self.letters.len());
        number
    }

    #[expect(clippy::indexing_slicing, reason = "numbers come from `push`")]
    fn get(&self, number: u32) -> &[u8] {
        &self.letters[self.spans[number as usize].clone()]
    }
}
