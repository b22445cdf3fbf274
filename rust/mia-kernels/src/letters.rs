//! The letters of words, several at a time.

#![expect(
    clippy::indexing_slicing,
    reason = "words lie inside their text, and there is a fill for each length"
)]

/// Stands behind the letters of a word that are too few: a byte that no UTF-8 has.
pub(crate) const FILL: u8 = 0xff;

/// For words of each length bytes of [`FILL`] that take the place of what stands behind them.
pub(crate) const FILLS: [u128; 32] = {
    let mut fills = [0; 32];
    let mut length = 0;
    while length < 16 {
        fills[length] = u128::MAX << (8 * length);
        length += 1;
    }
    fills
};

/// Letters from a place on, whatever word they belong to, with zeros behind the text's end.
#[inline]
pub(crate) fn letters<const N: usize>(text: &[u8], start: u32) -> [u8; N] {
    let start = start as usize;
    let letters = text.get(start..start + N).and_then(<[u8]>::first_chunk);
    letters
        .copied()
        .unwrap_or_else(|| last_letters(text, start))
}

#[cold]
fn last_letters<const N: usize>(text: &[u8], start: usize) -> [u8; N] {
    let mut letters = [0; N];
    for (letter, &last) in letters.iter_mut().zip(&text[start..]) {
        *letter = last;
    }
    letters
}
