//! Texts to words.

#![expect(
    clippy::inline_always,
    reason = "called, they would not run with the instructions of the loop"
)]

use std::borrow::Cow;
use std::iter;
use std::ops::BitOr;

mod folding;
mod mixed;
mod segments;

use folding::fold;
use mixed::{Mixed, has_unspaced};
use segments::Segments;

use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::marks::{Mask, within};
use crate::places::Places;
use crate::scan::{Runs, with_block};

/// How a text is cut into words; its name is the variant's in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
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
    /// As [`Whitespace`](Self::Whitespace); within its words, stretches of a script that is written
    /// without spaces, such as Chinese or Thai, are cut as [`Unicode`](Self::Unicode) cuts them, and
    /// punctuation beside them is no word.
    Script,
    /// As [`Script`](Self::Script), and words that differ in typography alone are the same.
    Folded,
}

impl WordRule {
    /// The words of `text`, in order, as UTF-8 and as they stand there.
    pub fn words(self, text: &str) -> Words<'_> {
        match self {
            Self::Rouge if has_other_letters(text) => Words(Rest::Rouge(text.as_bytes())),
            _ => self.spelled_words(text),
        }
    }

    /// The text as its words are compared: under [`Rouge`](Self::Rouge) in lower case, under
    /// [`Folded`](Self::Folded) with one spelling of quotes, dashes, ligatures and accents, else as
    /// it is.
    pub fn spell(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Rouge => lower_case(text),
            Self::Folded => fold_words(text),
            _ => Cow::Borrowed(text),
        }
    }

    /// The words of a text that [`spell`](Self::spell) gives.
    fn spelled_words(self, text: &str) -> Words<'_> {
        let rest = text.as_bytes();
        Words(match self {
            Self::Space => Rest::Runs(Runs::new(rest, space_block)),
            Self::Rouge => Rest::Runs(Runs::new(rest, rouge_block)),
            Self::Unicode => Rest::Unicode(Segments::new(text)),
            Self::Script | Self::Folded if has_unspaced(text) => Rest::Script(Mixed::new(text)),
            Self::Whitespace | Self::Script | Self::Folded => {
                Rest::Runs(Runs::new(rest, whitespace_block))
            }
        })
    }

    /// Tells where those words stand.
    #[expect(
        clippy::redundant_closure,
        reason = "what a function is called through by its name is not inlined"
    )]
    pub(crate) fn place_words(self, text: &str, places: &mut Places) {
        places.clear();
        let bytes = text.as_bytes();
        match self {
            Self::Script | Self::Folded if has_unspaced(text) => {
                Mixed::new(text).for_each(|word| {
                    let start = word.as_ptr().addr() - text.as_ptr().addr();
                    places.push(start, start + word.len());
                });
            }
            Self::Whitespace | Self::Script | Self::Folded => Runs::new(
                bytes,
                #[inline(always)]
                |text, start| whitespace_block(text, start),
            )
            .place(places),
            Self::Space => Runs::new(
                bytes,
                #[inline(always)]
                |text, start| space_block(text, start),
            )
            .place(places),
            Self::Rouge => Runs::new(
                bytes,
                #[inline(always)]
                |text, start| rouge_block(text, start),
            )
            .place(places),
            Self::Unicode => Segments::new(text).for_each(|word| {
                let start = word.as_ptr().addr() - text.as_ptr().addr();
                places.push(start, start + word.len());
            }),
        }
    }

    /// Where the first `n_words` words of `text` end.
    pub(crate) fn end_of_words(self, text: &str, n_words: usize) -> usize {
        let last = n_words
            .checked_sub(1)
            .and_then(|last| self.words(text).nth(last));
        last.map_or(0, |word| {
            word.as_ptr_range().end.addr() - text.as_ptr().addr()
        })
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

type Separators<'a> = fn(&'a [u8], usize) -> u128;

