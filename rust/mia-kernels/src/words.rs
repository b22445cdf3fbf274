//! Texts to words.

use unicode_segmentation::{UnicodeSegmentation, UnicodeWords};

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
    /// Runs of ASCII letters and digits in the lower-cased text, as the rouge-score package
    /// without stemming.
    Rouge,
    /// Segments of UAX #29 that hold a letter or a number.
    Unicode,
}

impl WordRule {
    /// The words of `text`, in order, as UTF-8 and as they stand there.
    pub fn words(self, text: &str) -> Words<'_> {
        let rest = text.as_bytes();
        Words(match self {
            Self::Whitespace => Rest::Whitespace(rest),
            Self::Space => Rest::Space(rest),
            Self::Rouge => Rest::Rouge(rest),
            Self::Unicode => Rest::Unicode(Segments::new(text)),
        })
    }

    /// Appends `word`, one of [`words`](Self::words), as it is compared: under
    /// [`Rouge`](Self::Rouge) in lower case, else as it is.
    pub fn fold(self, word: &[u8], letters: &mut Vec<u8>) {
        match (self, word) {
            (Self::Rouge, [plain @ .., 0xc4, 0xb0]) => {
                self.fold(plain, letters);
                letters.push(b'i');
            }
            (Self::Rouge, _) => fold_ascii(word, letters),
            _ => letters.extend_from_slice(word),
        }
    }

    /// Whether a word of the text in ASCII lower case is compared as anything else.
    pub(crate) fn changes(self, word: &[u8]) -> bool {
        self == Self::Rouge && !word.is_ascii()
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
}

/// The words of one text.
#[derive(Debug)]
pub struct Words<'a>(Rest<'a>);

#[derive(Debug)]
enum Rest<'a> {
    Whitespace(&'a [u8]),
    Space(&'a [u8]),
    Rouge(&'a [u8]),
    Unicode(Segments<'a>),
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            Rest::Whitespace(rest) => next_word(rest, cut_at_whitespace),
            Rest::Space(rest) => next_word(rest, cut_at_space),
            Rest::Rouge(rest) => next_word(rest, cut_as_rouge),
            Rest::Unicode(segments) => segments.next().map(str::as_bytes),
        }
    }
}

/// Takes what stands before separators until it is a word.
fn next_word<'a>(
    rest: &mut &'a [u8],
    cut: impl Fn(&'a [u8]) -> (&'a [u8], &'a [u8]),
) -> Option<&'a [u8]> {
    while !rest.is_empty() {
        let word;
        (word, *rest) = cut(rest);
        if !word.is_empty() {
            return Some(word);
        }
    }
    None
}

/// What stands before and after a separator of `length` bytes at `at`.
fn cut_out(text: &[u8], at: usize, length: usize) -> (&[u8], &[u8]) {
    let (word, rest) = text.split_at(at);
    (word, rest.get(length..).unwrap_or_default())
}

fn cut_at_space(text: &[u8]) -> (&[u8], &[u8]) {
    let at = find(text, 0, |bytes| below(bytes ^ repeat(b' '), 1));
    cut_out(text, at, 1)
}

fn cut_at_whitespace(text: &[u8]) -> (&[u8], &[u8]) {
    let mut from = 0;
    loop {
        // What stands above U+0020 and is ASCII cannot start white space.
        let at = find(text, from, |bytes| {
            below(bytes, b' ' + 1) | bytes & repeat(0x80)
        });
        let rest = text.get(at..).unwrap_or_default();
        let length = whitespace(rest);
        if length > 0 || rest.is_empty() {
            return cut_out(text, at, length);
        }
        from = at + 1;
    }
}

/// The first place, at `from` or behind it, of a byte that `marks` marks, or the text's end.
///
/// It takes eight bytes at a time, the first lowest, and `marks` sets the highest bit of each
/// byte that is looked for; bytes above the first may be marked in error.
fn find(text: &[u8], from: usize, marks: impl Fn(u64) -> u64) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    let (eights, last) = rest.as_chunks::<8>();
    let mut at = from;
    for eight in eights {
        let marked = marks(u64::from_le_bytes(*eight));
        if marked != 0 {
            return at + (marked.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let mut eight = [b' '; 8]; // every rule marks it, so the end is found
    for (byte, &last) in std::iter::zip(&mut eight, last) {
        *byte = last;
    }
    let marked = marks(u64::from_le_bytes(eight));
    text.len().min(at + (marked.trailing_zeros() / 8) as usize)
}

/// Marks bytes below `limit`, which is at most 0x80.
fn below(bytes: u64, limit: u8) -> u64 {
    bytes.wrapping_sub(repeat(limit)) & !bytes & repeat(0x80)
}

/// Marks bytes that are no ASCII letter or digit, all of them rightly.
fn not_alphanumeric(bytes: u64) -> u64 {
    let ascii = bytes & repeat(0x7f);
    let from = |bytes: u64, first: u8| bytes + repeat(0x80 - first); // no byte overflows
    let letter = from(ascii | repeat(0x20), b'a') & !from(ascii | repeat(0x20), b'z' + 1);
    let digit = from(ascii, b'0') & !from(ascii, b'9' + 1);
    !((letter | digit) & !bytes) & repeat(0x80)
}

fn repeat(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
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

/// Of all other characters only two have ASCII letters in lower case: the Kelvin sign becomes
/// k, and the dotted capital I becomes i and a dot, which is no letter and ends the word.
fn cut_as_rouge(text: &[u8]) -> (&[u8], &[u8]) {
    let mut end = 0;
    loop {
        end = find(text, end, not_alphanumeric);
        match text.get(end..).unwrap_or_default() {
            [0xe2, 0x84, 0xaa, ..] => end += 3,                // U+212A
            [0xc4, 0xb0, ..] => return text.split_at(end + 2), // U+0130
            _ => return cut_out(text, end, 1),
        }
    }
}

/// Appends a word of the rule `rouge` in lower case.
fn fold_ascii(word: &[u8], letters: &mut Vec<u8>) {
    if word.is_ascii() {
        letters.extend(word.iter().map(u8::to_ascii_lowercase));
    } else {
        // What is not ASCII is the Kelvin sign, three bytes.
        let folded = word.iter().filter(|&&byte| byte < 0x80 || byte == 0xe2);
        letters.extend(folded.map(|byte| {
            if *byte == 0xe2 {
                b'k'
            } else {
                byte.to_ascii_lowercase()
            }
        }));
    }
}

/// Words by UAX #29, told at a glance where they are plain.
#[derive(Debug)]
struct Segments<'a> {
    /// Words of the piece at hand.
    words: UnicodeWords<'a>,
    /// What stands behind it.
    rest: &'a str,
}

impl<'a> Segments<'a> {
    fn new(text: &'a str) -> Self {
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
            at = find(bytes, at, |bytes| below(bytes ^ repeat(b' '), 1));
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
