//! Longest verbatim runs, and how much of the reference common blocks rebuild.

use crate::candidate::Cut;
use crate::character_runs::CharacterRuns;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::limits::number;
use crate::longest_run::LongestRun;
use crate::near_verbatim::BlockFinder;
use crate::reference::Reference;

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
        let blocks = self.finder.find(reference, cut).iter();
        let n_words = blocks.map(|block| block.length).sum();
        numbers.push(Some(number(n_words)));
        Ok(())
    }
}