#[derive(Debug)]
enum Rest<'a> {
    Runs(Runs<'a, Separators<'a>>),
    Rouge(&'a [u8]),
    Unicode(Segments<'a>),
    Script(Mixed<'a>),
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            Rest::Runs(runs) => runs.next(),
            Rest::Rouge(rest) => next_rouge_word(rest),
            Rest::Unicode(segments) => segments.next().map(str::as_bytes),
            Rest::Script(mixed) => mixed.next().map(str::as_bytes),
        }
    }

    fn fold<B, F: FnMut(B, &'a [u8]) -> B>(self, first: B, fold: F) -> B {
        match self.0 {
            Rest::Runs(runs) => runs.fold(first, fold),
            Rest::Rouge(mut rest) => iter::from_fn(|| next_rouge_word(&mut rest)).fold(first, fold),
            Rest::Unicode(segments) => segments.map(str::as_bytes).fold(first, fold),
            Rest::Script(mixed) => mixed.map(str::as_bytes).fold(first, fold),
        }
    }
}

#[inline(always)]
fn space_block(text: &[u8], start: usize) -> u128 {
    with_block(
        text,
        start,
        #[inline(always)]
        |block| within(block, [[b' '; 2]]),
    )
    .into()
}

#[inline(always)]
fn whitespace_block(text: &[u8], start: usize) -> u128 {
    let (ascii, mut others) = with_block(
        text,
        start,
        #[inline(always)]
        |block| {
            let ascii = within(block, [[0x09, 0x0d], [0x1c, b' ']]);
            (ascii, first_bytes_of_other_whitespace(block))
        },
    );
    let mut separators = u128::from(ascii);
    while others != 0 {
        let at = others.trailing_zeros();
        let length = whitespace(text.get(start + at as usize..).unwrap_or_default());
        separators |= ((1 << length) - 1) << at;
        others &= others - 1;
    }
    separators
}

/// Marks bytes that white space beyond ASCII may start with.
#[inline(always)]
fn first_bytes_of_other_whitespace(block: &[u8; 64]) -> Mask {
    if block.iter().fold(0, BitOr::bitor) < 0x80 {
        return 0;
    }
    within(block, [[0xc2; 2], [0xe1, 0xe3]])
}

/// Marks bytes that are no ASCII letter or digit.
#[inline(always)]
fn rouge_block(text: &[u8], start: usize) -> u128 {
    let alphanumeric = [[b'0', b'9'], [b'A', b'Z'], [b'a', b'z']];
    (!with_block(
        text,
        start,
        #[inline(always)]
        |block| within(block, alphanumeric),
    ))
    .into()
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

fn lower_case(text: &str) -> Cow<'_, str> {
    if has_other_letters(text) {
        let plain = text.replace('\u{212a}', "k").replace('\u{130}', "i ");
        return Cow::Owned(plain.to_ascii_lowercase());
    }
    Cow::Owned(text.to_ascii_lowercase())
}

/// The text folded, its words where they were.
fn fold_words(text: &str) -> Cow<'_, str> {
    let folded = fold(text);
    if folded == text || !has_unspaced(text) {
        return folded;
    }
    // Words that nothing but their script parts are parted before a mark moves between them.
    let mut words = String::with_capacity(text.len());
    for word in Mixed::new(text) {
        words.push_str(&fold(word));
        words.push(' ');
    }
    Cow::Owned(words)
}

/// Whether the text has one of the two characters that are no ASCII letters but have one in
/// lower case: the Kelvin sign becomes k, and the dotted capital I becomes i and a dot, which is
/// no letter and ends the word.
fn has_other_letters(text: &str) -> bool {
    // First their last bytes, piece by piece, because that takes vector instructions.
    let marks = |byte: &u8| u8::from(*byte == 0xb0) | u8::from(*byte == 0xaa);
    let mut pieces = text.as_bytes().chunks(64);
    pieces.any(|piece| piece.iter().map(marks).fold(0, u8::bitor) != 0)
        && (text.contains('\u{130}') || text.contains('\u{212a}'))
}

fn next_rouge_word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    while !rest.is_empty() {
        let word;
        (word, *rest) = cut_as_rouge(rest);
        if !word.is_empty() {
            return Some(word);
        }
    }
    None
}

/// What stands before and after the first byte that ends a word.
fn cut_as_rouge(text: &[u8]) -> (&[u8], &[u8]) {
    let mut end = 0;
    loop {
        match text.get(end..).unwrap_or_default() {
            [byte, ..] if byte.is_ascii_alphanumeric() => end += 1,
            [0xe2, 0x84, 0xaa, ..] => end += 3, // U+212A
            [0xc4, 0xb0, ..] => return text.split_at(end + 2), // U+0130
            [_, rest @ ..] => return (text.get(..end).unwrap_or_default(), rest),
            [] => return (text, &[]),
        }
    }
}
