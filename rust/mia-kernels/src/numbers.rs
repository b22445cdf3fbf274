//! Keys to numbers.

#![expect(
    clippy::indexing_slicing,
    reason = "slots hold numbers of keys, and their count is a power of two"
)]

use std::hash::BuildHasher;
use std::hint::select_unpredictable;

use hashbrown::DefaultHashBuilder;

use crate::limits::number;

const FEWEST_SLOTS: usize = 64;

/// Slots for each key, at least, so that most look-ups end at the first.
const SLOTS_PER_KEY: usize = 8;

/// What a key has that was never seen.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// Distinct keys, numbered from 0 in order of appearance.
///
/// A table with open addressing.
pub(crate) struct Numbers {
    /// The first is none: empty slots lead there.
    keys: Vec<u128>,
    slots: Vec<Slot>,
    /// Differs from run to run, so that no text can be made to collide.
    seed: u64,
}

/// Where a key stands in `keys`, which is its number and one, or 0; and in the lowest bit
/// whether a search that comes here goes on behind.
///
/// So few searches go on, and whether a key is known, which is as good as random, takes no branch.
/// No text has 2^31 n-grams: a word of one byte and its separator start at most four. An automaton
/// has up to three keys for a character, of which 2^31 take more than 100 GB.
#[derive(Clone, Copy, Default)]
struct Slot(u32);

impl Slot {
    fn new(key: usize) -> Self {
        Self(number(key) << 1)
    }

    fn key(self) -> u32 {
        self.0 >> 1
    }

    fn is_passed(self) -> bool {
        self.0 & 1 == 1
    }

    fn pass(&mut self) {
        self.0 |= 1;
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            keys: vec![0],
            slots: vec![Slot::default(); FEWEST_SLOTS],
            seed: DefaultHashBuilder::default().hash_one(0),
        }
    }
}

impl Numbers {
    pub(crate) fn clear(&mut self) {
        self.keys.truncate(1);
        self.slots.clear();
        self.slots.resize(FEWEST_SLOTS, Slot::default());
    }

    /// Makes room for so many keys.
    pub(crate) fn reserve(&mut self, n_keys: usize) {
        let n_slots = (n_keys * SLOTS_PER_KEY).next_power_of_two();
        if n_slots > self.slots.len() {
            self.resize(n_slots);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len() - 1
    }

    /// The number of `key`, or [`UNKNOWN`].
    #[inline]
    pub(crate) fn get(&self, key: u128) -> u32 {
        let at = self.hash(key) & (self.slots.len() - 1);
        let slot = self.slots[at];
        if slot.is_passed() {
            return self.search(key, at);
        }
        let is_it = self.keys[slot.key() as usize] == key;
        select_unpredictable(is_it, slot.key(), 0).wrapping_sub(1)
    }

    /// The number of `key`, which stands in the slot `at` or behind it if it has one.
    #[cold]
    fn search(&self, key: u128, mut at: usize) -> u32 {
        loop {
            let slot = self.slots[at];
            if self.keys[slot.key() as usize] == key {
                return slot.key().wrapping_sub(1);
            }
            if !slot.is_passed() {
                return UNKNOWN;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// The number of `key`, a new one if it has none.
    pub(crate) fn intern(&mut self, key: u128) -> u32 {
        let known = self.get(key);
        if known != UNKNOWN {
            return known;
        }
        self.keys.push(key);
        if self.keys.len() * SLOTS_PER_KEY > self.slots.len() {
            self.resize(2 * self.slots.len());
        } else {
            self.place(self.len());
        }
        number(self.len() - 1)
    }

    /// Finds an empty slot for the key that stands there in `keys`.
    fn place(&mut self, key: usize) {
        let last = self.slots.len() - 1;
        let mut at = self.hash(self.keys[key]) & last;
        while self.slots[at].key() > 0 {
            self.slots[at].pass();
            at = (at + 1) & last;
        }
        self.slots[at] = Slot::new(key);
    }

    /// Both halves multiplied, and the halves of the product mixed.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a hash keeps what fits")]
    fn hash(&self, key: u128) -> usize {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio
        let (low, high) = (key as u64 ^ self.seed, (key >> 64) as u64 ^ FACTOR);
        let product = u128::from(low) * u128::from(high);
        (product ^ (product >> 64)) as usize
    }

    fn resize(&mut self, n_slots: usize) {
        self.slots.clear();
        self.slots.resize(n_slots, Slot::default());
        for key in 1..self.keys.len() {
            self.place(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Numbers, UNKNOWN};

    #[test]
    fn keys_are_numbered_in_order_however_many_they_are() {
        let mut numbers = Numbers::default();
        for _ in 0..2 {
            for key in 0..10_000 {
                assert_eq!(numbers.get(key << 60), UNKNOWN);
                assert_eq!(u128::from(numbers.intern(key << 60)), key);
            }
            for key in 0..10_000 {
                assert_eq!(u128::from(numbers.get(key << 60)), key);
                assert_eq!(u128::from(numbers.intern(key << 60)), key);
                assert_eq!(numbers.get(key << 60 | 1), UNKNOWN);
            }
            assert_eq!(numbers.len(), 10_000);
            numbers.clear();
            assert_eq!(numbers.len(), 0);
        }
    }
}
