//! Lists that rows are sifted into.

#![expect(
    clippy::indexing_slicing,
    reason = "a list has room for all places of a text"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use super::{MAX_PLACES, WIDTH};

/// Room for a pair from each place of a text, and for a row that is partly in use.
const ROOM: usize = MAX_PLACES + WIDTH;

/// Pairs of numbers, in one integer each: the first in the lower half.
pub(in crate::zlib) struct List {
    pairs: Box<[u32; ROOM]>,
    length: usize,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for List {
    fn default() -> Self {
        Self {
            pairs: Box::new([0; ROOM]),
            length: 0,
        }
    }
}

impl List {
    pub(in crate::zlib) fn clear(&mut self) {
        self.length = 0;
    }

    pub(in crate::zlib) fn iter(&self) -> impl Iterator<Item = [u16; 2]> + '_ {
        self.pairs[..self.length].iter().map(|pair| halves(*pair))
    }

    /// Replaces each pair by another, or drops it.
    #[inline(always)]
    pub(in crate::zlib) fn update(&mut self, mut next: impl FnMut([u16; 2]) -> ([u16; 2], bool)) {
        let (pairs, mut length) = (&mut *self.pairs, 0);
        for at in 0..self.length.min(ROOM) {
            let (pair, is_wanted) = next(halves(pairs[at]));
            if let Some(next) = pairs.get_mut(length) {
                *next = joined(pair);
                length += usize::from(is_wanted);
            }
        }
        self.length = length;
    }

    /// Appends a pair if it is wanted.
    #[inline(always)]
    pub(in crate::zlib) fn append(&mut self, pair: [u16; 2], is_wanted: bool) {
        let next = self.pairs.get_mut(self.length);
        debug_assert!(next.is_some(), "a list has room for all places of a text");
        if let Some(next) = next {
            *next = joined(pair);
            self.length += usize::from(is_wanted);
        }
    }

    pub(in crate::zlib) fn length(&self) -> usize {
        self.length
    }

    /// Appends the first so many of these pairs.
    #[inline(always)]
    pub(super) fn extend<const N: usize>(&mut self, pairs: [u32; N], length: u32) {
        let rest = self.pairs[self.length..].first_chunk_mut();
        debug_assert!(rest.is_some(), "a list has room for a row more");
        if let Some(rest) = rest {
            *rest = pairs;
            self.length += length as usize;
        }
    }
}

#[inline]
pub(super) fn joined([first, second]: [u16; 2]) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

#[inline]
fn halves(pair: u32) -> [u16; 2] {
    let [a, b, c, d] = pair.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}
