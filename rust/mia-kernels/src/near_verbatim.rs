//! Common blocks of words, longest first.
//!
//! The longest block that both texts have is taken, then the longest among what stands before
//! it on both sides and the longest among what stands behind it, and so on (Ratcliff and
//! Metzener 1988; Python's `difflib.SequenceMatcher`). Of several longest blocks we take the
//! one that starts first in the reference, then first in the candidate.
//!
//! Blocks of one length are taken in one pass over what was left, so a text is read again
//! only for shorter blocks. The lengths of blocks nested in n words fall strictly, hence the
//! time is at most n to the power of 1.5, and for natural text about linear.

#![expect(
    clippy::indexing_slicing,
    reason = "one entry for each state of the automaton or word of the candidate"
)]

use std::ops::Range;

use crate::automaton::{Automaton, Match};
use crate::candidate::Cut;
use crate::limits::number;
use crate::reference::Reference;

const NONE: u32 = u32::MAX;

/// A run of words that both texts have.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// The words of the reference before it.
    pub(crate) reference: usize,
    /// The words of the candidate before it.
    pub(crate) candidate: usize,
    pub(crate) length: usize,
}

/// Finds blocks of at least `min_words`.
pub(crate) struct BlockFinder {
    min_words: u32,
    blocks: Vec<Block>,
    /// Parts of reference and candidate between two blocks.
    gaps: Vec<(Range<usize>, Range<usize>)>,
    /// The part of the reference at hand, and the matches of the candidate's part in it.
    automaton: Automaton,
    matches: Vec<Match>,
    chain: Chain,
}

impl BlockFinder {
    pub(crate) fn new(min_words: u32) -> Self {
        Self {
            min_words: min_words.max(1),
            blocks: Vec::new(),
            gaps: Vec::new(),
            automaton: Automaton::default(),
            matches: Vec::new(),
            chain: Chain::default(),
        }
    }

    /// All blocks, in the order of both texts.
    pub(crate) fn find(&mut self, reference: &Reference, cut: Cut<'_>) -> &[Block] {
        let whole = (0..reference.words.len(), 0..cut.words.len());
        self.blocks.clear();
        self.take(&reference.automaton, cut.matches, &whole);
        while let Some(gap) = self.gaps.pop() {
            if !self.may_hold_block(&cut.matches[gap.1.clone()]) {
                continue;
            }
            let mut automaton = std::mem::take(&mut self.automaton);
            let mut matches = std::mem::take(&mut self.matches);
            automaton.read(reference.words[gap.0.clone()].iter().copied());
            automaton.matches(&cut.words[gap.1.clone()], &mut matches);
            self.take(&automaton, &matches, &gap);
            self.automaton = automaton;
            self.matches = matches;
        }
        self.blocks.sort_unstable_by_key(|block| block.reference);
        &self.blocks
    }

    /// Whether a block that the whole texts have may lie in this part of the candidate.
    fn may_hold_block(&self, matches: &[Match]) -> bool {
        let ends = matches.iter().skip(self.min_words as usize - 1);
        ends.into_iter().any(|run| run.length >= self.min_words)
    }

    /// Takes the longest blocks of a gap and keeps the gaps between them.
    fn take(
        &mut self,
        automaton: &Automaton,
        matches: &[Match],
        gap: &(Range<usize>, Range<usize>),
    ) {
        let longest = matches.iter().map(|run| run.length).max().unwrap_or(0);
        if longest < self.min_words {
            return;
        }
        let length = longest as usize;
        let (mut left, mut right) = (gap.0.start, gap.1.start);
        self.chain.read(automaton, matches, longest);
        for (at, &prefix) in automaton.prefixes().iter().enumerate() {
            let end = gap.0.start + at + 1;
            if end < left + length {
                continue;
            }
            let first = right - gap.1.start + length - 1;
            if let Some(other) = self.chain.next(prefix, first) {
                let other_end = gap.1.start + other + 1;
                self.leave(left..end - length, right..other_end - length);
                self.blocks.push(Block {
                    reference: end - length,
                    candidate: other_end - length,
                    length,
                });
                (left, right) = (end, other_end);
            }
        }
        self.leave(left..gap.0.end, right..gap.1.end);
    }

    fn leave(&mut self, reference: Range<usize>, candidate: Range<usize>) {
        let shorter = reference.len().min(candidate.len());
        if shorter >= self.min_words as usize {
            self.gaps.push((reference, candidate));
        }
    }
}

/// Where the candidate has each of the longest blocks.
#[derive(Default)]
struct Chain {
    /// For each state, the state of its suffix of the blocks' length.
    suffixes: Vec<u32>,
    /// For each state, where its block ends in the candidate for the first time.
    firsts: Vec<u32>,
    /// For each end of a block in the candidate, the next end of the same block.
    nexts: Vec<u32>,
}

impl Chain {
    fn read(&mut self, automaton: &Automaton, matches: &[Match], length: u32) {
        self.suffixes.clear();
        self.suffixes.resize(automaton.n_states(), NONE);
        for &state in automaton.order() {
            let link = automaton.link(state);
            if automaton.length(link) >= length {
                self.suffixes[state as usize] = self.suffixes[link as usize];
            } else if automaton.length(state) >= length {
                self.suffixes[state as usize] = state;
            }
        }
        self.firsts.clear();
        self.firsts.resize(automaton.n_states(), NONE);
        self.nexts.clear();
        self.nexts.resize(matches.len(), NONE);
        for (end, run) in matches.iter().enumerate().rev() {
            if run.length == length {
                let first = &mut self.firsts[run.state as usize];
                self.nexts[end] = std::mem::replace(first, number(end));
            }
        }
    }

    /// Where the candidate, from `first` on, ends the block that ends at `prefix`.
    fn next(&mut self, prefix: u32, first: usize) -> Option<usize> {
        let suffix = self.suffixes[prefix as usize];
        let end = self.firsts.get_mut(suffix as usize)?;
        while *end != NONE && (*end as usize) < first {
            *end = self.nexts[*end as usize];
        }
        (*end != NONE).then_some(*end as usize)
    }
}
