//! Chains of places where the same bytes start.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the window, and hashes have 15 bits"
)]

use std::array::from_fn;
use std::mem::replace;
use std::ops::{Range, RangeInclusive};

use super::repeat::Repeat;
use super::{Bytes, HALF, SIZE};

/// zlib's.
const THREE_BITS: u32 = 15;
const FOUR_BITS: u32 = 15;

/// Fields of a place's links, the second and the third.
const RANK: usize = 1;
const FOUR: usize = 2;

/// The hash chains of the bytes in view.
pub(super) struct Chains {
    /// For each place its [`Links`], and a field to make them a power of two.
    links: Box<[[u16; 4]; SIZE]>,
    /// For each hash of three bytes its last place.
    last_threes: Box<[u16; 1 << THREE_BITS]>,
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
            links: Box::new([[0; 4]; SIZE]),
            last_threes: Box::new([0; 1 << THREE_BITS]),
            last_fours: Box::new([0; 1 << FOUR_BITS]),
        }
    }
}

impl Chains {
    pub(super) fn clear(&mut self) {
        self.last_threes.fill(0);
        self.last_fours.fill(0);
    }

    #[inline]
    pub(super) fn links(&self, at: usize) -> Links {
        let [three, rank, four, _] = self.links[at % SIZE];
        Links { three, rank, four }
    }

    pub(super) fn slide(&mut self) {
        self.links.copy_within(HALF.., 0);
        // Ranks stay. Rows of eight places are wide enough for vector instructions.
        let half = place(HALF);
        let moves: [u16; 32] = from_fn(|field| if field % 4 == RANK { 0 } else { half });
        let (rows, _) = self.links[..HALF].as_flattened_mut().as_chunks_mut::<32>();
        for row in rows {
            for (field, by) in row.iter_mut().zip(moves) {
                *field = field.saturating_sub(by);
            }
        }
        for lasts in [&mut self.last_threes[..], &mut self.last_fours[..]] {
            for last in lasts {
                *last = last.saturating_sub(half);
            }
        }
    }

    /// Links places of `bytes`, each of which has four bytes.
    pub(super) fn link(&mut self, bytes: &Bytes, places: Range<usize>) {
        let (links, threes, fours) = (
            &mut *self.links,
            &mut *self.last_threes,
            &mut *self.last_fours,
        );
        let mut hash = hash_all(&bytes[places.start..][..2]);
        for at in places.map(|at| at % SIZE) {
            hash = hash_next(hash, bytes[at + 2]);
            let three = replace(&mut threes[hash], place(at));
            let four = replace(&mut fours[hash_four(four_bytes(&bytes[at..]))], place(at));
            let rank = links[usize::from(three)][RANK].wrapping_add(1);
            links[at] = [three, rank, four, 0];
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
            self.last_threes[hash_all(&bytes[..3])] = place(at);
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
        self.links[at][FOUR] = 0;
    }

    pub(super) fn unlink(&mut self, places: RangeInclusive<usize>) {
        for at in places {
            self.links[at % SIZE] = [0; 4];
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

#[expect(
    clippy::cast_possible_truncation,
    reason = "the window has 2^16 places"
)]
fn place(at: usize) -> u16 {
    at as u16
}
