//! Words by UAX #29.

use unicode_segmentation::{UnicodeSegmentation, UnicodeWords};

/// Words, found without the tables of the annex where they are plain.
#[derive(Debug)]
pub(super) struct Segments<'a> {
    /// Words of the piece at hand.
    words: UnicodeWords<'a>,
    /// What stands behind it.
    rest: &'a str,
}

impl<'a> Segments<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            words: "".unicode_words(),
            rest: text,
        }
    }

    /// Takes the text up to the next space that stands between ASCII letters or digits, where
    /// both sides of the space are boundaries whatever stands further off.
    fn next_piece(&mut self) -> &'a str {
        let bytes = self.rest.as_bytes();
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let space = rest.iter().position(|&byte| byte == b' ');
            at += space.unwrap_or(rest.len());
            let before = at.checked_sub(1).and_then(|before| bytes.get(before));
            let around = before.is_none_or(u8::is_ascii_alphanumeric)
                && bytes.get(at + 1).is_none_or(u8::is_ascii_alphanumeric);
            if around || at >= bytes.len() {
                let (piece, rest) = self.rest.split_at(at.min(bytes.len()));
                self.rest = rest.get(1..).unwrap_or_default();
                return piece;
            }
            at += 1;
        }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            if let Some(word) = self.words.next() {
                return Some(word);
            }
            if self.rest.is_empty() {
                return None;
            }
            let piece = self.next_piece();
            if !piece.is_empty() && piece.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Some(piece);
            }
            self.words = piece.unicode_words();
        }
    }
}
