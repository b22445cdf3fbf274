//! Which of 64 bits are set, without a branch, because how many are is as good as random.

#![expect(
    clippy::indexing_slicing,
    reason = "there is room for 64 places and what is written behind them"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

#[cfg(target_arch = "x86_64")]
use pulp::{bytemuck::cast, x86::V4};

use crate::marks::Mask;

/// Places of a mask at most, and what is written behind them.
pub(crate) const ROOM: usize = 64 + 16;

/// Writes the places of all bits that are set, the lowest of which has the place `start`, and tells
/// how many. What is written behind them means nothing.
#[inline(always)]
pub(crate) fn write_places(mask: Mask, start: u32, room: &mut [u32; ROOM]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = V4::try_new() {
        return compress(simd, mask, start, room);
    }
    look_up(mask, start, room)
}

/// By an instruction of AVX-512, sixteen bits at a time.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn compress(simd: V4, mask: Mask, start: u32, room: &mut [u32; ROOM]) -> usize {
    let simd = simd.avx512f;
    let sixteen = simd._mm512_set1_epi32(16);
    let places = simd._mm512_set1_epi32(start.cast_signed());
    let mut places = simd._mm512_add_epi32(cast(FIRST), places);
    let mut n_places = 0;
    for bits in cast::<Mask, [u16; 4]>(mask) {
        let set: [u32; 16] = cast(simd._mm512_maskz_compress_epi32(bits, places));
        // There are less than 64 before the last sixteen bits; so told, it takes no check.
        room[n_places % 64..][..16].copy_from_slice(&set);
        n_places += bits.count_ones() as usize;
        places = simd._mm512_add_epi32(places, sixteen);
    }
    n_places
}

/// From a table, eight bits at a time.
#[inline(always)]
fn look_up(mask: Mask, mut start: u32, room: &mut [u32; ROOM]) -> usize {
    let mut n_places = 0;
    for bits in mask.to_le_bytes().map(usize::from) {
        let places = BITS[bits].map(|bit| start + bit);
        room[n_places % 64..][..8].copy_from_slice(&places);
        n_places += usize::from(COUNTS[bits]);
        start += 8;
    }
    n_places
}

#[cfg(target_arch = "x86_64")]
const FIRST: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

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
    use super::{ROOM, look_up, write_places};

    #[test]
    fn places_are_those_of_the_bits_of_a_mask() {
        let masks = [0, 0b1001, u64::MAX, 1 << 63, 0x5555_5555_5555_5555, 3 << 62];
        for mask in masks {
            let expected = (0..64).filter(|bit| mask >> bit & 1 == 1);
            let expected: Vec<_> = expected.map(|bit| 1000 + bit).collect();
            for write in [look_up, write_places] {
                let mut room = [0; ROOM];
                let n_places = write(mask, 1000, &mut room);
                assert_eq!(room[..n_places], expected);
            }
        }
    }
}
