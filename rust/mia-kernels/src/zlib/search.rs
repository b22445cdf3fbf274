//! The match that zlib finds at a place.

use super::compare::{Ending, WORD, common_length, is_same, up_to, word_or_more};
use super::window::{Links, MAX_DISTANCE, MAX_LENGTH, Window};

/// A match this long is taken without a look at the next place.
const MAX_LAZY: usize = 16;
/// The shortest match.
const MIN_LENGTH: usize = 3;
/// The shortest matches are not worth it from further away.
const MAX_DISTANCE_OF_SHORTEST: usize = 4096;
/// Candidates that are tried.
const MAX_TRIES: u16 = 128;
/// Candidates that are tried where a match of `GOOD_LENGTH` is known already.
const MAX_TRIES_IF_GOOD: u16 = 32;
const GOOD_LENGTH: usize = 8;
/// Steps along places of one hash of four bytes. There are more only if other bytes have the
/// same hash.
const MAX_STEPS: u16 = 4 * MAX_TRIES;
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

/// The first of the longest matches at `at`.
///
/// A text is `WHOLE` if all of it is in view, and short enough for all of it to be in reach.
#[inline]
pub(super) fn find<const WHOLE: bool>(window: &Window, at: usize) -> Match {
    let links = window.links(at);
    let hidden = hidden::<WHOLE>(window, at, links.three.into());
    // In a long text there is nearly always some place with the same hash of four bytes.
    if !WHOLE && usize::from(links.three) <= hidden {
        return Match::NONE;
    }
    if usize::from(links.four) > hidden {
        let found = Search::new(window, at, links, hidden, MIN_LENGTH).run();
        if !found.is_none() {
            return found;
        }
    }
    three(window, at, links.three.into(), hidden)
}

/// The first of the longest matches at `at` that are longer than the one before it.
#[inline]
pub(super) fn find_longer<const WHOLE: bool>(window: &Window, at: usize, before: Match) -> Match {
    if before.length >= MAX_LAZY {
        return Match::NONE;
    }
    let links = window.links(at);
    let hidden = hidden::<WHOLE>(window, at, links.three.into());
    // All fours inside of a longer match have occurred before. Of most the match before tells
    // so, but not of the last one, nor of the one before it.
    let inner = window.links(at + before.length.max(4) - 4);
    if (usize::from(links.four) <= hidden)
        | cannot_exceed(window, at, before.length)
        | (usize::from(inner.four) <= window.start())
    {
        return Match::NONE;
    }
    Search::new(window, at, links, hidden, before.length).run()
}

/// The last place too far back for a match. Only the first candidate may be at the limit.
#[inline]
fn hidden<const WHOLE: bool>(window: &Window, at: usize, first: usize) -> usize {
    if WHOLE {
        return window.start();
    }
    let limit = at.saturating_sub(MAX_DISTANCE);
    let hidden = if first == limit {
        limit.saturating_sub(1)
    } else {
        limit
    };
    hidden.max(window.start())
}

/// Whether the four bytes that end a match one longer than `length` never occurred before, as
/// those that would end beyond the text.
#[inline]
fn cannot_exceed(window: &Window, at: usize, length: usize) -> bool {
    let links = window.links(at + length - MIN_LENGTH);
    usize::from(links.four) <= window.start()
}

/// The last place of the same three bytes, unless it is far back.
#[inline]
fn three(window: &Window, at: usize, mut candidate: usize, hidden: usize) -> Match {
    let mut tries = MAX_TRIES;
    while candidate > hidden && tries > 0 {
        let distance = at - candidate;
        if distance > MAX_DISTANCE_OF_SHORTEST {
            break;
        }
        if is_same(window, at, candidate, MIN_LENGTH) {
            return Match {
                length: MIN_LENGTH,
                distance,
            };
        }
        candidate = window.links(candidate).three.into();
        tries -= 1;
    }
    Match::NONE
}

