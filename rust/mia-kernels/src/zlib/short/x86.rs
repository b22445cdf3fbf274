//! A table of all matches, where it takes less time.

use std::ops::RangeInclusive;

use crate::zlib::block::Block;
use crate::zlib::lanes::{Avx2, Avx512};
use crate::zlib::table::{MAX_BYTES, Table, is_looped};

/// A shorter text takes less time without a table, which takes some however short a text is.
const BYTES: RangeInclusive<usize> = 2048..=MAX_BYTES;
/// Texts that come one after the other are often alike: after one for which a table did not
/// do, so many are not tried.
const N_UNTRIED: u32 = 15;

/// A table of all matches, made for the first text that is worth it.
pub(in crate::zlib) struct ShortTexts {
    rows: Rows,
    table: Option<Box<Table>>,
    /// Texts that follow and are not tried.
    n_untried: u32,
}

/// The widest rows that the processor has.
enum Rows {
    Avx512(Avx512),
    Avx2(Avx2),
}

impl ShortTexts {
    /// None where the processor has rows of neither kind.
    pub(in crate::zlib) fn detect() -> Option<Self> {
        let avx512 = Avx512::detect().map(Rows::Avx512);
        let rows = avx512.or_else(|| Avx2::detect().map(Rows::Avx2))?;
        Some(Self {
            rows,
            table: None,
            n_untried: 0,
        })
    }

    /// Adds the symbols of a text to an empty block, or tells that it has to be read otherwise.
    pub(in crate::zlib) fn push(&mut self, text: &[u8], block: &mut Block) -> bool {
        if !BYTES.contains(&text.len()) || is_looped(text) {
            return false;
        }
        if self.n_untried > 0 {
            self.n_untried -= 1;
            return false;
        }
        let table = self.table.get_or_insert_default();
        let is_done = match self.rows {
            Rows::Avx512(lanes) => table.push(lanes, text, block),
            Rows::Avx2(lanes) => table.push(lanes, text, block),
        };
        if !is_done {
            self.n_untried = N_UNTRIED;
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use super::ShortTexts;
    use crate::zlib::block::Block;
    use crate::zlib::trial::Random;

    #[test]
    fn texts_that_are_tried() {
        let Some(mut short) = ShortTexts::detect() else {
            return;
        };
        let mut random = Random(1);
        let [many, few] = [b'!'..b'{', b'a'..b'e'].map(|letters| {
            let letters: Vec<u8> = letters.collect();
            let text = (0..6113).map(|_| letters[random.below(letters.len())]);
            text.collect::<Vec<_>>()
        });
        let mut is_pushed = |text: &[u8]| short.push(text, &mut Block::default());
        assert!(!is_pushed(&many[..2047]));
        assert!(is_pushed(&many[..2048]));
        assert!(is_pushed(&many[..6112]));
        assert!(!is_pushed(&many));
        assert!(!is_pushed(&[b'a'; 2048]));
        assert!(is_pushed(&many[..2048]));
        assert!(!is_pushed(&few[..4000]));
        for _ in 0..15 {
            assert!(!is_pushed(&many[..2047]));
            assert!(!is_pushed(&many[..2048]));
        }
        assert!(is_pushed(&many[..2048]));
    }
}
