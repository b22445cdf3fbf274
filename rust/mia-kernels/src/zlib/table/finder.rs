//! How all matches of a text are found at once.
//!
//! First the nearest place with the same four bytes is taken everywhere, and where there is
//! none, the nearest with the same three. A longer match ends in five bytes that stood before;
//! places where these did go on lists. All places on a list take a step together, so that no
//! step waits for another and nothing depends on a branch that nobody can predict.

#![expect(
    clippy::indexing_slicing,
    reason = "every place of 16 bits is inside, and rows are as many as hold the text"
)]
#![expect(
    clippy::needless_bitwise_bool,
    reason = "nobody can predict either side"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use std::hint::select_unpredictable;

use super::chains::Chains;
use super::matches::{Match, Matches, lengthen, longest, may_end, nearest};
use super::rules::{MAX_DISTANCE_OF_SHORTEST, MIN_LENGTH};
use super::text::{GROUP, Numbers, Places, Text, place};
use crate::zlib::lanes::{FIRST_ROW, Lanes, List, ROW, WIDTH, rows, rows_mut};

/// Bytes that one comparison tells apart, and that two do.
const WORD: u16 = 8;
const TWO_WORDS: u16 = 16;
/// So few places on a list go on one by one.
const FEW: usize = 16;
/// Candidates that are tried for the matches of less than a word, on an average of all places.
/// Prose of some kilobytes has 0.4 and at most 1.4; four letters by chance have 12.
const MAX_TRIES_OF_ALL: usize = 2;

#[derive(Default)]
pub(super) struct Finder {
    /// Bits in common with the last place of the same three bytes, and in the upper half with
    /// the last one of the same four.
    firsts: Box<Places<35>>,
    /// Matches of less than a word that may not be the longest, with the last place of the five
    /// bytes that end a longer one.
    short: List,
    /// Matches of so many words, with where they start.
    long: List,
    /// Places whose three bytes have the hash of others, with the last of those.
    collided_threes: List,
    /// Places whose four bytes have the hash of others, with the last of those.
    collided_fours: List,
}

impl Finder {
    /// Finds the first of the longest matches at every place, however far down its hash chain;
    /// or tells that there are too many candidates for a table.
    pub(super) fn find(
        &mut self,
        lanes: impl Lanes,
        text: &Text,
        chains: &Chains,
        matches: &mut Matches,
    ) -> bool {
        lanes.run(
            #[inline(always)]
            || self.compare_firsts(text, chains),
        );
        lanes.run(
            #[inline(always)]
            || self.sift(lanes, text.n_rows(), chains, matches),
        );
        lanes.run(
            #[inline(always)]
            || self.find_collided_fours(text, chains, matches),
        );
        let is_found = lanes.run(
            #[inline(always)]
            || self.lengthen_short(text, chains, matches),
        );
        if !is_found {
            return false;
        }
        lanes.run(
            #[inline(always)]
            || self.list_long(lanes, text.n_rows(), matches, WORD),
        );
        lanes.run(
            #[inline(always)]
            || self.lengthen_words(text, chains, matches),
        );
        lanes.run(
            #[inline(always)]
            || self.find_collided_threes(text, chains, matches),
        );
        lanes.run(
            #[inline(always)]
            || self.list_long(lanes, text.n_rows(), matches, TWO_WORDS),
        );
        self.lengthen_long(text, chains, matches);
        true
    }

    #[inline(always)]
    fn compare_firsts(&mut self, text: &Text, chains: &Chains) {
        let n_groups = text.n_rows() * WIDTH / GROUP;
        // The first number is for no place, which would have all in common with itself.
        let threes = chains.threes.links[1..].as_chunks::<GROUP>().0[..n_groups].iter();
        let fours = chains.fours.links[1..].as_chunks::<GROUP>().0[..n_groups].iter();
        let firsts = self.firsts[1..].as_chunks_mut::<GROUP>().0[..n_groups].iter_mut();
        let bytes = text.bytes()[1..]
            .windows(GROUP + usize::from(WORD) - 1)
            .step_by(GROUP);
        let text = text.view();
        for (((firsts, bytes), threes), fours) in firsts.zip(bytes).zip(threes).zip(fours) {
            let words = bytes.windows(WORD.into()).map(first_word);
            let links = threes.iter().zip(fours);
            for ((first, word), (three, four)) in firsts.iter_mut().zip(words).zip(links) {
                let [three, four] =
                    [three, four].map(|other| (word ^ text.word(*other)).trailing_zeros());
                *first = place((three | four << 8) as usize);
            }
        }
    }

