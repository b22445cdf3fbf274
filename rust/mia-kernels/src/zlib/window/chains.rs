//! Chains of places where the same bytes start.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the window, and there is an entry for each hash"
)]

use std::mem::replace;
use std::ops::{Range, RangeInclusive};

use super::repeat::Repeat;
use super::{Bytes, HALF, SIZE};
use crate::limits::number;

/// zlib's.
const THREE_BITS: u32 = 15;
const FOUR_BITS: u32 = 16;

/// The half of a chain's end, or of a last place, that tells the place.
const PLACE: u32 = (1 << 16) - 1;

/// The hash chains of the bytes in view.
///
/// A chain's end is its last place, and in the upper half how many places there are in it,
/// modulo 2^16.
pub(super) struct Chains {
    /// For each place the end that its hash chain had before it, and its last four.
    links: Box<[[u32; 2]; SIZE]>,
    /// For each hash of three bytes the end of its chain.
    ends: Box<[u32; 1 << THREE_BITS]>,
    /// For each hash of four bytes its last place.
    last_fours: Box<[u16; 1 << FOUR_BITS]>,
}

/// What is known about a place. What it names is out of view unless it is after the start.
#[derive(Clone, Copy)]
pub(in crate::zlib) struct Links {
    /// The last place before it in its hash chain, which is that of its three bytes.
    pub(in crate::zlib) three: u16,
    /// How far down the hash chain it is, modulo 2^16.
    pub(in crate::zlib) rank: u16,
    /// The last place before it with the same hash of four bytes.
    pub(in crate::zlib) four: u16,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for Chains {
    fn default() -> Self {
        Self {
            links: Box::new([[0; 2]; SIZE]),
            ends: Box::new([0; 1 << THREE_BITS]),
            last_fours: Box::new([0; 1 << FOUR_BITS]),
        }
    }
}

impl Chains {
    pub(super) fn clear(&mut self) {
        self.ends.fill(0);
        self.last_fours.fill(0);
    }

    #[inline]
    pub(super) fn links(&self, at: usize) -> Links {
        let [end, four] = self.links[at % SIZE];
        Links {
            three: lower(end),
            rank: lower(end >> 16),
            four: lower(four),
        }
    }

    pub(super) fn slide(&mut self) {
        self.links.copy_within(HALF.., 0);
        for ends in [self.links[..HALF].as_flattened_mut(), &mut *self.ends] {
            for end in ends {
                *end = moved(*end);
            }
        }
        for last in &mut *self.last_fours {
            *last = last.saturating_sub(place(HALF));
        }
    }

    /// Links places of `bytes`, each of which has four bytes.
    pub(super) fn link(&mut self, bytes: &Bytes, places: Range<usize>) {
        let (links, ends, fours) = (&mut *self.links, &mut *self.ends, &mut *self.last_fours);
        let mut hash = hash_all(&bytes[places.start..][..2]);
        for at in places.map(|at| at % SIZE) {
            hash = hash_next(hash, bytes[at + 2]);
            let end = ends[hash];
            ends[hash] = grown(end, at);
            let four = replace(&mut fours[hash_four(four_bytes(&bytes[at..]))], place(at));
            links[at] = [end, four.into()];
        }
    }

    /// Links places as those a period before: each link goes on by as much as it went on from
    /// the period before that one.
    pub(super) fn link_repeat(&mut self, bytes: &Bytes, repeat: &Repeat) {
        let Repeat { start, end, period } = *repeat;
        for at in (start..end).step_by(period) {
            let (linked, unlinked) = self.links.split_at_mut(at);
            let (before, last) = linked[at - 2 * period..].split_at(period);
            let links = unlinked[..period.min(end - at)].as_flattened_mut();
            let lasts = last.as_flattened().iter().zip(before.as_flattened());
            for (link, (last, before)) in links.iter_mut().zip(lasts) {
                *link = last.wrapping_mul(2).wrapping_sub(*before);
            }
        }
        for (at, bytes) in (end - period..end).zip(bytes[end - period..].windows(4)) {
            let [before, _] = self.links[at];
            self.ends[hash_all(&bytes[..3])] = grown(before, at);
            self.last_fours[hash_four(four_bytes(bytes))] = place(at);
        }
    }

    /// The last place with the hash of these four bytes.
    #[inline]
    pub(super) fn last_four(&self, bytes: &[u8]) -> usize {
        self.last_fours[hash_four(four_bytes(bytes))].into()
    }

    /// Forgets where else the four bytes of a place stand.
    pub(super) fn unlink_four(&mut self, at: usize) {
        let [_, four] = &mut self.links[at];
        *four = 0;
    }

    pub(super) fn unlink(&mut self, places: RangeInclusive<usize>) {
        for at in places {
            self.links[at % SIZE] = [0; 2];
        }
    }
}

/// The first four, the first one lowest.
#[inline]
fn four_bytes(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// zlib's hash of three bytes, or how far two of them bring it.
fn hash_all(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |hash, byte| hash_next(hash, *byte))
}

/// zlib's hash, one byte further. What the third byte before had left in it is gone then.
#[inline]
fn hash_next(hash: usize, byte: u8) -> usize {
    (hash << 5 ^ usize::from(byte)) % (1 << THREE_BITS)
}

/// A multiplicative hash (Knuth, The Art of Computer Programming 3, section 6.4).
pub(in crate::zlib) fn hash_four(bytes: u32) -> usize {
    (bytes.wrapping_mul(0x9e37_79b1) >> (32 - FOUR_BITS)) as usize
}

/// The end of a chain that goes on to this place.
fn grown(end: u32, at: usize) -> u32 {
    (end & !PLACE).wrapping_add(PLACE + 1 + number(at))
}

/// The same, or a last place, after the window has moved by half of its size.
fn moved(end: u32) -> u32 {
    let half = u32::from(place(HALF));
    end & if end & half == 0 { !PLACE } else { !half }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the window has 2^16 places"
)]
fn place(at: usize) -> u16 {
    at as u16
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn lower(end: u32) -> u16 {
    end as u16
}