/// A search for matches of four bytes or more.
struct Search<'a> {
    window: &'a Window,
    at: usize,
    links: Links,
    hidden: usize,
    /// Length of the match to improve on.
    length: usize,
    candidate: usize,
    found: Match,
}

impl<'a> Search<'a> {
    #[inline]
    fn new(window: &'a Window, at: usize, links: Links, hidden: usize, length: usize) -> Self {
        Self {
            window,
            at,
            links,
            hidden,
            length,
            candidate: links.four.into(),
            found: Match::NONE,
        }
    }

    /// Tries the last places of the same four bytes, most often one or two. As long as a match
    /// of eight bytes is an improvement, one comparison tells all that matters.
    #[expect(
        clippy::inline_always,
        reason = "called, it takes a text 4 % longer: what it holds stays in registers"
    )]
    #[inline(always)]
    fn run(mut self) -> Match {
        const { assert!(GOOD_LENGTH == WORD, "a match of a word needs fewer tries") };
        if self.length >= WORD {
            return self.go_on(MAX_TRIES_IF_GOOD);
        }
        let word = self.window.word(self.at);
        let mut improvement = up_to(self.length);
        for _ in 0..usize::from(MAX_TRIES) {
            let difference = self.window.word(self.candidate) ^ word;
            if difference & improvement == 0 {
                let length = if difference == 0 {
                    word_or_more(self.window, self.at, self.candidate)
                } else {
                    difference.trailing_zeros() as usize / 8
                };
                let length = length.min(self.window.left(self.at));
                if length > self.length && self.take(length) {
                    return self.found;
                }
                if self.length >= WORD {
                    break;
                }
                improvement = up_to(self.length);
            }
            self.candidate = self.window.links(self.candidate).four.into();
            if self.candidate <= self.hidden {
                return self.found;
            }
        }
        self.go_on(MAX_TRIES)
    }

    /// Takes the candidate for its length, and tells whether zlib looks for none that is longer
    /// yet.
    ///
    /// That so many others come before it in the hash chain is seen here only: candidates that
    /// are no improvement may be as far down as they will.
    #[inline]
    fn take(&mut self, length: usize) -> bool {
        if self.is_far_down(self.window.links(self.candidate), MAX_TRIES) {
            return true;
        }
        self.length = length;
        self.found = Match {
            length,
            distance: self.at - self.candidate,
        };
        (length >= NICE_LENGTH) | cannot_exceed(self.window, self.at, length)
    }

    /// Whether zlib gives up before it comes to a place.
    #[inline]
    fn is_far_down(&self, links: Links, tries: u16) -> bool {
        self.links.rank.wrapping_sub(links.rank) > tries
    }

    /// Goes on from the candidate, along places of the same hash of four bytes, and where these
    /// are too many, from the start along zlib's chain.
    #[inline(never)]
    fn go_on(mut self, tries: u16) -> Match {
        if !self.is_done_after(MAX_STEPS, tries, |links| links.four) {
            self.candidate = self.links.three.into();
            self.is_done_after(tries, tries, |links| links.three);
        }
        self.found
    }

    /// Follows a chain, at most so many steps, and tells whether no place further down would do.
    #[inline]
    fn is_done_after(&mut self, steps: u16, tries: u16, next: impl Fn(Links) -> u16) -> bool {
        let window = self.window;
        let longest = window.left(self.at).min(MAX_LENGTH);
        let mut ending = Ending::new(window, self.at, self.length);
        for _ in 0..steps {
            if self.candidate <= self.hidden {
                return true;
            }
            let links = window.links(self.candidate);
            if self.is_far_down(links, tries) && is_same(window, self.at, self.candidate, 4) {
                return true;
            }
            if ending.occurs(window, self.candidate) {
                let length = common_length(window, self.at, self.candidate, longest);
                if length > self.length {
                    if self.take(length) {
                        return true;
                    }
                    ending = Ending::new(window, self.at, length);
                }
            }
            self.candidate = next(links).into();
        }
        false
    }
}
