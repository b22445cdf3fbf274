//! Where the same bytes stood before.

#![expect(
    clippy::indexing_slicing,
    reason = "places and hashes index arrays of their number"
)]

use std::mem::replace;
use std::ops::Range;

use super::text::{N_PLACES, Numbers, Places, START, Text, numbers};
use crate::zlib::lanes::WIDTH;

/// For each place the last one before it with the same bytes, or 0.
pub(super) struct Chains {
    /// zlib's hash chains.
    pub(super) threes: Box<Places<0>>,
    /// How far down its hash chain a place is, modulo 2^16.
    pub(super) ranks: Box<Places<5>>,
    /// Places of one hash of four bytes.
    pub(super) fours: Box<Places<10>>,
    three_hashes: Box<Places<15>>,
    four_hashes: Box<Places<20>>,
    /// For each hash of three bytes its last place, plus `base`.
    last_threes: Box<Numbers>,
    /// For each hash of four bytes its last place, plus `base`.
    last_fours: Box<Numbers>,
    /// What is below belongs to texts before: to clear all hashes for every text would take
    /// longer than the text.
    base: u16,
}

impl Default for Chains {
    fn default() -> Self {
        Self {
            threes: Box::default(),
            ranks: Box::default(),
            fours: Box::default(),
            three_hashes: Box::default(),
            four_hashes: Box::default(),
            last_threes: numbers(),
            last_fours: numbers(),
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
        self.link_all(START + 1..three_end);
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

    /// Links places that have three bytes, the last of them as if it had four.
    fn link_all(&mut self, places: Range<u16>) {
        let [three_hashes, four_hashes]: [&Numbers; 2] = [&self.three_hashes, &self.four_hashes];
        let [threes, ranks, fours]: [&mut Numbers; 3] =
            [&mut self.threes, &mut self.ranks, &mut self.fours];
        let [last_threes, last_fours] = [&mut self.last_threes, &mut self.last_fours];
        let last = |lasts: &mut Numbers, hash: u16, at: u16| {
            replace(&mut lasts[usize::from(hash)], self.base + at).saturating_sub(self.base)
        };
        for at in places {
            let place = usize::from(at);
            let three = last(last_threes, three_hashes[place], at);
            threes[place] = three;
            ranks[place] = ranks[usize::from(three)].wrapping_add(1);
            fours[place] = last(last_fours, four_hashes[place], at);
        }
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
