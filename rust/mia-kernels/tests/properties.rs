//! The kernels against slow twins written from the definitions, and the laws they obey.

use std::collections::{HashMap, HashSet};

mod stock;

use mia_kernels::{Group, PairReader, Settings, WordRule};
use proptest::prelude::*;
use stock::StockZlib;
use strum::VariantArray;
use unicode_segmentation::UnicodeSegmentation;

/// Texts of few distinct words, so that n-grams repeat.
fn text() -> impl Strategy<Value = String> {
    let word = prop::sample::select(&["a", "b", "the", "caf\u{e9}", "\u{4f60}"]);
    prop::collection::vec(word, 0..40).prop_map(|words| words.join(" "))
}

/// Words that differ in their length and in what is almost nothing.
fn words_of_few_bytes() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("a{0,18}[a\0\u{1}]{1,2}", 0..40)
}

/// Texts of letters and white space in any order.
fn spaced_text() -> impl Strategy<Value = String> {
    let character = prop::sample::select(&[
        'a', '\u{e9}', '\u{301}', '\u{93f}', ' ', '.', '1', '\n', '\t', '\u{85}', '\u{a0}',
        '\u{2003}', '\u{3000}',
    ]);
    prop::collection::vec(character, 0..60).prop_map(String::from_iter)
}

/// Texts of few characters of several scripts, so that much of one is in the other.
fn mixed_text() -> impl Strategy<Value = String> {
    let character = prop::sample::select(&[
        "\u{6211}", "\u{e44}", "\u{30bf}", "e\u{301}", "a", "B", "1", " ", " ", ".", "\n",
    ]);
    prop::collection::vec(character, 0..60).prop_map(|characters| characters.concat())
}

fn rule() -> impl Strategy<Value = WordRule> {
    prop_oneof![Just(WordRule::Whitespace), Just(WordRule::Space)]
}

/// Every n-gram with how often it occurs.
fn ngrams(text: &str, n: usize) -> HashMap<Vec<&str>, u32> {
    let words: Vec<_> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let mut counts = HashMap::new();
    for ngram in words.windows(n) {
        *counts.entry(ngram.to_vec()).or_default() += 1;
    }
    counts
}

fn overlap(candidate: &str, reference: &str, n: usize) -> u32 {
    let reference = ngrams(reference, n);
    let candidate = ngrams(candidate, n);
    candidate
        .iter()
        .map(|(ngram, count)| *count.min(reference.get(ngram).unwrap_or(&0)))
        .sum()
}

fn overlaps(candidate: &str, reference: &str) -> [u32; 5] {
    [1, 2, 3, 4, 5].map(|n| overlap(candidate, reference, n))
}

#[expect(clippy::indexing_slicing, reason = "a table of all prefixes")]
fn lcs(candidate: &str, reference: &str) -> u32 {
    let mut row = vec![0; reference.split(' ').count() + 1];
    for word in candidate.split(' ').filter(|word| !word.is_empty()) {
        let mut diagonal = 0;
        for (at, other) in reference
            .split(' ')
            .filter(|word| !word.is_empty())
            .enumerate()
        {
            let longest = if word == other {
                diagonal + 1
            } else {
                row[at].max(row[at + 1])
            };
            diagonal = std::mem::replace(&mut row[at + 1], longest);
        }
    }
    row.into_iter().max().unwrap_or(0)
}

fn reader(words: WordRule, groups: &[Group]) -> PairReader {
    PairReader::new(&Settings {
        words,
        groups: groups.to_vec(),
        near_verbatim_min_words: 3,
    })
}

fn read(groups: &[Group], candidate: &str, reference: &str) -> Vec<Option<u32>> {
    numbers(
        &mut reader(WordRule::Whitespace, groups),
        candidate,
        reference,
    )
}

fn numbers(reader: &mut PairReader, candidate: &str, reference: &str) -> Vec<Option<u32>> {
    let mut numbers = Vec::new();
    let read = reader.read(candidate, reference, &mut numbers);
    assert_eq!(read, Ok(()));
    numbers
}

fn joined(rule: WordRule, text: &str) -> String {
    let spelled = rule.spell(text);
    let words: Vec<_> = rule.words(&spelled).collect();
    String::from_utf8(words.join(&b' ')).unwrap_or_default()
}

