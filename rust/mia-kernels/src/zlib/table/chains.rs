//! Where the same bytes stood before.

#![expect(
    clippy::indexing_slicing,
    reason = "places and hashes index arrays of their number"
)]

use std::mem::replace;

use super::text::{N_PLACES, Places, START, Text, places};
use crate::zlib::lanes::WIDTH;

/// For each place the last one before it with the same bytes, or 0.
pub(super) struct Chains {
    /// zlib's hash chains.
    pub(super) threes: Places,
    /// How far down its hash chain a place is, modulo 2^16.
    pub(super) ranks: Places,
    /// Places of one hash of four bytes.
    pub(super) fours: Places,
    three_hashes: Places,
    four_hashes: Places,
    /// For each hash of three bytes its last place, plus `base`.
    last_threes: Places,
    /// For each hash of four bytes its last place, plus `base`.
    last_fours: Places,
    /// What is below belongs to texts before: to clear all hashes for every text would take
    /// longer than the text.
    base: u16,
}

impl Default for Chains {
    fn default() -> Self {
        Self {
            threes: places(),
            ranks: places(),
            fours: places(),
            three_hashes: places(),
            four_hashes: places(),
            last_threes: places(),
            last_fours: places(),
            base: 0,
        }
    }
}

impl Chains {
    /// Links all places of a text, and gives the largest rank.
    pub(super) fn link(&mut self, text: &Text) -> u16 {
        let end = text.end();
        if usize::from(self.base) + usize::from(end) > N_PLACES - 1 {
            self.last_threes.fill(0);
            self.last_fours.fill(0);
            self.base = 0;
        }
        self.hash(text);
        let (three_end, four_end) = (end - 2, end - 3);
        // zlib takes the first place for none.
        self.ranks[0] = u16::MAX;
        for at in [0, START] {
            self.threes[usize::from(at)] = 0;
            self.fours[usize::from(at)] = 0;
        }
        self.last_threes[usize::from(self.three_hashes[usize::from(START)])] = self.base;
        self.last_fours[usize::from(self.four_hashes[usize::from(START)])] = self.base;
        for at in START + 1..three_end {
            self.link_three(at);
        }
        for at in START + 1..four_end {
            self.link_four(at);
        }
        // No place after them has so many bytes.
        let row = usize::from(end) + 2 * WIDTH;
        self.threes[three_end.into()..row].fill(0);
        self.fours[four_end.into()..row].fill(0);
        self.base += end;
        let ranks = &self.ranks[usize::from(START) + 1..usize::from(three_end)];
        ranks.iter().copied().max().unwrap_or(0)
    }

    fn hash(&mut self, text: &Text) {
        let end = usize::from(text.end());
        let bytes = text.bytes();
        let hashes = self.three_hashes[..end]
            .iter_mut()
            .zip(&mut self.four_hashes[..end]);
        for (((((three, four), a), b), c), d) in hashes
            .zip(&bytes[0..])
            .zip(&bytes[1..])
            .zip(&bytes[2..])
            .zip(&bytes[3..])
        {
            let [a, b, c, d] = [*a, *b, *c, *d].map(u16::from);
            *three = (a << 10 ^ b << 5 ^ c) & 0x7fff;
            *four = hash_four(a | b << 8, c | d << 8);
        }
    }

    #[inline]
    fn link_three(&mut self, at: u16) {
        let hash = self.three_hashes[usize::from(at)];
        let last = replace(&mut self.last_threes[usize::from(hash)], self.base + at);
        let last = last.saturating_sub(self.base);
        let rank = self.ranks[usize::from(last)].wrapping_add(1);
        self.threes[usize::from(at)] = last;
        self.ranks[usize::from(at)] = rank;
    }

    #[inline]
    fn link_four(&mut self, at: u16) {
        let hash = self.four_hashes[usize::from(at)];
        let last = replace(&mut self.last_fours[usize::from(hash)], self.base + at);
        self.fours[usize::from(at)] = last.saturating_sub(self.base);
    }
}

/// Two multiplicative hashes (Knuth, The Art of Computer Programming 3, section 6.4) of two
/// bytes each, in the 16 bits that vector instructions multiply.
fn hash_four(first: u16, second: u16) -> u16 {
    const FACTORS: [u16; 2] = [0x9e35, 0x6a4d];
    let [[low, _], [_, high]] = FACTORS.map(|factor| halves(first, factor));
    let [[_, other_high], [other_low, _]] = FACTORS.map(|factor| halves(second, factor));
    low.wrapping_add(high) ^ other_low.wrapping_add(other_high)
}

/// A product's lower and upper half.
fn halves(left: u16, right: u16) -> [u16; 2] {
    let product = u32::from(left) * u32::from(right);
    let [a, b, c, d] = product.to_le_bytes();
    [[a, b], [c, d]].map(u16::from_le_bytes)
}
