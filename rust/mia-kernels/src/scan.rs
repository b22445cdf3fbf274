//! Runs of bytes between separators, 64 bytes at a time.

#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use crate::marks::Mask;
use crate::places::Places;
use crate::vectorize::vectorize;

/// The runs of a text that hold no separator.
#[derive(Debug)]
pub(crate) struct Runs<'a, S> {
    text: &'a [u8],
    separators: S,
    /// Where the next block starts.
    next: usize,
    /// Where runs of the block at hand start and end.
    edges: Mask,
    /// Whether the block's last byte stands in a run.
    inside: bool,
    /// Separators that reach into the next block.
    over: u128,
}

impl<'a, S: Fn(&'a [u8], usize) -> u128> Runs<'a, S> {
    /// `separators` marks those of the block that starts at some place of the text; a
    /// separator of several bytes may reach behind it.
    pub(crate) fn new(text: &'a [u8], separators: S) -> Self {
        Self {
            text,
            separators,
            next: 0,
            edges: 0,
            inside: false,
            over: 0,
        }
    }

    /// Tells where all of them stand.
    pub(crate) fn place(mut self, places: &mut Places) {
        vectorize(
            #[inline(always)]
            || {
                while self.next < self.text.len() {
                    let start = self.next;
                    self.read_block();
                    places.push_edges(start, self.edges);
                }
            },
        );
        if self.inside {
            places.push_edges(self.text.len(), 1);
        }
    }

    /// The next place where a run starts or ends, but for the text's end.
    #[inline]
    fn edge(&mut self) -> Option<usize> {
        while self.edges == 0 {
            if self.next >= self.text.len() {
                return None;
            }
            self.read_block();
        }
        let bit = self.edges.trailing_zeros() as usize;
        self.edges &= self.edges - 1;
        Some(self.next - 64 + bit)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half is kept for the next block"
    )]
    #[inline(always)]
    fn read_block(&mut self) {
        let separators = (self.separators)(self.text, self.next) | self.over;
        self.over = separators >> 64;
        let runs = !(separators as Mask);
        self.edges = runs ^ (runs << 1 | Mask::from(self.inside));
        self.inside = runs >> 63 == 1;
        self.next += 64;
    }
}

impl<'a, S: Fn(&'a [u8], usize) -> u128> Iterator for Runs<'a, S> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.edge()?;
        let end = self.edge().unwrap_or(self.text.len());
        self.text.get(start..end)
    }
}

/// Gives the block of the text that starts at `start`, with spaces behind the text's end.
#[inline(always)]
pub(crate) fn with_block<T>(text: &[u8], start: usize, read: impl Fn(&[u8; 64]) -> T) -> T {
    let rest = text.get(start..).unwrap_or_default();
    let Some(block) = rest.first_chunk() else {
        let mut block = [b' '; 64];
        for (byte, &last) in std::iter::zip(&mut block, rest) {
            *byte = last;
        }
        return read(&block);
    };
    read(block)
}
