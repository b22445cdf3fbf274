//! Bytes that two places of a window have in common.

use super::window::{MAX_LENGTH, Window};

/// Bytes compared at once.
pub(super) const WORD: usize = 8;

/// The bytes of a word that a match one longer than `length` has.
#[inline]
pub(super) fn up_to(length: usize) -> u64 {
    u64::MAX >> (8 * (WORD - 1).saturating_sub(length))
}

/// Bytes that two places have in common, if a whole word is the same.
#[inline(never)]
pub(super) fn word_or_more(window: &Window, at: usize, candidate: usize) -> usize {
    common_length(window, at, candidate, MAX_LENGTH)
}

/// Whether so many bytes, at most eight, are the same.
#[inline]
pub(super) fn is_same(window: &Window, at: usize, candidate: usize, length: usize) -> bool {
    (window.word(at) ^ window.word(candidate)) & up_to(length - 1) == 0
}

/// The end, at most eight bytes, of the shortest match that would be an improvement. Few
/// candidates have it, and up to eight bytes it is the whole match.
pub(super) struct Ending {
    offset: usize,
    bytes: u64,
    improvement: u64,
}

impl Ending {
    #[inline]
    pub(super) fn new(window: &Window, at: usize, length: usize) -> Self {
        let offset = length.saturating_sub(WORD - 1);
        Self {
            offset,
            bytes: window.word(at + offset),
            improvement: up_to(length),
        }
    }

    #[inline]
    pub(super) fn occurs(&self, window: &Window, candidate: usize) -> bool {
        (window.word(candidate + self.offset) ^ self.bytes) & self.improvement == 0
    }
}

/// Bytes that two places have in common, at most `longest`.
#[inline]
pub(super) fn common_length(window: &Window, at: usize, candidate: usize, longest: usize) -> usize {
    let mut length = 0;
    while length < longest {
        let difference = window.word(at + length) ^ window.word(candidate + length);
        if difference != 0 {
            length += difference.trailing_zeros() as usize / 8;
            break;
        }
        length += WORD;
    }
    length.min(longest)
}
