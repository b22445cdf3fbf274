//! The match that zlib finds at a place.

use super::window::{Links, MAX_DISTANCE, MAX_LENGTH, Window};

/// A match this long is taken without a look at the next place.
pub(super) const MAX_LAZY: usize = 16;
/// The shortest match.
pub(super) const MIN_LENGTH: usize = 3;
/// The shortest matches are not worth it from further away.
pub(super) const MAX_DISTANCE_OF_SHORTEST: usize = 4096;
/// Candidates that are tried.
pub(super) const MAX_TRIES: u16 = 128;
/// Candidates that are tried where a match of `GOOD_LENGTH` is known already.
pub(super) const MAX_TRIES_IF_GOOD: u16 = 32;
pub(super) const GOOD_LENGTH: usize = 8;
/// Steps along places of one hash of four bytes. There are more only if other bytes have the
/// same hash.
const MAX_STEPS: u16 = 4 * MAX_TRIES;
/// A match this long ends the search.
pub(super) const NICE_LENGTH: usize = 128;

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

/// The first of the longest matches at `at`.
#[inline]
pub(super) fn find(window: &Window, at: usize) -> Match {
    let links = window.links(at);
    if usize::from(links.three) <= window.start() {
        return Match::NONE;
    }
    let hidden = hidden(window, at, links.three.into());
    let Some(three) = three(window, at, links.three.into(), hidden) else {
        return Match::NONE;
    };
    if usize::from(links.four) > hidden {
        let found = four_or_more(window, at, links, hidden, MIN_LENGTH);
        if !found.is_none() {
            return found;
        }
    }
    let distance = at - three;
    if distance > MAX_DISTANCE_OF_SHORTEST {
        return Match::NONE;
    }
    Match {
        length: MIN_LENGTH,
        distance,
    }
}

/// The first of the longest matches at `at` that are longer than the one before it.
#[inline]
pub(super) fn find_longer(window: &Window, at: usize, before: Match) -> Match {
    if before.length >= MAX_LAZY {
        return Match::NONE;
    }
    let links = window.links(at);
    let hidden = hidden(window, at, links.three.into());
    if (usize::from(links.four) <= hidden) | cannot_exceed(window, at, before.length) {
        return Match::NONE;
    }
    four_or_more(window, at, links, hidden, before.length)
}

/// Whether the four bytes that end a match one longer than `length` never occurred before.
#[inline]
fn cannot_exceed(window: &Window, at: usize, length: usize) -> bool {
    let links = window.links(at + length - MIN_LENGTH);
    usize::from(links.four) <= window.start()
}

#[inline(never)]
fn four_or_more(window: &Window, at: usize, links: Links, hidden: usize, shorter: usize) -> Match {
    let mut search = Search {
        window,
        at,
        rank: links.rank,
        hidden,
        tries: if shorter < GOOD_LENGTH {
            MAX_TRIES
        } else {
            MAX_TRIES_IF_GOOD
        },
        longest: window.left(at).min(MAX_LENGTH),
        ending: Ending::new(window, at, shorter),
        found: Match::NONE,
    };
    if !search.is_done_after(MAX_STEPS, links.four, |links| links.four) {
        search.is_done_after(search.tries, links.three, |links| links.three);
    }
    search.found
}

/// The last place too far back for a match. Only the first candidate may be at the limit.
#[inline]
fn hidden(window: &Window, at: usize, first: usize) -> usize {
    let limit = at.saturating_sub(MAX_DISTANCE);
    let hidden = if first == limit {
        limit.saturating_sub(1)
    } else {
        limit
    };
    hidden.max(window.start())
}

/// A search for matches of four bytes or more.
struct Search<'a> {
    window: &'a Window,
    at: usize,
    rank: u16,
    hidden: usize,
    /// How far down the hash chain zlib goes.
    tries: u16,
    longest: usize,
    ending: Ending,
    found: Match,
}

impl Search<'_> {
    /// Follows a chain from `first` on, at most so many steps, and tells whether no place
    /// further down would do.
    #[inline]
    fn is_done_after(&mut self, steps: u16, first: u16, next: impl Fn(Links) -> u16) -> bool {
        let mut candidate = usize::from(first);
        for _ in 0..steps {
            if candidate <= self.hidden {
                return true;
            }
            let links = self.window.links(candidate);
            let is_far_down = self.rank.wrapping_sub(links.rank) > self.tries;
            if is_far_down && is_same(self.window, self.at, candidate, 4) {
                return true;
            }
            if self.ending.occurs(self.window, candidate) && self.is_best(candidate) {
                return true;
            }
            candidate = next(links).into();
        }
        false
    }

    /// Takes a match if it is longer, and tells whether zlib looks for none that is longer yet.
    #[inline]
    fn is_best(&mut self, candidate: usize) -> bool {
        let length = common_length(self.window, self.at, candidate, self.longest);
        if length <= self.ending.length {
            return false;
        }
        self.found = Match {
            length,
            distance: self.at - candidate,
        };
        if length >= self.longest.min(NICE_LENGTH) || cannot_exceed(self.window, self.at, length) {
            return true;
        }
        self.ending = Ending::new(self.window, self.at, length);
        false
    }
}

/// The last place of the same three bytes. Without one there is no match.
#[inline]
fn three(window: &Window, at: usize, mut candidate: usize, hidden: usize) -> Option<usize> {
    let mut tries = MAX_TRIES;
    while candidate > hidden && tries > 0 {
        if is_same(window, at, candidate, 3) {
            return Some(candidate);
        }
        candidate = window.links(candidate).three.into();
        tries -= 1;
    }
    None
}

/// Whether so many bytes, at most eight, are the same.
#[inline]
fn is_same(window: &Window, at: usize, candidate: usize, length: usize) -> bool {
    (window.word(at) ^ window.word(candidate)) << (64 - 8 * length) == 0
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

/// Bytes that two places have in common, at most `longest`.
#[inline]
fn common_length(window: &Window, at: usize, candidate: usize, longest: usize) -> usize {
    let mut length = 0;
    while length < longest {
        let difference = window.word(at + length) ^ window.word(candidate + length);
        if difference != 0 {
            length += difference.trailing_zeros() as usize / 8;
            break;
        }
        length += 8;
    }
    length.min(longest)
}
