//! Bytes of a kind among 64, as bits.

/// Which bytes of a block of 64 are marked, the first lowest.
pub(crate) type Mask = u64;

/// Marks bytes from the first to the last of any of `ranges`.
#[inline]
pub(crate) fn within<const N: usize>(block: &[u8; 64], ranges: [[u8; 2]; N]) -> Mask {
    let mut marks = [0; 64];
    for [first, last] in ranges {
        for (mark, byte) in marks.iter_mut().zip(block) {
            *mark |= u8::from(byte.wrapping_sub(first) <= last - first);
        }
    }
    gather(&marks)
}

/// Bytes that are 0 or 1 to bits.
fn gather(marks: &[u8; 64]) -> Mask {
    let mut mask = [0; 8];
    let (eights, _) = marks.as_chunks();
    for (bits, eight) in mask.iter_mut().zip(eights) {
        // The product brings the eight together in its highest byte.
        let product = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080);
        [.., *bits] = product.to_le_bytes();
    }
    Mask::from_le_bytes(mask)
}

#[cfg(test)]
mod tests {
    use super::within;

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
}
