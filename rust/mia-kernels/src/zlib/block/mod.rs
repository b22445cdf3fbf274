//! What a block of literals and matches takes in the stream (RFC 1951).

#![expect(
    clippy::indexing_slicing,
    reason = "symbols lie inside their alphabets"
)]

mod lengths;

use std::hint::select_unpredictable;

use lengths::Lengths;

use super::huffman::Huffman;
use super::search::Match;
use super::window::MAX_LENGTH;

/// zlib closes a block after so many literals and matches.
pub(super) const MAX_SYMBOLS: usize = (1 << 14) - 1;
const MAX_BITS: u8 = 15;
const N_LITERALS: usize = 286;
const N_DISTANCES: usize = 30;
const END: usize = 256;
const HEADER_BITS: u64 = 3;

/// A code of a length or a distance is a byte, so that none can be out of bounds.
const N_BYTES: usize = 1 << 8;

/// Counts of the symbols in a block.
pub(super) struct Block {
    literals: [u32; END + 1 + N_BYTES],
    distances: [u32; N_BYTES],
    huffman: Huffman,
}

impl Default for Block {
    fn default() -> Self {
        let mut block = Self {
            literals: [0; END + 1 + N_BYTES],
            distances: [0; N_BYTES],
            huffman: Huffman::default(),
        };
        block.clear();
        block
    }
}

impl Block {
    #[inline]
    pub(super) fn push_literal(&mut self, byte: u8) {
        self.literals[usize::from(byte)] += 1;
    }

    #[inline]
    pub(super) fn push_match(&mut self, found: Match) {
        let length = LENGTH_CODES[found.length];
        self.literals[END + 1 + usize::from(length)] += 1;
        self.distances[usize::from(distance_code(found.distance))] += 1;
    }

    /// Bits of the stream with this block, the cheapest of the three kinds, after `bits`; and
    /// starts another. A block may be stored only while its bytes are in view; `None` if
    /// they are not.
    pub(super) fn close(&mut self, bits: u64, n_bytes: Option<usize>) -> u64 {
        let extra = self.extra_bits();
        let fixed = extra + self.fixed_bits();
        let dynamic = extra + self.dynamic_bits();
        let coded = if in_bytes(fixed) <= in_bytes(dynamic) {
            fixed
        } else {
            dynamic
        };
        let stored = n_bytes.map(|n_bytes| n_bytes as u64 + 4);
        let end = match stored {
            Some(stored) if stored <= in_bytes(coded) => 8 * (in_bytes(bits) + stored),
            _ => bits + HEADER_BITS + coded,
        };
        self.clear();
        end
    }

    fn clear(&mut self) {
        self.literals[..N_LITERALS].fill(0);
        self.literals[END] = 1;
        self.distances[..N_DISTANCES].fill(0);
    }

    fn fixed_bits(&self) -> u64 {
        cost(&self.literals, &FIXED_LENGTHS) + cost(&self.distances, &[5; N_DISTANCES])
    }

    fn extra_bits(&self) -> u64 {
        cost(&self.literals[END + 1..], &LENGTH_EXTRA_BITS)
            + cost(&self.distances, &DISTANCE_EXTRA_BITS)
    }

    fn dynamic_bits(&mut self) -> u64 {
        let mut sent = Lengths::default();
        let mut bits = 0;
        for frequencies in [&self.literals[..N_LITERALS], &self.distances[..N_DISTANCES]] {
            let lengths = self.huffman.lengths(frequencies, MAX_BITS);
            bits += cost(frequencies, lengths);
            sent.push(lengths);
        }
        bits + sent.bits(&mut self.huffman)
    }
}

/// Bits of symbols that occur so often and have so many bits each.
fn cost(frequencies: &[u32], bits: &[u8]) -> u64 {
    let costs = frequencies
        .iter()
        .zip(bits)
        .map(|(n, bits)| n * u32::from(*bits));
    costs.sum::<u32>().into()
}

/// Whole bytes up to the end of a block that starts with a header and takes so many bits.
fn in_bytes(bits: u64) -> u64 {
    (bits + HEADER_BITS).div_ceil(8)
}

const FIXED_LENGTHS: [u8; N_LITERALS] = {
    let mut lengths = [8; N_LITERALS];
    let mut symbol = 144;
    while symbol < 280 {
        lengths[symbol] = if symbol < END { 9 } else { 7 };
        symbol += 1;
    }
    lengths
};

const LENGTH_EXTRA_BITS: [u8; N_LITERALS - END - 1] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];

const DISTANCE_EXTRA_BITS: [u8; N_DISTANCES] = [
    0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13,
    13,
];

/// For each length of a match its code. The longest has one of its own.
static LENGTH_CODES: [u8; MAX_LENGTH + 1] = {
    let mut codes = [0; MAX_LENGTH + 1];
    let (mut length, mut code) = (3, 0);
    while length < MAX_LENGTH {
        codes[length] = code;
        length += 1;
        let is_next = (length - 3) % (1 << LENGTH_EXTRA_BITS[code as usize]) == 0;
        code += is_next as u8;
    }
    codes[MAX_LENGTH] = 28;
    codes
};

/// Codes of distances, counted from 0: of those below `NEAR`, then of every `STEP`-th one.
static DISTANCE_CODES: [u8; 2 * NEAR] = {
    let mut codes = [0; 2 * NEAR];
    let mut distance = 0;
    while distance < NEAR {
        codes[distance] = distance_code_of(distance);
        codes[NEAR + distance] = distance_code_of(distance * STEP);
        distance += 1;
    }
    codes
};
const NEAR: usize = 256;
/// No code starts between two such distances.
const STEP: usize = 128;

/// Each power of two of distances, counted from 0, has two codes.
#[expect(clippy::cast_possible_truncation, reason = "there are 30 codes")]
const fn distance_code_of(distance: usize) -> u8 {
    if distance < 2 {
        return distance as u8;
    }
    let power = distance.ilog2();
    (2 * power) as u8 + (distance >> (power - 1) & 1) as u8
}

fn distance_code(distance: usize) -> u8 {
    let distance = distance - 1;
    let far = NEAR + distance / STEP;
    DISTANCE_CODES[select_unpredictable(distance < NEAR, distance, far) % (2 * NEAR)]
}
