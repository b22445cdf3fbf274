//! Texts to words.

use crate::error::KernelError;
use crate::limits::{check_length, number};

/// How a text is cut into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordRule {
    /// Runs of characters that are not white space, as Python's `text.split()`.
    Whitespace,
    /// Runs of characters that are not U+0020, as Python's `text.split(" ")` without its
    /// empty strings: newlines and tabs stay inside words.
    Space,
}

impl WordRule {
    /// The words of `text`, in order, as UTF-8.
    pub fn words(self, text: &str) -> Words<'_> {
        Words {
            rule: self,
            rest: text.as_bytes(),
        }
    }

    /// Words of `text`.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn count(self, text: &str) -> Result<u32, KernelError> {
        check_length(text.as_bytes())?;
        Ok(number(self.words(text).count()))
    }

    /// What stands before and after the first separator of `text`.
    fn cut(self, text: &[u8]) -> (&[u8], &[u8]) {
        match self {
            Self::Whitespace => cut_at(text, whitespace),
            Self::Space => cut_at(text, |rest| usize::from(rest.starts_with(b" "))),
        }
    }
}

/// The words of one text.
#[derive(Clone, Debug)]
pub struct Words<'a> {
    rule: WordRule,
    rest: &'a [u8],
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let (word, rest) = self.rule.cut(self.rest);
            self.rest = rest;
            if !word.is_empty() {
                return Some(word);
            }
        }
        None
    }
}

/// Cuts `text` at its first separator, whose length in bytes `separator` tells (0 for none).
fn cut_at(text: &[u8], separator: impl Fn(&[u8]) -> usize) -> (&[u8], &[u8]) {
    for end in 0..text.len() {
        let (word, rest) = text.split_at(end);
        let length = separator(rest);
        if length > 0 {
            return (word, rest.get(length..).unwrap_or_default());
        }
    }
    (text, &[])
}

/// Bytes of the white-space character that `text` starts with; 0 if it starts with another.
///
/// White space is what Python's `str.isspace` says: the Unicode property `White_Space` and
/// the four separators U+001C to U+001F.
fn whitespace(text: &[u8]) -> usize {
    match text {
        [b'\t'..=b'\r' | 0x1c..=b' ', ..] => 1,
        [0xc2, 0x85 | 0xa0, ..] => 2,                       // U+0085, U+00A0
        [0xe1, 0x9a, 0x80, ..]                              // U+1680
        | [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..] // U+2000 to 200A, 2028, 2029, 202F
        | [0xe2, 0x81, 0x9f, ..]                            // U+205F
        | [0xe3, 0x80, 0x80, ..] => 3,                      // U+3000
        _ => 0,
    }
}
