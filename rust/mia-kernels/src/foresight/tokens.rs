//! Tokens of a text: numbers, words and single marks, with the values that can be counted on.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::series::{CYCLES, NUMBERS, ORDERS};

/// What a value is a value of: a kind of number, or a series of words.
pub(super) type Kind = u16;

pub(super) const NUMBER: Kind = 0;
const HEXADECIMAL: Kind = 1;
const BINARY: Kind = 2;
const CLOCK: Kind = 3;
const LETTER: Kind = 4;
const ROMAN: Kind = 5;
const FIRST_SERIES: Kind = 6;

const MINUTES_OF_A_DAY: i128 = 24 * 60;
const MOST_DIGITS: usize = 18;
const HUNDRED: i128 = 100;
const THOUSAND: i128 = 1000;

/// Where the digits of a script begin, each with nine others behind it.
const ZEROS: [char; 20] = [
    '0', '\u{660}', '\u{6f0}', '\u{7c0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}',
    '\u{be6}', '\u{c66}', '\u{ce6}', '\u{d66}', '\u{e50}', '\u{ed0}', '\u{f20}', '\u{1040}',
    '\u{17e0}', '\u{1810}', '\u{ff10}',
];

/// The decimal digit that a character is.
fn digit(character: char) -> Option<u32> {
    let digit_after = |zero: char| u32::from(character).checked_sub(u32::from(zero));
    let mut digits = ZEROS.into_iter().filter_map(digit_after);
    digits.find(|&digit| digit < 10)
}

fn is_letter(character: char) -> bool {
    character.is_alphanumeric() && digit(character).is_none()
}

/// Calls `take` with each token of a text in lower case.
pub(super) fn for_each_token(text: &str, mut take: impl FnMut(&[char])) {
    let characters: Vec<char> = text.to_lowercase().chars().collect();
    let mut rest = &characters[..];
    while let Some(&first) = rest.first() {
        let length = number_length(rest).or_else(|| word_length(rest));
        let (token, after) = rest.split_at(length.unwrap_or(1));
        if first == '\n' || !first.is_whitespace() {
            take(token);
        }
        rest = after;
    }
}

/// Characters of the number that a text begins with, which may be a hexadecimal one.
fn number_length(text: &[char]) -> Option<usize> {
    let after_prefix = text.strip_prefix(&['0', 'x']).and_then(digits_length);
    after_prefix
        .map(|length| length + 2)
        .or_else(|| digits_length(text))
}

fn digits_length(text: &[char]) -> Option<usize> {
    let is_hex_letter = |character: &char| matches!(character, 'a'..='f');
    let n_letters = text.iter().take_while(|&each| is_hex_letter(each)).count();
    text.get(n_letters).copied().and_then(digit)?;
    let is_hex = |each: &&char| is_hex_letter(each) || digit(**each).is_some();
    let mut length = text.iter().take_while(is_hex).count();
    while let Some([separator, digits @ ..]) = text.get(length..) {
        let n_digits = digits.iter().take_while(|&&each| digit(each).is_some());
        match n_digits.count() {
            n_digits if n_digits > 0 && is_separator(*separator) => length += 1 + n_digits,
            _ => break,
        }
    }
    Some(length)
}

fn is_separator(character: char) -> bool {
    matches!(character, '.' | ',' | ':')
}

/// Characters of the word that a text begins with; hyphens and apostrophes within it belong to it.
fn word_length(text: &[char]) -> Option<usize> {
    let count_letters = |text: &[char]| text.iter().take_while(|&&each| is_letter(each)).count();
    let mut length = count_letters(text);
    if length == 0 {
        return None;
    }
    while let Some([joint, after @ ..]) = text.get(length..) {
        match count_letters(after) {
            n_letters if n_letters > 0 && matches!(joint, '-' | '\'' | '\u{2019}') => {
                length += 1 + n_letters;
            }
            _ => break,
        }
    }
    Some(length)
}

