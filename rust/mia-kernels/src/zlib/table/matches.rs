//! The match that zlib finds at every place.

#![expect(clippy::indexing_slicing, reason = "every place of 16 bits is inside")]

use super::chains::Chains;
use super::rules::{MAX_DISTANCE_OF_SHORTEST, MAX_LENGTH, MIN_LENGTH, NICE_LENGTH};
use super::text::{Places, Text, places};

/// Bytes that stood before.
#[derive(Clone, Copy)]
pub(super) struct Match {
    pub(super) length: u16,
    /// Where they stood.
    pub(super) start: u16,
}

impl Match {
    /// None, or one of the shortest that is too far away.
    pub(super) const NONE: Self = Self {
        length: 0,
        start: 0,
    };

    /// A match of the least length, if it is near enough.
    pub(super) fn shortest(at: u16, start: u16) -> Self {
        if start == 0 || at - start > MAX_DISTANCE_OF_SHORTEST {
            return Self::NONE;
        }
        Self {
            length: MIN_LENGTH,
            start,
        }
    }
}

/// For each place its match.
pub(super) struct Matches {
    pub(super) lengths: Places,
    pub(super) starts: Places,
}

impl Default for Matches {
    fn default() -> Self {
        Self {
            lengths: places(),
            starts: places(),
        }
    }
}

impl Matches {
    #[inline]
    pub(super) fn get(&self, at: u16) -> Match {
        Match {
            length: self.lengths[usize::from(at)],
            start: self.starts[usize::from(at)],
        }
    }

    #[inline]
    pub(super) fn set(&mut self, at: u16, found: Match) {
        self.lengths[usize::from(at)] = found.length;
        self.starts[usize::from(at)] = found.start;
    }

    /// Tries the match whose last four bytes are at `ending` and that is longer by one than the
    /// one known, and gives the length of the longer of both and the next such place.
    #[inline]
    pub(super) fn try_next(
        &mut self,
        chains: &Chains,
        [at, ending]: [u16; 2],
        common: impl Fn(u16, u16) -> u16,
    ) -> [u16; 2] {
        let known = self.get(at);
        let candidate = ending.wrapping_add(3).wrapping_sub(known.length);
        let length = common(at, candidate);
        let is_longer = Either::new(known.length, length);
        let found = Match {
            length: is_longer.pick(length, known.length),
            start: is_longer.pick(candidate, known.start),
        };
        self.set(at, found);
        let last = at.wrapping_add(found.length).wrapping_sub(3);
        let last = is_longer.pick(last, ending);
        [found.length, chains.fours[usize::from(last)]]
    }
}

/// A choice that nobody can predict, in arithmetic: a compiler may make a branch of anything
/// else.
#[derive(Clone, Copy)]
struct Either(u16);

impl Either {
    /// All bits if `less` is less than `more`.
    #[inline]
    #[expect(clippy::cast_sign_loss, reason = "0 or all ones")]
    fn new(less: u16, more: u16) -> Self {
        Self(((i32::from(less) - i32::from(more)) >> 16) as u16)
    }

    #[inline]
    fn pick(self, set: u16, unset: u16) -> u16 {
        unset ^ (set ^ unset) & self.0
    }
}

/// Whether a match longer by one than `length` may have its last four bytes at `ending`: it
/// starts after the first place.
#[inline]
pub(super) fn may_end(ending: u16, length: u16) -> bool {
    ending + 2 > length
}

/// The longest match that zlib would take at a place.
pub(super) fn longest(text: &Text, at: u16) -> u16 {
    (text.end() - at).min(MAX_LENGTH)
}

/// The first of the longest matches, where none longer than `found` is nearer.
pub(super) fn lengthen(text: &Text, chains: &Chains, at: u16, mut found: Match) -> Match {
    let longest = longest(text, at);
    while found.length < longest.min(NICE_LENGTH) {
        let before_ending = found.length - 3;
        let mut ending = chains.fours[usize::from(at + before_ending)];
        loop {
            if !may_end(ending, found.length) {
                return found;
            }
            let start = ending - before_ending;
            if start < found.start {
                let length = text.common(at, start, 0).min(longest);
                if length > found.length {
                    found = Match { length, start };
                    break;
                }
            }
            ending = chains.fours[usize::from(ending)];
        }
    }
    found
}
