//! Which of all matches zlib takes.
//!
//! A match is taken unless it is too short to go on without a look at the next place, which
//! has a longer one. That depends on these two places alone, so the step from each place to the
//! next symbol is known for all of them, and one walk finds those that count.

#![expect(
    clippy::indexing_slicing,
    reason = "every place of 16 bits is inside, and rows are as many as hold the text"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use super::chains::Chains;
use super::matches::Matches;
use super::rules::{GOOD_LENGTH, MAX_LAZY, MIN_LENGTH};
use super::text::{N_PLACES, Numbers, Places, START, Text};
use super::tries::{AfterGood, after_good};
use crate::zlib::lanes::{FIRST_ROW, Lanes, List, ROW, WIDTH, rows, rows_mut};

const NO_STARTS: [u8; WIDTH] = [0; WIDTH];

/// A byte for each place.
type Marks = [u8; N_PLACES];

pub(super) struct Choices {
    /// For each place the bytes of the symbol that would start there.
    steps: Box<Places<50>>,
    /// For each place the one after that symbol.
    nexts: Box<Places<55>>,
    /// 1 where a symbol starts, else 0.
    starts: Box<Marks>,
    /// Places after a good match that have a longer one; and then only those whose match zlib
    /// does not see, but another longer one.
    after_good: List,
    literals: List,
    matches: List,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for Choices {
    fn default() -> Self {
        Self {
            steps: Box::default(),
            nexts: Box::default(),
            starts: Box::new([0; N_PLACES]),
            after_good: List::default(),
            literals: List::default(),
            matches: List::default(),
        }
    }
}

impl Choices {
    /// All literals, and the lengths and distances of all matches. None if zlib takes a match
    /// that is not in the table: after a good one it tries less candidates.
    pub(super) fn take(
        &mut self,
        lanes: impl Lanes,
        text: &Text,
        chains: &Chains,
        matches: &Matches,
    ) -> Option<[&List; 2]> {
        self.after_good.clear();
        self.literals.clear();
        self.matches.clear();
        lanes.run(
            #[inline(always)]
            || self.step(lanes, text.n_rows(), matches),
        );
        self.after_good.update(|[at, one]| {
            let seen = after_good(text, chains, matches, at);
            if matches!(seen, AfterGood::NotLonger) {
                let before = usize::from(at - 1);
                self.steps[before] = matches.lengths[before];
                self.nexts[before] = at - 1 + matches.lengths[before];
            }
            ([at, one], matches!(seen, AfterGood::Other))
        });
        rows_mut(&mut self.starts[..])[..text.n_rows()].fill(NO_STARTS);
        self.walk(text.end());
        // A symbol at the place before leads to it.
        let leads = |at: u16| self.starts[usize::from(at - 1)] == 1;
        if self.after_good.iter().any(|[at, _]| leads(at)) {
            return None;
        }
        lanes.run(
            #[inline(always)]
            || self.list(lanes, text, matches),
        );
        Some([&self.literals, &self.matches])
    }

    #[inline(always)]
    fn step(&mut self, lanes: impl Lanes, n_rows: usize, matches: &Matches) {
        let [lengths, next_lengths] =
            [0, 1].map(|from| &rows(&matches.lengths[..], from)[..n_rows]);
        let steps = &mut rows_mut(&mut self.steps[..])[..n_rows];
        let nexts = &mut rows_mut(&mut self.nexts[..])[..n_rows];
        let one = lanes.splat(1);
        let mut at = lanes.load(&FIRST_ROW);
        for row in 0..n_rows {
            let length = lanes.load(&lengths[row]);
            let is_longer = lanes.is_greater(lanes.load(&next_lengths[row]), length);
            let is_lazy = lanes.but_not(
                is_longer,
                lanes.is_greater(length, lanes.splat(MAX_LAZY - 1)),
            );
            let is_match = lanes.but_not(
                lanes.is_greater(length, lanes.splat(MIN_LENGTH - 1)),
                is_lazy,
            );
            let step = lanes.select(is_match, length, one);
            lanes.store(step, &mut steps[row]);
            lanes.store(lanes.add(at, step), &mut nexts[row]);
            let is_good = lanes.is_greater(length, lanes.splat(GOOD_LENGTH - 1));
            lanes.push(
                &mut self.after_good,
                lanes.both(is_lazy, is_good),
                [lanes.add(at, one), one],
            );
            at = lanes.add(at, lanes.splat(ROW));
        }
    }

    /// Marks where symbols start. Several walks go on at the same time, each through a part of
    /// the text. All but the first start at a guess; they are right from where the one before
    /// meets them.
    fn walk(&mut self, end: u16) {
        let (nexts, starts): (&Numbers, &mut Marks) = (&self.nexts, &mut self.starts);
        // In prose each part has about as many symbols: the more came before, the longer are
        // matches.
        let [second, third, fourth] = [6, 13, 22].map(|part| end / 32 * part);
        let begins = [START, second, third, fourth];
        let ends = [second, third, fourth, end];
        let mut walks = begins;
        let mut go = |at: u16| {
            let next = nexts[usize::from(at)];
            starts[usize::from(at)] = 1;
            next
        };
        while (0..4).all(|walk| walks[walk] < ends[walk]) {
            walks = walks.map(&mut go);
        }
        for (at, end) in walks.iter_mut().zip(ends) {
            while *at < end {
                *at = go(*at);
            }
        }
        let mut at = walks[0];
        for walk in 1..4 {
            let (mut wrong, end) = (begins[walk], ends[walk]);
            while at < end && starts[usize::from(at)] == 0 {
                starts[usize::from(wrong)..usize::from(at)].fill(0);
                starts[usize::from(at)] = 1;
                wrong = at + 1;
                at = nexts[usize::from(at)];
            }
            starts[usize::from(wrong)..usize::from(at.min(end))].fill(0);
            if at < end {
                at = walks[walk];
            }
        }
    }

    #[inline(always)]
    fn list(&mut self, lanes: impl Lanes, text: &Text, matches: &Matches) {
        let n_rows = text.n_rows();
        let bytes = &rows(&text.bytes()[..], 0)[..n_rows];
        let match_starts = &rows(&matches.starts[..], 0)[..n_rows];
        let steps = &rows(&self.steps[..], 0)[..n_rows];
        let starts = &rows(&self.starts[..], 0)[..n_rows];
        let one = lanes.splat(1);
        let mut at = lanes.load(&FIRST_ROW);
        for row in 0..n_rows {
            let is_start = lanes.is_equal(lanes.load_bytes(&starts[row]), one);
            let step = lanes.load(&steps[row]);
            let is_literal = lanes.both(is_start, lanes.is_equal(step, one));
            lanes.push(
                &mut self.literals,
                is_literal,
                [lanes.load_bytes(&bytes[row]), one],
            );
            let distance = lanes.subtract(at, lanes.load(&match_starts[row]));
            let is_match = lanes.but_not(is_start, is_literal);
            lanes.push(&mut self.matches, is_match, [step, distance]);
            at = lanes.add(at, lanes.splat(ROW));
        }
    }
}
