//! Texts that a table does not suit, because they repeat themselves.

/// How far back a loop is looked for.
const MAX_PERIOD: usize = 320;
/// A text is asked at the end of each part but the first.
const N_PARTS: usize = 5;
/// Bytes that hardly stand twice so near to each other, if not in a loop.
const N_BYTES: usize = 8;

/// Whether half of a text is looped, as those of language models may be. There zlib jumps from
/// one long match to the next, and a table of all places is of no use.
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

/// Whether the bytes that end here ended a little before.
fn has_just_been(text: &[u8], end: usize) -> bool {
    let from = end.saturating_sub(N_BYTES + MAX_PERIOD);
    let bytes = text.get(from..end).unwrap_or_default();
    let mut words = bytes.windows(N_BYTES).rev();
    let last = words.next();
    words.any(|word| Some(word) == last)
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
        for period in [1, 2, 20, 100, 320] {
            assert!(looped(0, period, 3000), "{period}");
            assert!(looped(2000, period, 3000), "{period}");
            assert!(!looped(3000, period, 900), "{period}");
        }
        assert!(looped(0, 7, 64));
        assert!(!looped(0, 321, 3000));
        assert!(!looped(3000, 1, 0));
        assert!(!looped(0, 1, 0));
        assert!(!looped(0, 1, 8));
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
