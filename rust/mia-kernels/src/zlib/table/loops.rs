//! Texts that a table does not suit, because they repeat themselves.

#![expect(
    clippy::indexing_slicing,
    reason = "parts end inside the text, and rows of words inside what is in view"
)]
#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

/// How far back a loop is looked for.
const MAX_PERIOD: usize = 320;
/// A text is asked at the end of each part but the first.
const N_PARTS: usize = 5;
/// Bytes that hardly stand twice so near to each other, if not in a loop.
const N_BYTES: usize = 8;
/// Places that are compared before any answer is asked for.
const N_AT_ONCE: usize = 64;

/// Whether half of a text is looped, as those of language models may be. There zlib jumps from
/// one long match to the next, and a table of all places is of no use.
#[inline(always)]
pub(in crate::zlib) fn is_looped(text: &[u8]) -> bool {
    let mut n_others = 0;
    for part in (2..=N_PARTS).rev() {
        n_others += usize::from(!has_just_been(text, text.len() * part / N_PARTS));
        if n_others == 2 {
            return false;
        }
    }
    true
}

/// Whether the bytes that end here ended a little before. False where fewer than 328 bytes end
/// here, so that no period reaches out of the text.
#[inline(always)]
fn has_just_been(text: &[u8], end: usize) -> bool {
    let Some(bytes) = text[..end].last_chunk::<{ MAX_PERIOD + N_BYTES }>() else {
        return false;
    };
    let last = word(bytes.as_chunks().0[MAX_PERIOD / N_BYTES]);
    for row in (0..MAX_PERIOD / N_AT_ONCE).rev() {
        let bytes = &bytes[row * N_AT_ONCE..][..N_AT_ONCE + N_BYTES];
        // No bit is set if the eight bytes of some place are the last ones.
        let mut least = [u64::MAX; N_AT_ONCE / N_BYTES];
        for from in 0..N_BYTES {
            let words = bytes[from..from + N_AT_ONCE].as_chunks().0;
            for (least, bytes) in least.iter_mut().zip(words) {
                *least = (word(*bytes) ^ last).min(*least);
            }
        }
        if least.contains(&0) {
            return true;
        }
    }
    false
}

fn word(bytes: [u8; N_BYTES]) -> u64 {
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::is_looped;

    /// Bytes that hardly repeat.
    fn noise(length: u32) -> Vec<u8> {
        let numbers = (0..length).map(|at| at.wrapping_mul(0x9e37_79b1).wrapping_mul(at));
        numbers.map(|number| number.to_be_bytes()[0]).collect()
    }

    fn looped(n_before: u32, period: u32, n_bytes: usize) -> bool {
        let piece = noise(period);
        is_looped(
            &[
                noise(n_before),
                piece.iter().copied().cycle().take(n_bytes).collect(),
            ]
            .concat(),
        )
    }

    #[test]
    fn texts_of_which_half_is_a_loop() {
        for period in 1..=320 {
            assert!(looped(0, period, 3000), "{period}");
            assert!(looped(2000, period, 3000), "{period}");
            assert!(!looped(3000, period, 900), "{period}");
        }
        assert!(!looped(0, 321, 3000));
        assert!(!looped(3000, 1, 0));
        for length in [0, 1, 8, 64] {
            assert!(!looped(0, 1, length)); // too short to tell
        }
    }

    #[test]
    fn loops_with_some_other_bytes() {
        let mut text: Vec<u8> = noise(150).into_iter().cycle().take(4000).collect();
        for at in (0..4000).step_by(97) {
            text[at] ^= 1;
        }
        assert!(is_looped(&text));
    }
}
