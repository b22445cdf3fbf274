//! How much of a book one long generation repeats near verbatim (Ahmed et al. 2026,
//! arXiv:2601.02671).
//!
//! The blocks that both have in the same order are joined in two passes: first over small edits
//! inside a passage, then over larger ones between passages. What stays short after a pass is
//! dropped.

use std::ops::Range;

use crate::candidate::Candidate;
use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::near_verbatim::{Block, BlockFinder};
use crate::passages::{Passage, WordSpans};
use crate::reference::{Needs, Reference};
use crate::words::WordRule;

/// What is joined, and which joined blocks are kept.
struct Pass {
    /// The most words of either text between two blocks.
    gap: usize,
    /// The most words that one text has between them and the other has not.
    misalignment: usize,
    /// The fewest words of a block that is kept, those between its parts not counted.
    min_words: usize,
}

const PASSES: [Pass; 2] = [
    Pass {
        gap: 2,
        misalignment: 1,
        min_words: 20,
    },
    Pass {
        gap: 10,
        misalignment: 3,
        min_words: 100,
    },
];

const NEEDS: Needs = Needs {
    numbers: true,
    runs: true,
    letters: false,
};

/// What a generation repeats of a book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Words of the book.
    pub words_book: u32,
    /// Words of the generation.
    pub words_generation: u32,
    /// The near-verbatim passages, in order; of their words those count that are verbatim.
    pub passages: Vec<Passage>,
}

/// Reads books with generations; a book that comes again is not read again.
pub struct RecallReader {
    rule: WordRule,
    book: Reference,
    generation: Candidate,
    finder: BlockFinder,
}

impl RecallReader {
    /// A reader that cuts words by `rule`.
    pub fn new(rule: WordRule) -> Self {
        Self {
            rule,
            book: Reference::default(),
            generation: Candidate::default(),
            finder: BlockFinder::new(1),
        }
    }

    /// What `generation` repeats of `book`.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if a text has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn read(&mut self, generation: &str, book: &str) -> Result<Recall, KernelError> {
        check_length(generation.as_bytes())?;
        check_length(book.as_bytes())?;
        self.book.read(book, self.rule, NEEDS);
        self.generation
            .read(generation, self.rule, &self.book, NEEDS);
        let n_words = self.generation.n_words();
        let cut = self.generation.cut(generation, self.rule, 0, n_words);
        let blocks = self.finder.find(&self.book, cut).iter().copied();
        let joined = PASSES
            .iter()
            .fold(blocks.map(Joined::from).collect(), |blocks, pass| {
                pass.apply(blocks)
            });
        let spans = WordSpans::of(book, self.rule)?;
        let passages = joined
            .iter()
            .filter_map(|joined: &Joined| spans.passage(&joined.book, joined.words));
        Ok(Recall {
            words_book: number(self.book.words.len()),
            words_generation: number(n_words),
            passages: passages.collect(),
        })
    }
}

/// Blocks with what stands between them.
struct Joined {
    book: Range<usize>,
    generation: Range<usize>,
    /// Words of the blocks.
    words: usize,
}

impl From<Block> for Joined {
    fn from(block: Block) -> Self {
        Self {
            book: block.reference..block.reference + block.length,
            generation: block.candidate..block.candidate + block.length,
            words: block.length,
        }
    }
}

impl Pass {
    /// Joins what may be joined, from the first block on, and keeps what is long enough.
    fn apply(&self, blocks: Vec<Joined>) -> Vec<Joined> {
        let mut joined: Vec<Joined> = Vec::new();
        for block in blocks {
            match joined.last_mut() {
                Some(last) if self.joins(last, &block) => {
                    last.book.end = block.book.end;
                    last.generation.end = block.generation.end;
                    last.words += block.words;
                }
                _ => joined.push(block),
            }
        }
        joined.retain(|joined| joined.words >= self.min_words);
        joined
    }

    fn joins(&self, before: &Joined, after: &Joined) -> bool {
        let book = after.book.start - before.book.end;
        let generation = after.generation.start - before.generation.end;
        book.max(generation) <= self.gap && book.abs_diff(generation) <= self.misalignment
    }
}