/// The values of a token, each of another kind.
pub(super) fn values_of(token: &[char]) -> Vec<(Kind, i128)> {
    if is_number(token) {
        return values_of_number(token);
    }
    match token.first() {
        Some(first) if first.is_alphabetic() => values_of_word(token),
        _ => Vec::new(),
    }
}

pub(super) fn is_number(token: &[char]) -> bool {
    token.iter().any(|&each| digit(each).is_some())
}

fn values_of_number(token: &[char]) -> Vec<(Kind, i128)> {
    let digits = token.strip_prefix(&['0', 'x']).unwrap_or(token);
    let digits: Vec<char> = digits
        .iter()
        .copied()
        .filter(|&each| !is_separator(each))
        .collect();
    if digits.is_empty() || digits.len() > MOST_DIGITS {
        return Vec::new();
    }
    let to_base = |base: u32| {
        digits.iter().try_fold(0_i128, |number, &each| {
            let value = digit(each).or_else(|| each.to_digit(base));
            value
                .filter(|&value| value < base)
                .map(|value| number * i128::from(base) + i128::from(value))
        })
    };
    let mut values: Vec<_> = to_base(16)
        .map(|value| (HEXADECIMAL, value))
        .into_iter()
        .collect();
    values.extend(to_base(10).map(|value| (NUMBER, value)));
    if digits.len() > 2 {
        values.extend(to_base(2).map(|value| (BINARY, value)));
    }
    values.extend(minutes(token).map(|value| (CLOCK, value)));
    values
}

/// The minute of a time such as 9:05 or 21.15.
fn minutes(token: &[char]) -> Option<i128> {
    let at = token.iter().position(|&each| matches!(each, '.' | ':'))?;
    let (hours, minutes) = (token.get(..at)?, token.get(at + 1..)?);
    let number = |digits: &[char]| {
        digits
            .iter()
            .try_fold(0, |number, &each| Some(10 * number + digit(each)?))
    };
    let (hour, minute) = (number(hours)?, number(minutes)?);
    let is_time = matches!(hours.len(), 1 | 2) && minutes.len() == 2 && minute < 60;
    is_time.then(|| i128::from(60 * hour + minute))
}