    /// Takes the first candidate everywhere, and lists the places where that is not all.
    #[inline(always)]
    fn sift(&mut self, lanes: impl Lanes, n_rows: usize, chains: &Chains, matches: &mut Matches) {
        let threes = &rows(&chains.threes.links[..], 0)[..n_rows];
        let fours = &rows(&chains.fours.links[..], 0)[..n_rows];
        let fives = [0, 1, 2, 3].map(|from| &rows(&chains.fives.links[..], from)[..n_rows]);
        let firsts = &rows(&self.firsts[..], 0)[..n_rows];
        let lengths = &mut rows_mut(&mut matches.lengths[..])[..n_rows];
        let starts = &mut rows_mut(&mut matches.starts[..])[..n_rows];
        self.short.clear();
        self.collided_threes.clear();
        self.collided_fours.clear();
        let zero = lanes.splat(0);
        let mut at = lanes.load(&FIRST_ROW);
        for row in 0..n_rows {
            let three = lanes.load(&threes[row]);
            let four = lanes.load(&fours[row]);
            let bits = lanes.load(&firsts[row]);
            let three_length = lanes.shift_right::<3>(lanes.and(bits, lanes.splat(0xff)));
            let four_length = lanes.shift_right::<11>(bits);

            let is_three = lanes.is_greater(three_length, lanes.splat(2));
            let is_four = lanes.is_greater(four_length, lanes.splat(3));
            let is_word = lanes.is_greater(four_length, lanes.splat(WORD - 1));
            let distance = lanes.subtract(at, three);
            let is_far = lanes.is_greater(distance, lanes.splat(MAX_DISTANCE_OF_SHORTEST));
            let shortest = lanes.select(lanes.but_not(is_three, is_far), lanes.splat(3), zero);
            lanes.store(
                lanes.select(is_four, four_length, shortest),
                &mut lengths[row],
            );
            lanes.store(lanes.select(is_four, four, three), &mut starts[row]);

            // The five bytes that end a match longer by one start some places further.
            let mut ending = lanes.load(&fives[0][row]);
            for (length, fives) in (5..).zip(&fives[1..]) {
                let is_length = lanes.is_equal(four_length, lanes.splat(length));
                ending = lanes.select(is_length, lanes.load(&fives[row]), ending);
            }
            let may_end = lanes.is_greater(lanes.add(ending, lanes.splat(3)), four_length);
            let is_short = lanes.both(lanes.but_not(is_four, is_word), may_end);
            lanes.push(&mut self.short, is_short, [at, ending]);

            let has_three = lanes.is_greater(three, zero);
            let has_four = lanes.is_greater(four, zero);
            let is_other_three = lanes.but_not(lanes.but_not(has_three, is_three), has_four);
            lanes.push(&mut self.collided_threes, is_other_three, [at, three]);
            let is_other_four = lanes.but_not(has_four, is_four);
            lanes.push(&mut self.collided_fours, is_other_four, [at, four]);
            at = lanes.add(at, lanes.splat(ROW));
        }
    }

    /// Further away stand the same four bytes, or else the same three.
    #[inline(always)]
    fn find_collided_fours(&mut self, text: &Text, chains: &Chains, matches: &mut Matches) {
        let [fours, fives]: [&Numbers; 2] = [&chains.fours.links, &chains.fives.links];
        let (short, threes) = (&mut self.short, &mut self.collided_threes);
        while self.collided_fours.length() > 0 {
            self.collided_fours.update(|[at, last]| {
                let start = fours[usize::from(last)];
                let common = text.view().common_8(at, start);
                let is_same = common > 3;
                let length = select_unpredictable(is_same, common, 4);
                let ending = fives[usize::from(at + length - 4)];
                matches.set(
                    at,
                    Match {
                        length: length * u16::from(is_same),
                        start,
                    },
                );
                short.append([at, ending], is_same & is_open(ending, length, WORD));
                threes.append([at, at], !is_same & (start == 0));
                ([at, start], !is_same & (start != 0))
            });
        }
    }

