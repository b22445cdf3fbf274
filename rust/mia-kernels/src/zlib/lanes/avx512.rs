//! Rows in the registers of AVX-512 (F, BW and DQ).

#![expect(
    clippy::inline_always,
    reason = "instructions are for loops that run with AVX-512, not for calls from them"
)]

use std::arch::x86_64::{__m256i, __m512i};

use pulp::bytemuck::cast;
use pulp::x86::V4;

use super::{Lanes, List, WIDTH};

/// A processor's AVX-512.
#[derive(Clone, Copy)]
pub(in crate::zlib) struct Avx512(V4);

impl Avx512 {
    /// None where the processor, or the system, has none.
    pub(in crate::zlib) fn detect() -> Option<Self> {
        V4::try_new().map(Self)
    }

    /// Each number of half a row in 32 bits.
    #[inline(always)]
    fn widen<const UPPER: bool>(self, row: __m512i) -> __m512i {
        let Self(simd) = self;
        let half = if UPPER {
            simd.avx512f._mm512_extracti64x4_epi64::<1>(row)
        } else {
            simd.avx512f._mm512_castsi512_si256(row)
        };
        simd.avx512f._mm512_cvtepu16_epi32(half)
    }

    #[inline(always)]
    fn push_half<const UPPER: bool>(self, list: &mut List, mask: u16, pairs: [__m512i; 2]) {
        let [firsts, seconds] = pairs.map(
            #[inline(always)]
            |row| self.widen::<UPPER>(row),
        );
        let simd = self.0.avx512f;
        let pairs = simd._mm512_or_si512(firsts, simd._mm512_slli_epi32::<16>(seconds));
        let pairs = simd._mm512_maskz_compress_epi32(mask, pairs);
        list.extend::<16>(cast(pairs), mask.count_ones());
    }
}

impl Lanes for Avx512 {
    type Row = __m512i;
    /// A bit for each number.
    type Mask = u32;

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
        let bytes: __m256i = cast(*bytes);
        self.0.avx512bw._mm512_cvtepu8_epi16(bytes)
    }

    #[inline(always)]
    fn store(self, row: Self::Row, numbers: &mut [u16; WIDTH]) {
        *numbers = cast(row);
    }

    #[inline(always)]
    fn splat(self, number: u16) -> Self::Row {
        self.0.avx512f._mm512_set1_epi16(number.cast_signed())
    }

    #[inline(always)]
    fn add(self, left: Self::Row, right: Self::Row) -> Self::Row {
        self.0.avx512bw._mm512_add_epi16(left, right)
    }

    #[inline(always)]
    fn subtract(self, left: Self::Row, right: Self::Row) -> Self::Row {
        self.0.avx512bw._mm512_sub_epi16(left, right)
    }

    #[inline(always)]
    fn and(self, left: Self::Row, right: Self::Row) -> Self::Row {
        self.0.avx512f._mm512_and_si512(left, right)
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, row: Self::Row) -> Self::Row {
        self.0.avx512bw._mm512_srli_epi16::<BITS>(row)
    }

    #[inline(always)]
    fn is_equal(self, left: Self::Row, right: Self::Row) -> u32 {
        self.0.avx512bw._mm512_cmpeq_epi16_mask(left, right)
    }

    #[inline(always)]
    fn is_greater(self, left: Self::Row, right: Self::Row) -> u32 {
        self.0.avx512bw._mm512_cmpgt_epu16_mask(left, right)
    }

    #[inline(always)]
    fn both(self, left: u32, right: u32) -> u32 {
        left & right
    }

    #[inline(always)]
    fn but_not(self, left: u32, right: u32) -> u32 {
        left & !right
    }

    #[inline(always)]
    fn select(self, mask: u32, set: Self::Row, unset: Self::Row) -> Self::Row {
        self.0.avx512bw._mm512_mask_blend_epi16(mask, unset, set)
    }

    #[inline(always)]
    fn push(self, list: &mut List, mask: u32, pairs: [Self::Row; 2]) {
        let Self(simd) = self;
        // Half a mask, taken from its bits, would go through memory, and wait there.
        let all = simd.avx512bw._mm512_movm_epi16(mask);
        let lower = simd.avx512f._mm512_castsi512_si256(all);
        let upper = simd.avx512f._mm512_extracti64x4_epi64::<1>(all);
        let [lower, upper] = [lower, upper].map(
            #[inline(always)]
            |half| {
                let half = simd.avx512f._mm512_cvtepi16_epi32(half);
                simd.avx512dq._mm512_movepi32_mask(half)
            },
        );
        self.push_half::<false>(list, lower, pairs);
        self.push_half::<true>(list, upper, pairs);
    }
}