/// The words of all series, with their values in each.
#[derive(Default)]
struct Series(HashMap<&'static str, Vec<(Kind, i128)>>);

impl Series {
    /// Adds a word; one that stands in a series twice has its last value there.
    fn add(&mut self, word: &'static str, kind: Kind, value: i128) {
        let values = self.0.entry(word).or_default();
        match values.last_mut() {
            Some((last_kind, last_value)) if *last_kind == kind => *last_value = value,
            _ => values.push((kind, value)),
        }
    }
}

static SERIES: LazyLock<Series> = LazyLock::new(|| {
    let mut series = Series::default();
    for (kind, [small, large]) in (FIRST_SERIES..).zip(NUMBERS) {
        let tens = (20..=90).step_by(10).chain([HUNDRED, THOUSAND]);
        for (word, value) in small.split(' ').zip(0..).chain(large.split(' ').zip(tens)) {
            series.add(word, kind, value);
        }
    }
    let first = (FIRST_SERIES..).nth(NUMBERS.len()).unwrap_or(FIRST_SERIES);
    for (kind, words) in (first..).zip(CYCLES.into_iter().chain(ORDERS)) {
        for (word, value) in words.split(' ').zip(1..) {
            series.add(word, kind, value);
        }
    }
    series
});

fn values_of_word(token: &[char]) -> Vec<(Kind, i128)> {
    let word: String = token.iter().collect();
    let mut values = SERIES.0.get(&*word).cloned().unwrap_or_default();
    values.extend(sums(&word));
    if let [letter] = token {
        values.push((LETTER, i128::from(u32::from(*letter))));
    }
    values.extend(roman_value(&word).map(|value| (ROMAN, value)));
    values
}

/// The number that a word with hyphens names in a language, such as twenty-one.
fn sums(word: &str) -> Vec<(Kind, i128)> {
    if !word.contains('-') || SERIES.0.contains_key(word) {
        return Vec::new();
    }
    let value = |kind: Kind, part: &str| {
        let places = SERIES.0.get(part)?;
        places
            .iter()
            .find(|&&(of, _)| of == kind)
            .map(|&(_, value)| value)
    };
    let languages = (FIRST_SERIES..).take(NUMBERS.len());
    let sum = |kind| {
        word.split('-')
            .map(|part| value(kind, part))
            .sum::<Option<i128>>()
    };
    languages
        .filter_map(|kind| Some((kind, sum(kind)?)))
        .collect()
}

const ROMAN_PARTS: [(&str, i128); 13] = [
    ("m", 1000),
    ("cm", 900),
    ("d", 500),
    ("cd", 400),
    ("c", 100),
    ("xc", 90),
    ("l", 50),
    ("xl", 40),
    ("x", 10),
    ("ix", 9),
    ("v", 5),
    ("iv", 4),
    ("i", 1),
];

/// The value of a Roman number below 4,000 that is written as usual.
fn roman_value(word: &str) -> Option<i128> {
    let (mut rest, mut value) = (word, 0);
    for (part, worth) in ROMAN_PARTS {
        while let Some(after) = rest.strip_prefix(part) {
            rest = after;
            value += worth;
        }
    }
    (value < 4000 && roman_numeral(value) == word).then_some(value)
}

fn roman_numeral(value: i128) -> String {
    let (mut left, mut numeral) = (value, String::new());
    for (part, worth) in ROMAN_PARTS {
        while left >= worth {
            numeral.push_str(part);
            left -= worth;
        }
    }
    numeral
}

/// After how many values a kind begins anew.
pub(super) fn modulus(kind: Kind) -> Option<i128> {
    if kind == CLOCK {
        return Some(MINUTES_OF_A_DAY);
    }
    let place = usize::from(kind.checked_sub(FIRST_SERIES)?);
    let cycle = CYCLES.get(place.checked_sub(NUMBERS.len())?)?;
    i128::try_from(cycle.split(' ').count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<String> {
        let mut tokens = Vec::new();
        for_each_token(text, |token| tokens.push(token.iter().collect()));
        tokens
    }

    fn values(token: &str) -> Vec<(Kind, i128)> {
        values_of(&token.chars().collect::<Vec<_>>())
    }

    #[test]
    fn numbers_words_and_marks_are_tokens() {
        assert_eq!(
            tokens("On 3,5.\nIt's 0x1F, twenty-one: 12:30 a1_b"),
            [
                "on",
                "3,5",
                ".",
                "\n",
                "it's",
                "0x1f",
                ",",
                "twenty-one",
                ":",
                "12:30",
                "a1",
                "_",
                "b"
            ]
        );
    }

    #[test]
    fn tokens_have_values_of_several_kinds() {
        assert!(values("xiv").contains(&(ROMAN, 14)));
        assert!(values("mcmxcix").contains(&(ROMAN, 1999)));
        assert!(!values("iiii").iter().any(|&(kind, _)| kind == ROMAN));
        assert!(values("twenty-one").contains(&(FIRST_SERIES, 21)));
        assert!(values("07:45").contains(&(CLOCK, 465)));
        assert_eq!(values("0x1f"), [(HEXADECIMAL, 31)]);
        assert_eq!(
            values("101"),
            [(HEXADECIMAL, 257), (NUMBER, 101), (BINARY, 5)]
        );
        assert!(values("٤٢").contains(&(NUMBER, 42)));
        assert_eq!(values("1234567890123456789"), []);
        assert_eq!(values("harbour"), []);
    }

    #[test]
    fn days_begin_anew_and_planets_do_not() {
        let kinds = |word| {
            values(word)
                .iter()
                .map(|&(kind, _)| kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            kinds("monday")
                .into_iter()
                .filter_map(modulus)
                .collect::<Vec<_>>(),
            [7]
        );
        assert_eq!(kinds("saturn").into_iter().filter_map(modulus).count(), 0);
        assert_eq!(modulus(CLOCK), Some(1440));
    }
}
