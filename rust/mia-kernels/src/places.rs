//! Where words stand in a text.

#![expect(
    clippy::indexing_slicing,
    reason = "there is room for all edges of a block behind those before it"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use crate::bits::{ROOM, write_places};
use crate::limits::number;
use crate::marks::Mask;

/// A word's first byte and the byte behind its last.
pub(crate) type Place = [u32; 2];

/// The places of the words of a text, in order.
#[derive(Default)]
pub(crate) struct Places {
    /// Where words start and end, in turns. What stands behind the first `n_edges` means nothing.
    edges: Vec<u32>,
    n_edges: usize,
}

impl Places {
    pub(crate) fn clear(&mut self) {
        self.n_edges = 0;
    }

    pub(crate) fn as_slice(&self) -> &[Place] {
        self.edges[..self.n_edges].as_chunks().0
    }

    pub(crate) fn push(&mut self, start: usize, end: usize) {
        self.room()[..2].copy_from_slice(&[number(start), number(end)]);
        self.n_edges += 2;
    }

    /// Takes edges of the block of 64 bytes that begins at `start`.
    #[inline(always)]
    pub(crate) fn push_edges(&mut self, start: usize, mask: Mask) {
        self.n_edges += write_places(mask, number(start), self.room());
    }

    /// Where the next edges go.
    #[inline(always)]
    fn room(&mut self) -> &mut [u32; ROOM] {
        if self.edges.len() < self.n_edges + ROOM {
            self.grow();
        }
        &mut self.edges[self.n_edges..].as_chunks_mut().0[0]
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.edges.resize(2 * self.n_edges + ROOM, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Places;

    #[test]
    fn edges_stand_behind_those_before() {
        let mut places = Places::default();
        for block in 0..10 {
            places.push_edges(64 * block, u64::MAX);
        }
        places.push_edges(1000, 0b11);
        places.push(1002, 1003);
        let expected: Vec<_> = (0..640).chain(1000..=1003).collect();
        assert_eq!(places.as_slice().as_flattened(), expected);
        places.clear();
        assert_eq!(places.as_slice(), [[0; 2]; 0]);
    }
}