proptest! {
    #[test]
    fn numbers_equal_the_slow_twins(candidate in text(), reference in text(), rule in rule()) {
        let groups = [Group::Unigrams, Group::Ngrams, Group::Lcs];
        let found = numbers(&mut reader(rule, &groups), &candidate, &reference);
        let overlaps = overlaps(&candidate, &reference).map(Some);
        prop_assert_eq!(&found[2..7], overlaps);
        prop_assert_eq!(found[7], Some(lcs(&candidate, &reference)));
    }

    #[test]
    fn cut_equals_the_cut_text(candidate in text(), reference in text()) {
        let n_words = reference.split_whitespace().count();
        let cut: Vec<_> = candidate.split_whitespace().take(n_words).collect();
        let alone = read(&[Group::Unigrams, Group::Ngrams, Group::Zlib, Group::Lcs], &cut.join(" "), &reference);
        let groups = [Group::Unigrams, Group::Ngrams, Group::Zlib, Group::Lcs, Group::Matched];
        let found = read(&groups, &candidate, &reference);
        let matched = &found[alone.len()..];
        prop_assert_eq!(matched[0], alone[0]);
        prop_assert_eq!(&matched[1..], &alone[2..]);
    }

    /// Words of up to 16 bytes are distinguished otherwise than longer ones.
    #[test]
    fn words_are_told_apart(a in words_of_few_bytes(), b in words_of_few_bytes()) {
        let found = read(&[Group::Unigrams, Group::Ngrams, Group::Distinct], &a.join(" "), &b.join(" "));
        let distinct = |words: &[String]| words.iter().collect::<HashSet<_>>().len();
        let shared = a.iter().filter(|word| b.contains(word)).collect::<HashSet<_>>().len();
        prop_assert_eq!(found[2].map(|n| n as usize), Some(distinct(&b)));
        prop_assert_eq!(found.last().copied().flatten().map(|n| n as usize), Some(distinct(&a)));
        prop_assert!(found[3].unwrap() as usize >= shared);
        prop_assert_eq!(found[3] == Some(0), shared == 0);
    }

    /// So recall(a, b) = precision(b, a).
    #[test]
    fn what_is_shared_is_symmetric(a in text(), b in text()) {
        let groups = [Group::Unigrams, Group::Ngrams, Group::Lcs];
        let (ab, ba) = (read(&groups, &a, &b), read(&groups, &b, &a));
        prop_assert_eq!((ab[0], ab[1]), (ba[1], ba[0]));
        prop_assert_eq!(&ab[2..], &ba[2..]);
    }

    #[test]
    fn overlap_is_bounded_by_both_sides(a in text(), b in text()) {
        let found = read(&[Group::Unigrams, Group::Ngrams], &a, &b);
        for (overlap, n) in found[2..].iter().zip(1..) {
            let shorter = found[0].min(found[1]).unwrap();
            prop_assert!(overlap.unwrap() <= (shorter + 1).saturating_sub(n));
        }
    }

    #[test]
    fn reader_remembers_nothing(pairs in prop::collection::vec((text(), text()), 1..8)) {
        let mut reader = reader(WordRule::Whitespace, Group::VARIANTS);
        for (candidate, reference) in &pairs {
            let fresh = read(Group::VARIANTS, candidate, reference);
            prop_assert_eq!(&numbers(&mut reader, candidate, reference), &fresh);
            prop_assert_eq!(&numbers(&mut reader, candidate, reference), &fresh);
        }
    }

    #[test]
    fn words_are_those_of_the_annex(
        text in any::<String>(),
        ascii in "[ -~]*",
        spaced in spaced_text(),
    ) {
        for text in [format!("{text} {ascii}"), format!("{ascii}{text}"), spaced + &ascii] {
            let words: Vec<_> = WordRule::Unicode.words(&text).collect();
            let annex: Vec<_> = text.unicode_words().map(str::as_bytes).collect();
            prop_assert_eq!(words, annex);
        }
    }

    /// Words of every rule can be had again from the words joined by spaces.
    #[test]
    fn rules_differ_in_their_words_alone(
        a in prop_oneof![any::<String>(), mixed_text()],
        b in prop_oneof![any::<String>(), mixed_text()],
    ) {
        let groups = [
            Group::Unigrams, Group::Ngrams,
            Group::Zlib,
            Group::Lcs,
            Group::Coverage,
            Group::Distinct,
            Group::Matched,
        ];
        for rule in [WordRule::Whitespace, WordRule::Rouge, WordRule::Unicode, WordRule::Script] {
            // A mark after a space makes a word of both under UAX #29.
            let with_space = |word: &[u8]| word.contains(&b' ');
            prop_assume!(!rule.words(&a).chain(rule.words(&b)).any(with_space));
            let [left, right] = [&a, &b].map(|text| joined(rule, text));
            let found = numbers(&mut reader(rule, &groups), &a, &b);
            let expected = numbers(&mut reader(WordRule::Space, &groups), &left, &right);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn sizes_are_those_of_the_words_joined(text in spaced_text()) {
        for rule in [
            WordRule::Whitespace,
            WordRule::Space,
            WordRule::Rouge,
            WordRule::Unicode,
            WordRule::Script,
        ] {
            let found = numbers(&mut reader(rule, &[Group::Zlib]), &text, &text);
            let size = StockZlib::default().size(joined(rule, &text).as_bytes());
            prop_assert_eq!(found.last(), Some(&size));
        }
    }

    /// Where scripts have spaces, the rule for those without changes nothing.
    #[test]
    fn scripts_with_spaces_are_cut_at_them(text in "[ -~\u{80}-\u{dff}\u{2000}-\u{2fff}\u{ac00}-\u{d7ff}]*") {
        let words: Vec<_> = WordRule::Script.words(&text).collect();
        prop_assert_eq!(words, WordRule::Whitespace.words(&text).collect::<Vec<_>>());
    }

    #[test]
    fn words_are_those_of_the_standard_library(text in spaced_text()) {
        let words: Vec<_> = WordRule::Whitespace.words(&text).collect();
        let standard: Vec<_> = text.split_whitespace().map(str::as_bytes).collect();
        prop_assert_eq!(words, standard);
    }
}