    /// Matches of less than a word, up to one. There are too many candidates if places have more
    /// than some each: all of them may be tried, while zlib jumps from match to match.
    #[inline(always)]
    fn lengthen_short(&mut self, text: &Text, chains: &Chains, matches: &mut Matches) -> bool {
        let mut tries = MAX_TRIES_OF_ALL * usize::from(text.end());
        let (text, mut matches) = (text.view(), matches.view(chains));
        let common = |at, other| text.common_8(at, other);
        while self.short.length() > 0 {
            if tries < self.short.length() {
                return false;
            }
            tries -= self.short.length();
            self.short.update(|[at, ending]| {
                let [length, ending] = matches.try_next([at, ending], common);
                ([at, ending], is_open(ending, length, WORD))
            });
        }
        true
    }

    #[inline(always)]
    fn list_long(&mut self, lanes: impl Lanes, n_rows: usize, matches: &Matches, least: u16) {
        let lengths = &rows(&matches.lengths[..], 0)[..n_rows];
        let starts = &rows(&matches.starts[..], 0)[..n_rows];
        self.long.clear();
        let mut at = lanes.load(&FIRST_ROW);
        for row in 0..n_rows {
            let is_long = lanes.is_greater(lanes.load(&lengths[row]), lanes.splat(least - 1));
            lanes.push(&mut self.long, is_long, [at, lanes.load(&starts[row])]);
            at = lanes.add(at, lanes.splat(ROW));
        }
    }

    /// Matches of a word, up to two.
    #[inline(always)]
    fn lengthen_words(&mut self, text: &Text, chains: &Chains, matches: &mut Matches) {
        let text = text.view();
        let common = |at, other| text.common_16(at, other);
        self.long.update(|[at, start]| {
            let length = common(at, start);
            matches.set(at, Match { length, start });
            let ending = chains.fives.links[usize::from(at + length - 4)];
            ([at, ending], is_open(ending, length, TWO_WORDS))
        });
        let mut matches = matches.view(chains);
        while self.long.length() > 0 {
            self.long.update(|[at, ending]| {
                let [length, ending] = matches.try_next([at, ending], common);
                ([at, ending], is_open(ending, length, TWO_WORDS))
            });
        }
    }

    /// No place before these has the same four bytes.
    #[inline(always)]
    fn find_collided_threes(&mut self, text: &Text, chains: &Chains, matches: &mut Matches) {
        while self.collided_threes.length() > FEW {
            self.collided_threes.update(|[at, last]| {
                let start = chains.threes.links[usize::from(last)];
                let is_same = text.view().common_bits(at, start) >= 24;
                let is_near = at - start <= MAX_DISTANCE_OF_SHORTEST;
                let length = select_unpredictable(is_same & is_near, 3, 0);
                matches.set(at, Match { length, start });
                ([at, start], !is_same & (start != 0))
            });
        }
        // Some go down long chains, and steps of few together take as long as those of many.
        for pair in self.collided_threes.iter() {
            let [at, _] = pair;
            let start = nearest(text, &chains.threes.links, pair, MIN_LENGTH);
            matches.set(at, Match::shortest(at, start));
        }
    }

    /// Matches of two words or more, in their order: often one goes on where the last one did.
    fn lengthen_long(&self, text: &Text, chains: &Chains, matches: &mut Matches) {
        let mut before = Run::default();
        for [at, start] in self.long.iter() {
            let run = before.goes_on(at, start).unwrap_or_else(|| {
                let length = text.view().common(at, start, TWO_WORDS);
                Run { at, start, length }
            });
            let length = run.length.min(longest(text, at));
            let found = lengthen(text, chains, at, Match { length, start }, |_| true);
            matches.set(at, found);
            before = if found.start == start {
                run
            } else {
                let length = text.view().common(at, found.start, found.length);
                Run {
                    at,
                    start: found.start,
                    length,
                }
            };
        }
    }
}

fn first_word(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

/// Whether a match that is longer than `length` may be worth a comparison of so many bytes.
#[inline]
fn is_open(ending: u16, length: u16, compared: u16) -> bool {
    may_end(ending, length) & (length < compared)
}

/// All bytes that two places have in common, which may be more than a match has.
#[derive(Default)]
struct Run {
    at: u16,
    start: u16,
    length: u16,
}

impl Run {
    /// The run from the next place on, if it is as far back.
    fn goes_on(&self, at: u16, start: u16) -> Option<Self> {
        let is_next = at == self.at + 1 && start == self.start + 1;
        is_next.then(|| Self {
            at,
            start,
            length: self.length - 1,
        })
    }
}
