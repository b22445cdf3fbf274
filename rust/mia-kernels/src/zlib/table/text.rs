//! The bytes of a text.

#![expect(clippy::indexing_slicing, reason = "every place of 16 bits is inside")]

use std::ops::{Deref, DerefMut};

use crate::zlib::lanes::{Lanes, MAX_PLACES, WIDTH};

/// The longest text that a table can be made of: chains grow with the text, and a table follows
/// them from every place, wherever zlib looks.
pub(in crate::zlib) const MAX_BYTES: usize = MAX_PLACES - WIDTH;
/// The shortest.
const MIN_BYTES: usize = 64;
/// Where a text starts. The byte before it is no byte of any text, so that no match is found
/// there.
pub(super) const START: u16 = 1;
/// Places that 16 bits tell apart. With so many no place needs to be checked.
pub(super) const N_PLACES: usize = 1 << 16;
/// Places that a loop goes through in one go: nearly half of its time would go into the loop
/// itself.
pub(super) const GROUP: usize = 8;
/// Bytes that may be looked at after the last one: two words, or what is left of a row.
const AFTER: usize = 2 * WIDTH;

/// A number for each place.
pub(super) type Numbers = [u16; N_PLACES];

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
pub(super) fn numbers() -> Box<Numbers> {
    Box::new([0; N_PLACES])
}

/// Numbers of the places, `N` cache lines away from where they would start.
///
/// Each of a table's has another `N`. Loops go through several of them at once, and where two
/// addresses have the same lower bits a processor lets a load wait for a store before it.
#[repr(C, align(64))]
pub(super) struct Places<const N: usize> {
    before: [[u8; 64]; N],
    numbers: Numbers,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl<const N: usize> Default for Places<N> {
    fn default() -> Self {
        Self {
            before: [[0; 64]; N],
            numbers: [0; N_PLACES],
        }
    }
}

impl<const N: usize> Deref for Places<N> {
    type Target = Numbers;

    fn deref(&self) -> &Numbers {
        &self.numbers
    }
}

impl<const N: usize> DerefMut for Places<N> {
    fn deref_mut(&mut self) -> &mut Numbers {
        &mut self.numbers
    }
}

/// A text between zeros, of which it has none.
pub(super) struct Text {
    bytes: Box<[u8; N_PLACES + 8]>,
    /// The place after the last byte.
    end: u16,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for Text {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; N_PLACES + 8]),
            end: START,
        }
    }
}

impl Text {
    /// Tells whether a table can be made of the text.
    pub(super) fn read(&mut self, lanes: impl Lanes, text: &[u8]) -> bool {
        #[expect(
            clippy::needless_bitwise_bool,
            reason = "a loop of vector instructions"
        )]
        let has_zero = || text.iter().fold(false, |any, byte| any | (*byte == 0));
        if !(MIN_BYTES..=MAX_BYTES).contains(&text.len()) || lanes.run(has_zero) {
            return false;
        }
        let (bytes, rest) = self.bytes[START.into()..].split_at_mut(text.len());
        bytes.copy_from_slice(text);
        rest[..AFTER].fill(0);
        self.end = START + place(text.len());
        true
    }

    /// The place after the last byte.
    #[inline]
    pub(super) fn end(&self) -> u16 {
        self.end
    }

    /// How many rows hold all places, those before and after the text included.
    pub(super) fn n_rows(&self) -> usize {
        usize::from(self.end) / WIDTH + 1
    }

    pub(super) fn bytes(&self) -> &[u8; N_PLACES + 8] {
        &self.bytes
    }

    #[inline]
    pub(super) fn view(&self) -> View<'_> {
        View { bytes: &self.bytes }
    }
}

/// The bytes for a loop, which else would look up at every step where they are.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    bytes: &'a [u8; N_PLACES + 8],
}

impl View<'_> {
    /// Eight bytes, the first one lowest.
    #[inline]
    pub(super) fn word(self, at: u16) -> u64 {
        let bytes = self.bytes[usize::from(at)..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Bits, up to eight bytes, that two places have in common.
    #[inline]
    pub(super) fn common_bits(self, at: u16, other: u16) -> u32 {
        (self.word(at) ^ self.word(other)).trailing_zeros()
    }

    /// Bytes, up to eight, that two places have in common.
    #[inline]
    pub(super) fn common_8(self, at: u16, other: u16) -> u16 {
        place(self.common_bits(at, other) as usize / 8)
    }

    /// Bytes, up to sixteen, that two places have in common.
    #[inline]
    pub(super) fn common_16(self, at: u16, other: u16) -> u16 {
        let first = self.common_8(at, other);
        let second = self.common_8(at.wrapping_add(8), other.wrapping_add(8));
        first + second * u16::from(first == 8)
    }

    /// Bytes, up to the end, that two places have in common after so many of them.
    pub(super) fn common(self, at: u16, other: u16, known: u16) -> u16 {
        let mut length = known;
        loop {
            let more = self.common_8(at + length, other + length);
            length += more;
            if more < 8 {
                return length;
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a text for a table has less than 2^16 bytes"
)]
pub(super) const fn place(at: usize) -> u16 {
    at as u16
}
