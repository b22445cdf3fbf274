//! Where the same bytes stood before.

#![expect(
    clippy::indexing_slicing,
    reason = "places and hashes index arrays of their number"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use std::mem::replace;

use super::text::{GROUP, N_PLACES, Numbers, Places, START, Text, numbers, place};
use crate::zlib::lanes::{Lanes, WIDTH};

/// Bits of zlib's hash of three bytes, and of the one of five, which needs to tell less apart.
const HASH: u16 = (1 << 15) - 1;

/// For each place the last ones before it with the same bytes.
#[derive(Default)]
pub(super) struct Chains {
    /// zlib's hash chains.
    pub(super) threes: Chain<3, 0, 5>,
    /// Places of one hash of four bytes.
    pub(super) fours: Chain<4, 10, 15>,
    /// Places of one hash of five bytes.
    pub(super) fives: Chain<5, 20, 25>,
    /// How far down its hash chain a place is, modulo 2^16.
    pub(super) ranks: Box<Places<30>>,
    /// What is below belongs to texts before: to clear all hashes for every text would take
    /// longer than the text.
    base: u16,
}

impl Chains {
    /// Links all places of a text, and gives the largest rank.
    pub(super) fn link(&mut self, lanes: impl Lanes, text: &Text) -> u16 {
        let n_places = usize::from(text.end()) + GROUP;
        if usize::from(self.base) + n_places > N_PLACES - 1 {
            self.threes.lasts[..=HASH.into()].fill(0);
            self.fours.lasts.fill(0);
            self.fives.lasts[..=HASH.into()].fill(0);
            self.base = 0;
        }
        let most = lanes.run(
            #[inline(always)]
            || {
                self.hash(text);
                self.threes.link(text, self.base);
                self.fours.link(text, self.base);
                self.fives.link(text, self.base);
                self.rank(text)
            },
        );
        self.base += place(n_places);
        most
    }

    /// Hashes what starts at each place, and at those that are linked in one go with the last.
    #[inline(always)]
    #[expect(
        clippy::many_single_char_names,
        reason = "bytes that follow each other"
    )]
    fn hash(&mut self, text: &Text) {
        let (bytes, end) = (text.bytes(), usize::from(text.end()) + GROUP);
        let threes = self.threes.hashes[..end].iter_mut();
        let fours = self.fours.hashes[..end].iter_mut();
        let fives = self.fives.hashes[..end].iter_mut();
        let hashes = threes.zip(fours).zip(fives);
        let firsts = bytes.iter().zip(&bytes[1..]).zip(&bytes[2..]);
        let lasts = bytes[3..].iter().zip(&bytes[4..]);
        for ((((three, four), five), ((a, b), c)), (d, e)) in hashes.zip(firsts).zip(lasts) {
            let [a, b, c, d, e] = [*a, *b, *c, *d, *e].map(u16::from);
            *three = (a << 10 ^ b << 5 ^ c) & HASH; // zlib's
            *four = hash_four(a | b << 8, c | d << 8);
            *five = (*four ^ e.wrapping_mul(FACTORS[0])) & HASH;
        }
    }

    /// Ranks all places that have three bytes, and gives the largest rank.
    #[inline(always)]
    fn rank(&mut self, text: &Text) -> u16 {
        let (threes, ranks): (&Numbers, &mut Numbers) = (&self.threes.links, &mut self.ranks);
        // zlib takes the first place for none.
        ranks[0] = u16::MAX;
        let places = usize::from(START) + 1..usize::from(text.end()) - 2;
        for at in places.clone() {
            ranks[at] = ranks[usize::from(threes[at])].wrapping_add(1);
        }
        ranks[places].iter().fold(0, |most, rank| most.max(*rank))
    }
}

/// Places of the same hash of `N` bytes.
pub(super) struct Chain<const N: usize, const LINKS: usize, const HASHES: usize> {
    /// For each place the last one before it, or 0.
    pub(super) links: Box<Places<LINKS>>,
    hashes: Box<Places<HASHES>>,
    /// For each hash its last place, plus `base`.
    lasts: Box<Numbers>,
}

impl<const N: usize, const LINKS: usize, const HASHES: usize> Default for Chain<N, LINKS, HASHES> {
    fn default() -> Self {
        Self {
            links: Box::default(),
            hashes: Box::default(),
            lasts: numbers(),
        }
    }
}

impl<const N: usize, const LINKS: usize, const HASHES: usize> Chain<N, LINKS, HASHES> {
    /// Links all places of a text that have so many bytes.
    #[inline(always)]
    fn link(&mut self, text: &Text, base: u16) {
        let end = usize::from(text.end());
        let (links, lasts): (&mut Numbers, &mut Numbers) = (&mut self.links, &mut self.lasts);
        // zlib takes the first place for none.
        let start = usize::from(START) + 1;
        links[..start].fill(0);
        lasts[usize::from(self.hashes[usize::from(START)])] = base;
        let end = end + 1 - N;
        let n_groups = (end - start).div_ceil(GROUP);
        let hashes = &self.hashes[start..].as_chunks::<GROUP>().0[..n_groups];
        let groups = &mut links[start..].as_chunks_mut::<GROUP>().0[..n_groups];
        let mut at = base + place(start);
        for (links, hashes) in groups.iter_mut().zip(hashes) {
            for (link, hash) in links.iter_mut().zip(hashes) {
                *link = replace(&mut lasts[usize::from(*hash)], at);
                at += 1;
            }
        }
        for link in &mut links[start..end] {
            *link = link.saturating_sub(base);
        }
        links[end..][..N + 2 * WIDTH].fill(0);
    }
}

const FACTORS: [u16; 2] = [0x9e35, 0x6a4d];

/// Two multiplicative hashes (Knuth, The Art of Computer Programming 3, section 6.4) of two
/// bytes each, in the 16 bits that vector instructions multiply.
#[inline(always)]
fn hash_four(first: u16, second: u16) -> u16 {
    let [[low, _], [_, high]] = FACTORS.map(|factor| halves(first, factor));
    let [[_, other_high], [other_low, _]] = FACTORS.map(|factor| halves(second, factor));
    low.wrapping_add(high) ^ other_low.wrapping_add(other_high)
}

/// A product's lower and upper half.
#[inline(always)]
fn halves(left: u16, right: u16) -> [u16; 2] {
    let product = u32::from(left) * u32::from(right);
    let [a, b, c, d] = product.to_le_bytes();
    [[a, b], [c, d]].map(u16::from_le_bytes)
}
