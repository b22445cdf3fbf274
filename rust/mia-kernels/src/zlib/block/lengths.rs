//! What the code lengths of a block take in the stream.

use super::{N_LITERALS, cost};
use crate::marks::differing;
use crate::zlib::huffman::Huffman;

/// The code lengths of a block, themselves coded: symbol 0 to 15 for a length, or for a run of
/// one length one of the three below.
#[derive(Default)]
pub(super) struct Lengths {
    frequencies: [u32; 19],
}

impl Lengths {
    const REPEATED: usize = 16;
    const EXTRA_BITS: [u8; 3] = [2, 3, 7];
    const MAX_BITS: u8 = 7;
    const COUNT_BITS: u64 = 5 + 5 + 4;
    /// The lengths of these codes are sent in this order, up to the last that is in use.
    const ORDER: [usize; 19] = [
        16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
    ];

    /// Counts the codes of an alphabet's lengths: 64 at a time, those that end a run are found
    /// without a branch.
    pub(super) fn push(&mut self, lengths: &[u8]) {
        let mut padded = [u8::MAX; BLOCKS * 64 + 1];
        padded[..lengths.len()].copy_from_slice(lengths);
        let blocks = padded.as_chunks().0.iter().zip(padded[1..].as_chunks().0);
        let mut start = 0;
        let mut repeats = [0; 3];
        for (first, (these, next)) in (1..).step_by(64).zip(blocks) {
            let mut ends = differing(these, next);
            while ends != 0 {
                let end = first + ends.trailing_zeros() as usize;
                let length = usize::from(padded[start]);
                let [itself, of @ ..] = RUNS[usize::from(length == 0)][end - start];
                self.frequencies[length] += u32::from(itself);
                for (repeats, n) in repeats.iter_mut().zip(of) {
                    *repeats += u32::from(n);
                }
                start = end;
                ends &= ends - 1;
            }
        }
        for (frequency, n) in self.frequencies[Self::REPEATED..].iter_mut().zip(repeats) {
            *frequency += n;
        }
    }

    /// What a run of zeros adds to the count of zeros and to those of the three codes for runs.
    const fn of_zeros(count: usize) -> [usize; 4] {
        let many = count / 138;
        match count % 138 {
            rest @ 0..3 => [rest, 0, 0, many],
            3..=10 => [0, 0, 1, many],
            _ => [0, 0, 0, many + 1],
        }
    }

    /// What a run of another length adds. The first stands for itself; groups of three to six
    /// repeat it.
    const fn of_length(count: usize) -> [usize; 4] {
        match ((count - 1) / 6, (count - 1) % 6) {
            (groups, rest @ 0..3) => [1 + rest, groups, 0, 0],
            (groups, _) => [1, groups + 1, 0, 0],
        }
    }

    pub(super) fn bits(&self, huffman: &mut Huffman) -> u64 {
        let lengths = huffman.lengths(&self.frequencies, Self::MAX_BITS);
        let is_used = |symbol: &usize| lengths.get(*symbol).is_some_and(|length| *length > 0);
        let last = Self::ORDER.iter().rposition(is_used).unwrap_or(0).max(3);
        Self::COUNT_BITS
            + 3 * (last as u64 + 1)
            + cost(&self.frequencies, lengths)
            + cost(&self.frequencies[Self::REPEATED..], &Self::EXTRA_BITS)
    }
}

/// Blocks of 64 that hold the lengths of an alphabet.
const BLOCKS: usize = N_LITERALS.div_ceil(64);

/// What runs of each number of lengths add to the counts, and what those of zeros add.
#[expect(
    clippy::cast_possible_truncation,
    reason = "286 lengths are at most 48 groups"
)]
static RUNS: [[[u8; 4]; N_LITERALS + 1]; 2] = {
    let mut runs = [[[0; 4]; N_LITERALS + 1]; 2];
    let mut count = 1;
    while count <= N_LITERALS {
        let adds = [Lengths::of_length(count), Lengths::of_zeros(count)];
        let mut at = 0;
        while at < 8 {
            runs[at / 4][count][at % 4] = adds[at / 4][at % 4] as u8;
            at += 1;
        }
        count += 1;
    }
    runs
};
