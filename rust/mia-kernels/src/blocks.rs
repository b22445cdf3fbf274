//! Longest verbatim runs, and how much of the reference common blocks rebuild.

use crate::automaton::{Automaton, Match};
use crate::candidate::Cut;
use crate::character_runs::CharacterRuns;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number, Reference};
use crate::near_verbatim::BlockFinder;

/// Finds what a candidate copies from its reference.
pub(crate) struct BlockKernel {
    words: LongestRun,
    characters: CharacterRuns,
    finder: BlockFinder,
}

impl BlockKernel {
    /// Counts near-verbatim words in blocks of at least `min_words`.
    pub(crate) fn new(min_words: u32) -> Self {
        Self {
            words: LongestRun::default(),
            characters: CharacterRuns::default(),
            finder: BlockFinder::new(min_words),
        }
    }
}

impl Kernel for BlockKernel {
    fn fields(&self) -> Vec<String> {
        let fields = [
            "longest_block_words",
            "longest_block_start",
            "longest_block_chars",
            "longest_block_chars_start",
            "near_verbatim_words",
        ];
        fields.map(str::to_owned).to_vec()
    }

    fn read_reference(&mut self, reference: &Reference) {
        self.characters.read_reference(reference.text());
    }

    fn start(&mut self, _: &Reference) {
        self.words = LongestRun::default();
        self.characters.start();
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        for run in cut.new_matches() {
            self.words.push(*run, &reference.automaton);
        }
        numbers.extend(self.words.numbers());
        numbers.extend(self.characters.longest(cut.text()).numbers());
        numbers.push(Some(self.finder.count_words(reference, cut)));
        Ok(())
    }
}

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
    fn numbers(self) -> [Number; 2] {
        [Some(self.length), (self.length > 0).then_some(self.start)]
    }
}
