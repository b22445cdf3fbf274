//! Words joined by single spaces.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the text, and there is room for all words and spaces"
)]

use crate::letters::letters;
use crate::places::Place;
use crate::vectorize::vectorize;
use crate::words::WordRule;

/// Bytes that a word is copied by.
const STEP: usize = 16;

/// The words of one text.
#[derive(Default)]
pub(crate) struct Joined {
    /// Whether the text itself joins them so.
    is_text: bool,
    /// Else they are copied here, and what stands behind them means nothing.
    letters: Vec<u8>,
}

impl Joined {
    /// Takes the words of a text from their places.
    pub(crate) fn read(&mut self, text: &[u8], rule: WordRule, places: &[Place]) {
        // Under UAX #29 a word may have a space: a mark belongs to the space before it.
        self.is_text = rule != WordRule::Unicode
            && vectorize(
                #[inline(always)]
                || is_joined(text, places),
            );
        if !self.is_text {
            self.copy(text, places);
        }
    }

    fn copy(&mut self, text: &[u8], places: &[Place]) {
        let room = text.len() + places.len() + STEP;
        if self.letters.len() < room {
            self.letters.resize(room, 0);
        }
        let mut to = 0;
        for &[start, end] in places {
            let length = (end - start) as usize;
            let rest = &mut self.letters[to..];
            match rest.first_chunk_mut::<{ STEP + 1 }>() {
                Some(step) if length <= STEP => {
                    step[..STEP].copy_from_slice(&letters::<STEP>(text, start));
                    step[length] = b' ';
                }
                _ => {
                    rest[..length].copy_from_slice(&text[start as usize..end as usize]);
                    rest[length] = b' ';
                }
            }
            to += length + 1;
        }
    }

    /// Those at `places`, the first ones of the text that was read.
    pub(crate) fn words<'a>(&'a self, text: &'a [u8], places: &[Place]) -> &'a [u8] {
        let ([first, ..], [.., last]) = (places, places) else {
            return &[];
        };
        if self.is_text {
            return &text[first[0] as usize..last[1] as usize];
        }
        let n_letters: u32 = places.iter().map(|[start, end]| end - start).sum();
        &self.letters[..n_letters as usize + places.len() - 1]
    }
}

/// Whether single spaces join words that have none: whether there are as many as words but one, and
/// one byte stands between any two.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "called, it would not run with the instructions of the loop"
)]
fn is_joined(text: &[u8], places: &[Place]) -> bool {
    let ([[start, _], rest @ ..], [before @ .., [_, end]]) = (places, places) else {
        return true;
    };
    let mut longest = 0;
    for ([_, end], [start, _]) in before.iter().zip(rest) {
        longest = longest.max(start - end);
    }
    let mut n_spaces = 0_u32;
    for byte in &text[*start as usize..*end as usize] {
        n_spaces += u32::from(*byte == b' ');
    }
    longest <= 1 && n_spaces as usize == rest.len()
}

#[cfg(test)]
mod tests {
    use super::Joined;
    use crate::places::Places;
    use crate::words::WordRule;

    fn joined(rule: WordRule, text: &str) -> (bool, Vec<Vec<u8>>) {
        let (mut joined, mut places) = (Joined::default(), Places::default());
        rule.place_words(text, &mut places);
        let places = places.as_slice();
        joined.read(text.as_bytes(), rule, places);
        let words = (0..=places.len())
            .map(|n| joined.words(text.as_bytes(), &places[..n]).to_vec())
            .collect();
        (joined.is_text, words)
    }

    #[test]
    fn words_joined_so_are_not_copied() {
        let expected = [&b""[..], b"to", b"to be"].map(<[u8]>::to_vec);
        let spaced = WordRule::Whitespace;
        assert_eq!(joined(spaced, "\n to be \n"), (true, expected.to_vec()));
        assert_eq!(joined(spaced, " "), (true, vec![b"".to_vec()]));
    }

    #[test]
    fn others_are_copied_whatever_their_length() {
        for length in [1, 15, 16, 17, 40] {
            for space in ["  ", "\n", "\u{3000}"] {
                let word = "x".repeat(length);
                let text = format!("{word}{space}{word} a");
                let (is_text, words) = joined(WordRule::Whitespace, &text);
                let whole = format!("{word} {word} a");
                assert!(!is_text);
                assert_eq!(words[1], word.as_bytes());
                assert_eq!(words[3], whole.as_bytes());
            }
        }
    }

    #[test]
    fn words_that_have_spaces_or_none_between_them_are_copied() {
        for (text, words) in [
            ("x \u{93f} y", "x  \u{93f} y"),
            ("a\n \u{93f}", "a  \u{93f}"),
            ("\u{4f60}\u{597d} a", "\u{4f60} \u{597d} a"),
        ] {
            let (_, found) = joined(WordRule::Unicode, text);
            assert_eq!(found.last().map(Vec::as_slice), Some(words.as_bytes()));
        }
    }
}
