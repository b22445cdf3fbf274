//! The longest of the matches that an automaton finds.

use crate::automaton::{Automaton, Match};
use crate::kernel::Number;

/// The longest match; of several, the one that starts first in the reference.
#[derive(Clone, Copy, Default)]
pub(crate) struct LongestRun {
    pub(crate) length: u32,
    start: u32,
}

impl LongestRun {
    pub(crate) fn push(&mut self, run: Match, automaton: &Automaton) {
        if run.length == 0 || run.length < self.length {
            return;
        }
        let start = automaton.first_start(run);
        if run.length > self.length || start < self.start {
            *self = Self {
                length: run.length,
                start,
            };
        }
    }

    /// Its length, and where it starts, which is undefined if there is none.
    pub(crate) fn numbers(self) -> [Number; 2] {
        [Some(self.length), (self.length > 0).then_some(self.start)]
    }
}
