//! Keys to numbers.

#![expect(
    clippy::indexing_slicing,
    reason = "slots hold numbers of keys, and their count is a power of two"
)]

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::limits::number;

/// What a key has that was never seen.
pub(crate) const UNKNOWN: u32 = u32::MAX;

const FEWEST_SLOTS: usize = 64;

/// Slots for each key, at least, so that most look-ups end at the first.
const SLOTS_PER_KEY: usize = 8;

/// Distinct keys, numbered from 0 in order of appearance.
///
/// A table with open addressing. The slot of a key holds its place in `keys`, which is its number
/// and one; an empty slot holds 0.
pub(crate) struct Numbers {
    /// The first is the key that is looked for, to which empty slots lead: so one comparison
    /// ends a search, and whether the key is known, which is as good as random, takes no branch.
    keys: Vec<u128>,
    slots: Vec<u32>,
    /// Differs from run to run, so that no text can be made to collide.
    seed: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            keys: vec![0],
            slots: vec![0; FEWEST_SLOTS],
            seed: DefaultHashBuilder::default().hash_one(0),
        }
    }
}

impl Numbers {
    pub(crate) fn clear(&mut self) {
        self.keys.truncate(1);
        self.slots.clear();
        self.slots.resize(FEWEST_SLOTS, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len() - 1
    }

    /// The number of `key`, or [`UNKNOWN`].
    #[inline]
    pub(crate) fn get(&mut self, key: u128) -> u32 {
        let (_, held) = self.find(key);
        held.wrapping_sub(1)
    }

    /// The number of `key`, a new one if it has none.
    pub(crate) fn intern(&mut self, key: u128) -> u32 {
        let (slot, held) = self.find(key);
        if held > 0 {
            return held - 1;
        }
        let new = number(self.keys.len());
        self.keys.push(key);
        self.slots[slot] = new;
        if self.keys.len() * SLOTS_PER_KEY > self.slots.len() {
            self.grow();
        }
        new - 1
    }

    /// The slot of `key`, or the empty one where it would stand, and what it holds.
    #[inline]
    fn find(&mut self, key: u128) -> (usize, u32) {
        self.keys[0] = key;
        let last = self.slots.len() - 1;
        let mut slot = self.hash(key) & last;
        loop {
            let held = self.slots[slot];
            if self.keys[held as usize] == key {
                return (slot, held);
            }
            slot = (slot + 1) & last;
        }
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

    fn grow(&mut self) {
        let n_slots = 2 * self.slots.len();
        self.slots.clear();
        self.slots.resize(n_slots, 0);
        for at in 1..self.keys.len() {
            let (slot, _) = self.find(self.keys[at]);
            self.slots[slot] = number(at);
        }
    }
}
