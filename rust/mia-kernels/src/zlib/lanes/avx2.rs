//! Rows in the registers of AVX2.

#![expect(
    clippy::inline_always,
    reason = "instructions are for loops that run with AVX2, not for calls from them"
)]
#![expect(clippy::indexing_slicing, reason = "a mask of eight bits has an entry")]

use std::arch::x86_64::{__m128i, __m256i};

use pulp::bytemuck::cast;
use pulp::x86::V3;

use super::{Lanes, List, WIDTH};

/// A processor's AVX2.
#[derive(Clone, Copy)]
pub(in crate::zlib) struct Avx2(V3);

/// For each mask of eight numbers those that are in it, and then others.
static NUMBERS: [u64; 1 << 8] = {
    let mut all = [0; 1 << 8];
    let mut mask = 0;
    while mask < all.len() {
        let mut numbers = [0; 8];
        let (mut number, mut length) = (0_u8, 0);
        while number < 8 {
            numbers[length] = number;
            length += mask >> number & 1;
            number += 1;
        }
        all[mask] = u64::from_le_bytes(numbers);
        mask += 1;
    }
    all
};

/// Does the same with both halves of two rows.
macro_rules! by_halves {
    ($lanes:ident.$instruction:ident($left:ident, $right:ident)) => {{
        let ([left, other_left], [right, other_right]) = ($left, $right);
        [
            $lanes.0.avx2.$instruction(left, right),
            $lanes.0.avx2.$instruction(other_left, other_right),
        ]
    }};
}

impl Avx2 {
    /// None where the processor, or the system, has none.
    pub(in crate::zlib) fn detect() -> Option<Self> {
        V3::try_new().map(Self)
    }

    #[inline(always)]
    fn push_eight(self, list: &mut List, mask: u8, pairs: __m256i) {
        let numbers: __m128i = cast([NUMBERS[usize::from(mask)], 0]);
        let numbers = self.0.avx2._mm256_cvtepu8_epi32(numbers);
        let pairs = self.0.avx2._mm256_permutevar8x32_epi32(pairs, numbers);
        list.extend::<8>(cast(pairs), mask.count_ones());
    }
}

impl Lanes for Avx2 {
    type Row = [__m256i; 2];
    /// All bits of each number, or none.
    type Mask = Self::Row;

    #[inline(always)]
    fn run<R>(self, task: impl FnOnce() -> R) -> R {
        self.0.vectorize(task)
    }

    #[inline(always)]
    fn load(self, numbers: &[u16; WIDTH]) -> Self::Row {
        cast(*numbers)
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; WIDTH]) -> Self::Row {
        let halves: [__m128i; 2] = cast(*bytes);
        halves.map(
            #[inline(always)]
            |half| self.0.avx2._mm256_cvtepu8_epi16(half),
        )
    }

    #[inline(always)]
    fn store(self, row: Self::Row, numbers: &mut [u16; WIDTH]) {
        *numbers = cast(row);
    }

    #[inline(always)]
    fn splat(self, number: u16) -> Self::Row {
        [self.0.avx._mm256_set1_epi16(number.cast_signed()); 2]
    }

    #[inline(always)]
    fn add(self, left: Self::Row, right: Self::Row) -> Self::Row {
        by_halves!(self._mm256_add_epi16(left, right))
    }

    #[inline(always)]
    fn subtract(self, left: Self::Row, right: Self::Row) -> Self::Row {
        by_halves!(self._mm256_sub_epi16(left, right))
    }

    #[inline(always)]
    fn and(self, left: Self::Row, right: Self::Row) -> Self::Row {
        by_halves!(self._mm256_and_si256(left, right))
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, row: Self::Row) -> Self::Row {
        let bits = cast([u64::from(BITS), 0]);
        row.map(
            #[inline(always)]
            |half| self.0.avx2._mm256_srl_epi16(half, bits),
        )
    }

    #[inline(always)]
    fn is_equal(self, left: Self::Row, right: Self::Row) -> Self::Mask {
        by_halves!(self._mm256_cmpeq_epi16(left, right))
    }

    #[inline(always)]
    fn is_greater(self, left: Self::Row, right: Self::Row) -> Self::Mask {
        by_halves!(self._mm256_cmpgt_epi16(left, right))
    }

    #[inline(always)]
    fn both(self, left: Self::Mask, right: Self::Mask) -> Self::Mask {
        self.and(left, right)
    }

    #[inline(always)]
    fn but_not(self, left: Self::Mask, right: Self::Mask) -> Self::Mask {
        by_halves!(self._mm256_andnot_si256(right, left))
    }

    #[inline(always)]
    fn select(self, mask: Self::Mask, set: Self::Row, unset: Self::Row) -> Self::Row {
        let simd = self.0.avx2;
        let [mask, other_mask] = mask;
        let [(set, other_set), (unset, other_unset)] = [set, unset].map(<(_, _)>::from);
        [
            simd._mm256_blendv_epi8(unset, set, mask),
            simd._mm256_blendv_epi8(other_unset, other_set, other_mask),
        ]
    }

    #[inline(always)]
    fn push(self, list: &mut List, [mask, other_mask]: Self::Mask, pairs: [Self::Row; 2]) {
        let simd = self.0.avx2;
        let mask = simd._mm256_packs_epi16(mask, other_mask);
        let mask = simd._mm256_permute4x64_epi64::<0b11_01_10_00>(mask);
        let mask = simd._mm256_movemask_epi8(mask).to_le_bytes();
        let (masks, _) = mask.as_chunks();
        let [firsts, seconds] = pairs;
        for ([mask, other_mask], (firsts, seconds)) in masks.iter().zip(firsts.iter().zip(seconds))
        {
            // Four pairs of the first eight numbers, and four of the others.
            let low = simd._mm256_unpacklo_epi16(*firsts, seconds);
            let high = simd._mm256_unpackhi_epi16(*firsts, seconds);
            let pairs = simd._mm256_permute2x128_si256::<0x20>(low, high);
            self.push_eight(list, *mask, pairs);
            let pairs = simd._mm256_permute2x128_si256::<0x31>(low, high);
            self.push_eight(list, *other_mask, pairs);
        }
    }
}
