//! The match that zlib finds at every place.

#![expect(clippy::indexing_slicing, reason = "every place of 16 bits is inside")]

use super::chains::Chains;
use super::rules::{MAX_DISTANCE_OF_SHORTEST, MAX_LENGTH, MIN_LENGTH, NICE_LENGTH};
use super::text::{Numbers, Places, Text, place};

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
#[derive(Default)]
pub(super) struct Matches {
    pub(super) lengths: Box<Places<40>>,
    pub(super) starts: Box<Places<45>>,
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

    pub(super) fn view<'a>(&'a mut self, chains: &'a Chains) -> View<'a> {
        View {
            lengths: &mut self.lengths,
            starts: &mut self.starts,
            fives: &chains.fives.links,
        }
    }
}

/// The matches and a chain for a loop, which else would look up at every step where they are.
pub(super) struct View<'a> {
    lengths: &'a mut Numbers,
    starts: &'a mut Numbers,
    fives: &'a Numbers,
}

impl View<'_> {
    /// Tries the match whose last five bytes are at `ending` and that is longer by one than the
    /// one known, and gives the length of the longer of both and the next such place.
    #[inline]
    pub(super) fn try_next(
        &mut self,
        [at, ending]: [u16; 2],
        common: impl Fn(u16, u16) -> u16,
    ) -> [u16; 2] {
        let [known, start] = [&self.lengths, &self.starts].map(|numbers| numbers[usize::from(at)]);
        let candidate = ending + 4 - known;
        let length = common(at, candidate);
        let is_longer = Either::new(known, length);
        let longest = is_longer.pick(length, known);
        self.lengths[usize::from(at)] = longest;
        self.starts[usize::from(at)] = is_longer.pick(candidate, start);
        let last = is_longer.pick(at.wrapping_add(length).wrapping_sub(4), ending);
        [longest, self.fives[usize::from(last)]]
    }
}

/// A choice that nobody can predict, in arithmetic: a compiler may make a branch of anything
/// else.
#[derive(Clone, Copy)]
struct Either(u32);

impl Either {
    /// All bits if `less` is less than `more`.
    #[inline]
    #[expect(clippy::cast_sign_loss, reason = "0 or all ones")]
    fn new(less: u16, more: u16) -> Self {
        Self(((i32::from(less) - i32::from(more)) >> 31) as u32)
    }

    #[inline]
    fn pick(self, set: u16, unset: u16) -> u16 {
        let [set, unset] = [set, unset].map(u32::from);
        place((unset ^ (set ^ unset) & self.0) as usize)
    }
}

/// Whether a match longer by one than `length` may have its last five bytes at `ending`: it
/// starts after the first place.
#[inline]
pub(super) fn may_end(ending: u16, length: u16) -> bool {
    ending + 3 > length
}

/// The longest match that zlib would take at a place.
pub(super) fn longest(text: &Text, at: u16) -> u16 {
    (text.end() - at).min(MAX_LENGTH)
}

/// The last place, below `from` in the chain, of the same first bytes, at least so many, or 0.
pub(super) fn nearest(text: &Text, links: &Numbers, [at, from]: [u16; 2], least: u16) -> u16 {
    let mut candidate = links[usize::from(from)];
    while candidate != 0 && text.view().common_8(at, candidate) < least {
        candidate = links[usize::from(candidate)];
    }
    candidate
}

/// The first of the longest matches, where none longer than `found` is nearer, among those for
/// which it `may_start` there. Where one may not, no place before it may.
pub(super) fn lengthen(
    text: &Text,
    chains: &Chains,
    at: u16,
    mut found: Match,
    may_start: impl Fn(u16) -> bool,
) -> Match {
    let longest = longest(text, at);
    while found.length < longest.min(NICE_LENGTH) {
        let before_ending = found.length - 4;
        let mut ending = chains.fives.links[usize::from(at + before_ending)];
        loop {
            if !may_end(ending, found.length) {
                return found;
            }
            let start = ending - before_ending;
            if start < found.start {
                let length = text.view().common(at, start, 0).min(longest);
                if length > found.length {
                    if !may_start(start) {
                        return found;
                    }
                    found = Match { length, start };
                    break;
                }
            }
            ending = chains.fives.links[usize::from(ending)];
        }
    }
    found
}
