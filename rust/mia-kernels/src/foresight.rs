//! Words that a reader who never saw a text could foresee from what stands before them.
//!
//! A reader takes a text token by token (numbers, words, marks). Rules of going on guess each
//! token: to copy what followed the same context before, or stood so many tokens before; to count
//! on in one of many columns, whose differences are equal, or whose ratio is; to change a word as
//! one before it was changed. A rule has a trust, an exponential average of its hits, of all places
//! and of those after the same token: a token can be foreseen where a rule guesses it whose trust
//! is at least one half. So a rule must have been right in this text before it counts, and a rule
//! that is right by chance fades: this is prediction with expert advice (Herbster and Warmuth 1998,
//! Machine Learning 32, 151), with all experts above the threshold in place of their weighted vote.
//! A word can be foreseen where all its tokens can.

mod reader;
mod rules;
mod series;
mod tokens;

use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::places::Places;
use crate::words::WordRule;
use reader::Reader;
use tokens::for_each_token;

/// Words that a reader has read before the first that is asked about.
const WORDS_BEFORE: usize = 512;
/// Words that one reader is asked about, which bounds its memory.
const WORDS_AT_ONCE: usize = 2048;
/// Words in a row that are looked at together, or all of a shorter text. Where half of them could be
/// foreseen, what stands between these is cut out. With 12 words instead of 24 three times as many
/// windows of Genesis 1 to 3 lose words, and counting, tables and refrains lose no more.
const STRETCH_WORDS: usize = 24;

/// Words of a text that could be foreseen, by their numbers from 0.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    /// Each word that could be foreseen by itself.
    pub words: Vec<u32>,
    /// What stands between such words wherever 12 of 24 words in a row could be foreseen.
    pub cut: Vec<u32>,
}

/// Finds the words of `text` that could be foreseen by who has read the 512 words before them, of
/// `before` and of the text itself.
///
/// # Errors
///
/// [`KernelError::TooLong`] if a text has more than [`MAX_BYTES`](crate::MAX_BYTES).
pub fn foreseen_words(before: &str, text: &str, rule: WordRule) -> Result<Foreseen, KernelError> {
    check_length(before.as_bytes())?;
    check_length(text.as_bytes())?;
    let (words, n_before) = words_of(before, text, rule);
    let mut is_foreseen = Vec::with_capacity(words.len() - n_before);
    for begin in (n_before..words.len()).step_by(WORDS_AT_ONCE) {
        let mut reader = Reader::default();
        let end = words.len().min(begin + WORDS_AT_ONCE);
        let first = begin.saturating_sub(WORDS_BEFORE);
        for (place, word) in words.iter().enumerate().take(end).skip(first) {
            for gap in word.gaps {
                for_each_token(gap, |token| {
                    reader.read(token);
                });
            }
            let mut are_foreseen = true;
            for_each_token(word.word, |token| are_foreseen &= reader.read(token));
            if place >= begin {
                is_foreseen.push(are_foreseen);
            }
        }
    }
    Ok(Foreseen {
        cut: places_of_true(&cut_words(&is_foreseen)),
        words: places_of_true(&is_foreseen),
    })
}

/// A word and what stands between it and the word before.
struct Word<'a> {
    gaps: [&'a str; 2],
    word: &'a str,
}

/// The words of both texts, and how many of them are of the first.
fn words_of<'a>(before: &'a str, text: &'a str, rule: WordRule) -> (Vec<Word<'a>>, usize) {
    let (mut words, mut places) = (Vec::new(), Places::default());
    let (mut n_before, mut gap) = (0, "");
    for part in [before, text] {
        n_before = words.len();
        rule.place_words(part, &mut places);
        let between = |start: u32, end: usize| part.get(start as usize..end).unwrap_or_default();
        let mut end_of_last = 0;
        for &[start, end] in places.as_slice() {
            words.push(Word {
                gaps: [gap, between(end_of_last, start as usize)],
                word: between(start, end as usize),
            });
            (gap, end_of_last) = ("", end);
        }
        gap = between(end_of_last, part.len());
    }
    (words, n_before)
}

/// Marks what stands between those that could be foreseen, wherever half of a stretch could.
fn cut_words(is_foreseen: &[bool]) -> Vec<bool> {
    let mut is_cut = vec![false; is_foreseen.len()];
    let n_words = STRETCH_WORDS.min(is_foreseen.len()).max(1);
    for (start, stretch) in is_foreseen.windows(n_words).enumerate() {
        if stretch.iter().filter(|&&each| each).count() < n_words.div_ceil(2) {
            continue;
        }
        let first = stretch.iter().position(|&each| each);
        let last = stretch.iter().rposition(|&each| each);
        if let (Some(first), Some(last)) = (first, last)
            && let Some(between) = is_cut.get_mut(start + first..=start + last)
        {
            between.fill(true);
        }
    }
    is_cut
}

fn places_of_true(marks: &[bool]) -> Vec<u32> {
    let marked = marks.iter().enumerate().filter(|&(_, &mark)| mark);
    marked.map(|(place, _)| number(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreseen(before: &str, text: &str) -> Foreseen {
        foreseen_words(before, text, WordRule::Whitespace).unwrap()
    }

    #[test]
    fn a_rule_counts_when_it_was_right_three_times() {
        let numbers = "10 11 12 13 14 15 16 17";
        assert_eq!(foreseen("", numbers).words, [5, 6, 7]);
        assert_eq!(
            foreseen(numbers, "18 19 40"),
            Foreseen {
                words: vec![0, 1],
                cut: vec![0, 1]
            }
        );
    }

    #[test]
    fn stretches_begin_and_end_with_words_that_could_be_foreseen() {
        let mut is_foreseen = [false; 40];
        for place in (10..32).step_by(2) {
            is_foreseen[place] = true;
        }
        assert_eq!(places_of_true(&cut_words(&is_foreseen)), []);
        is_foreseen[32] = true;
        let expected: Vec<_> = (10..=32).collect();
        assert_eq!(places_of_true(&cut_words(&is_foreseen)), expected);
    }

    #[test]
    fn of_a_short_text_half_must_be_foreseen() {
        assert_eq!(cut_words(&[true, false, false]), [false; 3]);
        assert_eq!(
            cut_words(&[true, false, true, false]),
            [true, true, true, false]
        );
    }

    #[test]
    fn long_texts_are_read_in_parts() {
        let numbers: Vec<_> = (0..5000).map(|each| each.to_string()).collect();
        let found = foreseen("", &numbers.join(" "));
        assert_eq!(found.words, (5..5000).collect::<Vec<_>>());
        assert_eq!(found.cut, (5..5000).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_has_no_words() {
        assert_eq!(foreseen("", ""), Foreseen::default());
        assert_eq!(foreseen("\n ", " "), Foreseen::default());
    }
}
