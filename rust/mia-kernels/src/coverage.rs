//! Words inside spans that the other side has too (Hallinan et al. 2025, section 3).
//!
//! For each length L from 2 to 12 apart: a word is covered if it stands in some span of at
//! least L words that occurs on the other side. Every such span lies inside the longest one
//! that ends where it ends, so the longest match of each position tells all.

#![expect(
    clippy::indexing_slicing,
    reason = "one entry for each state of the automaton"
)]

use crate::automaton::{Automaton, Match, ROOT};
use crate::candidate::Cut;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::reference::Reference;

const SHORTEST: usize = 2;
const LONGEST: usize = 12;
const N_LENGTHS: usize = LONGEST - SHORTEST + 1;

/// Counts covered words of a candidate and its reference.
#[derive(Default)]
pub(crate) struct CoverageCounter {
    candidate: Covered,
    reached: Reached,
}

impl Kernel for CoverageCounter {
    fn fields(&self) -> Vec<String> {
        let lengths = || SHORTEST..=LONGEST;
        let candidate = lengths().map(|length| format!("covered_{length}"));
        let reference = lengths().map(|length| format!("covered_reference_{length}"));
        candidate.chain(reference).collect()
    }

    fn start(&mut self, reference: &Reference) {
        self.candidate = Covered::default();
        self.reached.start(&reference.automaton);
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        for run in cut.new_matches() {
            self.candidate.push(run.length);
            self.reached.mark(*run);
        }
        numbers.extend(self.candidate.words.map(Some));
        let reference = self.reached.covered(&reference.automaton);
        numbers.extend(reference.words.map(Some));
        Ok(())
    }
}

/// Covered words of one side, read word by word.
#[derive(Clone, Copy, Default)]
struct Covered {
    n_words: u32,
    /// For each length, from the shortest, the words covered so far.
    words: [u32; N_LENGTHS],
    /// The end of the last span of each length.
    ends: [u32; N_LENGTHS],
}

impl Covered {
    /// Takes the next word, at which a match of `length` words ends.
    fn push(&mut self, length: u32) {
        self.n_words += 1;
        let start = self.n_words - length;
        let lengths = (length as usize + 1).clamp(SHORTEST, LONGEST + 1) - SHORTEST;
        for at in 0..lengths {
            self.words[at] += self.n_words - start.max(self.ends[at]);
            self.ends[at] = self.n_words;
        }
    }
}

/// How much of the reference a candidate has reached.
#[derive(Default)]
struct Reached {
    /// For each state of the reference, words of its longest run that the candidate has.
    runs: Vec<u32>,
    /// The same, or that of the longest suffix of the state that the candidate has.
    suffixes: Vec<u32>,
}

impl Reached {
    fn start(&mut self, automaton: &Automaton) {
        self.runs.clear();
        self.runs.resize(automaton.n_states(), 0);
    }

    fn mark(&mut self, run: Match) {
        let longest = &mut self.runs[run.state as usize];
        *longest = run.length.max(*longest);
    }

    /// Covered words of the reference.
    fn covered(&mut self, automaton: &Automaton) -> Covered {
        for &state in automaton.order().iter().rev() {
            let link = automaton.link(state);
            if self.runs[state as usize] > 0 {
                self.runs[link as usize] = automaton.length(link);
            }
        }
        self.suffixes.clone_from(&self.runs);
        self.suffixes[ROOT as usize] = 0;
        for &state in automaton.order() {
            if self.runs[state as usize] == 0 {
                self.suffixes[state as usize] = self.suffixes[automaton.link(state) as usize];
            }
        }
        let mut covered = Covered::default();
        for &prefix in automaton.prefixes() {
            covered.push(self.suffixes[prefix as usize]);
        }
        covered
    }
}
