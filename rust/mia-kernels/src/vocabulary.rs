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
}

impl Vocabulary {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.numbers.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.words.spans.len()
    }

    /// The number of `word`, if it has one.
    pub(crate) fn get(&self, word: &[u8]) -> Option<u32> {
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
        } = self;
        let entry = numbers.entry(
            hasher.hash_one(word),
            |&number| words.get(number) == word,
            |&number| hasher.hash_one(words.get(number)),
        );
        match entry {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(words.push(word)).get(),
        }
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
