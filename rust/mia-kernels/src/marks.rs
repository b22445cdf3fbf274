//! Bytes of a kind among 64, as bits.

#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128i;

#[cfg(target_arch = "x86_64")]
use pulp::{bytemuck::cast, core_arch::x86::Sse2};

/// Which bytes of a block of 64 are marked, the first lowest.
pub(crate) type Mask = u64;

/// Marks bytes from the first to the last of any of `ranges`.
#[inline(always)]
pub(crate) fn within<const N: usize>(block: &[u8; 64], ranges: [[u8; 2]; N]) -> Mask {
    let mut marks = [0; 64];
    for [first, last] in ranges {
        for (mark, byte) in marks.iter_mut().zip(block) {
            let is_within = byte.wrapping_sub(first) <= last - first;
            *mark |= if is_within { u8::MAX } else { 0 };
        }
    }
    gather(&marks)
}

/// Marks bytes that are not the same in both.
#[inline]
pub(crate) fn differing(block: &[u8; 64], other: &[u8; 64]) -> Mask {
    let mut marks = [0; 64];
    for (mark, (byte, other)) in marks.iter_mut().zip(block.iter().zip(other)) {
        *mark = if byte == other { 0 } else { u8::MAX };
    }
    gather(&marks)
}

/// The highest bit of each byte.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn gather(bytes: &[u8; 64]) -> Mask {
    let Some(sse2) = Sse2::try_new() else {
        return gather_eights(bytes);
    };
    let rows: [__m128i; 4] = cast(*bytes);
    let masks = rows.map(|row| sse2._mm_movemask_epi8(row).to_le_bytes());
    Mask::from_le_bytes(cast(masks.map(|[low, high, ..]| [low, high])))
}

#[cfg(not(target_arch = "x86_64"))]
use gather_eights as gather;

/// The same on any processor.
fn gather_eights(bytes: &[u8; 64]) -> Mask {
    let (eights, _) = bytes.as_chunks();
    let mut mask = [0; 8];
    for (bits, eight) in mask.iter_mut().zip(eights) {
        let eight = u64::from_le_bytes(*eight) >> 7 & 0x0101_0101_0101_0101;
        // The product brings the eight together in its highest byte.
        [.., *bits] = eight.wrapping_mul(0x0102_0408_1020_4080).to_le_bytes();
    }
    Mask::from_le_bytes(mask)
}

#[cfg(test)]
mod tests {
    use super::{differing, gather, gather_eights, within};

    #[test]
    fn each_bit_is_its_byte() {
        for start in 0..=255_u8 {
            let mut byte = start;
            let block = [(); 64].map(|()| {
                byte = byte.wrapping_add(1);
                byte
            });
            let mask = within(&block, [[3, 3], [0x61, 0x7a], [0xf0, 0xff]]);
            for (at, byte) in block.into_iter().enumerate() {
                let expected = matches!(byte, 3 | 0x61..=0x7a | 0xf0..=0xff);
                assert_eq!(mask >> at & 1 == 1, expected, "{byte} at {at}");
            }
        }
    }

    #[test]
    fn bytes_that_differ_are_marked() {
        let block = [7; 64];
        let mut other = block;
        for at in [0, 1, 40, 63] {
            other[at] = 0x87;
        }
        assert_eq!(differing(&block, &other), 1 << 63 | 1 << 40 | 0b11);
    }

    #[test]
    fn marks_are_gathered_alike_on_every_processor() {
        let mut state = 1_u64;
        for _ in 0..1000 {
            let block = [(); 64].map(|()| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let [.., byte] = state.to_le_bytes();
                byte
            });
            let bits = block.iter().rev();
            let expected = bits.fold(0, |mask, byte| mask << 1 | u64::from(byte >> 7));
            assert_eq!([gather(&block), gather_eights(&block)], [expected; 2]);
        }
    }
}
