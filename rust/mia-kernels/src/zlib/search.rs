//! The match that zlib finds at a place.

use super::window::{MAX_DISTANCE, MAX_LENGTH, Window};

/// A match this long is taken without a look at the next place.
pub(super) const MAX_LAZY: usize = 16;
/// The shortest match.
const MIN_LENGTH: usize = 3;
/// The shortest matches are not worth it from further away.
const MAX_DISTANCE_OF_SHORTEST: usize = 4096;
/// Candidates that are tried.
const MAX_TRIES: u32 = 128;
/// Candidates that are tried where a match of `GOOD_LENGTH` is known already.
const MAX_TRIES_IF_GOOD: u32 = 32;
const GOOD_LENGTH: usize = 8;
/// A match this long ends the search.
const NICE_LENGTH: usize = 128;

/// Bytes that occurred before.
#[derive(Clone, Copy)]
pub(super) struct Match {
    /// How many, or [`Match::NONE`]'s 2.
    pub(super) length: usize,
    /// How far back.
    pub(super) distance: usize,
}

impl Match {
    /// No match.
    pub(super) const NONE: Self = Self {
        length: MIN_LENGTH - 1,
        distance: 0,
    };

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.length < MIN_LENGTH
    }
}

/// The first of the longest matches at `at` that are longer than `shorter`.
#[inline]
pub(super) fn find(window: &Window, at: usize, shorter: usize) -> Match {
    let first = window.previous(at);
    if first == 0 || at - first > MAX_DISTANCE {
        return Match::NONE;
    }
    let found = search(window, at, first, shorter);
    if found.length == MIN_LENGTH && found.distance > MAX_DISTANCE_OF_SHORTEST {
        return Match::NONE;
    }
    found
}

fn search(window: &Window, at: usize, first: usize, shorter: usize) -> Match {
    let longest = window.left(at).min(MAX_LENGTH);
    let nice = longest.min(NICE_LENGTH);
    let nearest_too_far = at.saturating_sub(MAX_DISTANCE);
    let mut tries = if shorter < GOOD_LENGTH {
        MAX_TRIES
    } else {
        MAX_TRIES_IF_GOOD
    };
    let mut found = Match::NONE;
    if shorter >= longest || cannot_exceed(window, at, shorter) {
        return found;
    }
    let mut ending = Ending::new(window, at, shorter);
    let mut candidate = first;
    loop {
        if ending.occurs(window, candidate) {
            let length = common_length(window, at, candidate).min(longest);
            if length > ending.length {
                found = Match {
                    length,
                    distance: at - candidate,
                };
                if length >= nice || cannot_exceed(window, at, length) {
                    break;
                }
                ending = Ending::new(window, at, length);
            }
        }
        candidate = window.previous(candidate);
        tries -= 1;
        if candidate <= nearest_too_far || tries == 0 {
            break;
        }
    }
    found
}

/// Whether the three bytes that end a match one longer than `length` never occurred before.
#[inline]
fn cannot_exceed(window: &Window, at: usize, length: usize) -> bool {
    window.previous(at + length + 1 - MIN_LENGTH) == 0
}

/// The end, at most eight bytes, of the shortest match that would be an improvement. Few
/// candidates have it, and up to eight bytes it is the whole match.
struct Ending {
    /// Length of the match to improve on.
    length: usize,
    offset: usize,
    bytes: u64,
    /// Bits to leave out.
    unused: usize,
}

impl Ending {
    #[inline]
    fn new(window: &Window, at: usize, length: usize) -> Self {
        let offset = length.saturating_sub(7);
        Self {
            length,
            offset,
            bytes: window.word(at + offset),
            unused: 8 * 7_usize.saturating_sub(length),
        }
    }

    #[inline]
    fn occurs(&self, window: &Window, candidate: usize) -> bool {
        (window.word(candidate + self.offset) ^ self.bytes) << self.unused == 0
    }
}

/// Bytes that two places have in common, at most [`MAX_LENGTH`] and up to seven.
#[inline]
fn common_length(window: &Window, at: usize, candidate: usize) -> usize {
    let mut length = 0;
    while length < MAX_LENGTH {
        let difference = window.word(at + length) ^ window.word(candidate + length);
        if difference != 0 {
            return length + difference.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    length
}
