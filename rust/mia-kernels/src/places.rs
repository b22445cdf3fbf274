//! Where words stand in a text.

#![expect(
    clippy::indexing_slicing,
    reason = "there is room for all edges of a block behind those before it"
)]

use crate::limits::number;
use crate::marks::Mask;

/// A word's first byte and the byte behind its last.
pub(crate) type Place = [u32; 2];

/// Edges of a block at most, and what is written behind them.
const ROOM: usize = 64 + 8;

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

    /// Takes edges of the block of 64 bytes that begins at `start`: without a branch, because
    /// how many there are is as good as random.
    #[inline]
    pub(crate) fn push_edges(&mut self, start: usize, mask: Mask) {
        let room = self.room();
        let mut start = number(start);
        let mut n_edges = 0;
        for bits in mask.to_le_bytes().map(usize::from) {
            let edges = BITS[bits].map(|bit| start + bit);
            // There are less than 64 before the last eight bytes; so told, it takes no check.
            room[n_edges % 64..][..8].copy_from_slice(&edges);
            n_edges += usize::from(COUNTS[bits]);
            start += 8;
        }
        self.n_edges += n_edges;
    }

    /// Where the next edges go.
    #[inline]
    fn room(&mut self) -> &mut [u32] {
        if self.edges.len() < self.n_edges + ROOM {
            self.grow();
        }
        &mut self.edges[self.n_edges..][..ROOM]
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.edges.resize(2 * self.n_edges + ROOM, 0);
    }
}

/// The bits of each byte, the first one lowest. What stands behind them means nothing.
static BITS: [[u32; 8]; 256] = {
    let mut bits = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut n_bits) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                bits[byte][n_bits] = bit;
                n_bits += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    bits
};

/// How many each byte has.
static COUNTS: [u8; 256] = {
    let mut counts = [0; 256];
    let mut byte = 1;
    while byte < 256 {
        counts[byte] = counts[byte / 2] + (byte % 2 == 1) as u8;
        byte += 1;
    }
    counts
};

#[cfg(test)]
mod tests {
    use super::Places;

    #[test]
    fn edges_are_the_bits_of_a_mask() {
        let mut places = Places::default();
        let mut expected = Vec::new();
        for (block, mask) in [0, 0b1001, u64::MAX, 1 << 63, 0x5555_5555_5555_5555, 3 << 62]
            .into_iter()
            .enumerate()
        {
            places.push_edges(64 * block, mask);
            let start = 64 * u32::try_from(block).unwrap();
            expected.extend(
                (0..64)
                    .filter(|bit| mask >> bit & 1 == 1)
                    .map(|bit| start + bit),
            );
        }
        expected.push(1000);
        places.push_edges(1000, 1);
        places.push(1001, 1002);
        expected.extend([1001, 1002]);
        assert_eq!(places.as_slice().as_flattened(), expected);
        places.clear();
        assert_eq!(places.as_slice(), [[0; 2]; 0]);
    }
}
