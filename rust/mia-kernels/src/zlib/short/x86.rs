//! A table of all matches, where it takes less time.

use std::ops::RangeInclusive;

use crate::zlib::block::Block;
use crate::zlib::lanes::{Avx2, Avx512, Lanes};
use crate::zlib::table::{MAX_BYTES, Table, is_looped};

/// A shorter text takes less time without a table, which takes some however short a text is.
const BYTES: RangeInclusive<usize> = 1536..=MAX_BYTES;

/// A table of all matches, made for the first text that is worth it.
pub(in crate::zlib) struct ShortTexts {
    rows: Rows,
    table: Option<Box<Table>>,
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
        Some(Self { rows, table: None })
    }

    /// Whether a table may be made for texts as long as this one.
    pub(in crate::zlib) fn takes(text: &[u8]) -> bool {
        BYTES.contains(&text.len())
    }

    /// Adds the symbols of a text to an empty block, or tells that it has to be read otherwise.
    pub(in crate::zlib) fn push(&mut self, text: &[u8], block: &mut Block) -> bool {
        match self.rows {
            Rows::Avx512(lanes) => self.try_push(lanes, text, block),
            Rows::Avx2(lanes) => self.try_push(lanes, text, block),
        }
    }

    fn try_push(&mut self, lanes: impl Lanes, text: &[u8], block: &mut Block) -> bool {
        let is_looped = lanes.run(
            #[inline(always)]
            || is_looped(text),
        );
        if is_looped {
            return false;
        }
        let table = self.table.get_or_insert_default();
        table.push(lanes, text, block)
    }
}

#[cfg(test)]
mod tests {
    use super::ShortTexts;
    use crate::zlib::block::Block;

    /// So many letters by chance (Knuth's generator MMIX).
    fn noise(n_letters: u64) -> Vec<u8> {
        let mut state = 1_u64;
        let mut letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            let [letter, ..] = ((state >> 33) % n_letters + 33).to_le_bytes();
            letter
        };
        (0..7137).map(|_| letter()).collect()
    }

    #[test]
    fn texts_that_are_tried() {
        let Some(mut short) = ShortTexts::detect() else {
            return;
        };
        let [many, few] = [90, 4].map(noise);
        let lengths = [1535, 1536, 7136, 7137].map(|length| ShortTexts::takes(&many[..length]));
        assert_eq!(lengths, [false, true, true, false]);
        let mut is_pushed = |text: &[u8]| short.push(text, &mut Block::default());
        assert!(is_pushed(&many[..1536]));
        assert!(is_pushed(&many[..7136]));
        assert!(!is_pushed(&[b'a'; 1536]));
        assert!(!is_pushed(&few[..4000]));
        assert!(is_pushed(&many[..1536]));
    }
}
