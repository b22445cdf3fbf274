//! The kernels against slow twins written from the definitions, and the laws they obey.

use std::collections::HashMap;

use mia_kernels::{PairReader, WordRule};
use proptest::prelude::*;

/// Texts of few distinct words, so that n-grams repeat.
fn text() -> impl Strategy<Value = String> {
    let word = prop::sample::select(&["a", "b", "the", "caf\u{e9}", "\u{4f60}"]);
    prop::collection::vec(word, 0..40).prop_map(|words| words.join(" "))
}

/// Texts of letters and white space in any order.
fn spaced_text() -> impl Strategy<Value = String> {
    let character = prop::sample::select(&[
        'a', '\u{e9}', ' ', '\n', '\t', '\u{85}', '\u{a0}', '\u{2003}', '\u{3000}',
    ]);
    prop::collection::vec(character, 0..60).prop_map(String::from_iter)
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

proptest! {
    #[test]
    fn overlaps_equal_the_slow_twin(candidate in text(), reference in text(), rule in rule()) {
        let features = PairReader::new(rule).read(&candidate, &reference).unwrap();
        prop_assert_eq!(features.candidate.overlaps, overlaps(&candidate, &reference));
    }

    #[test]
    fn cut_equals_the_slow_twin(candidate in text(), reference in text()) {
        let n_words = reference.split_whitespace().count();
        let cut: Vec<_> = candidate.split_whitespace().take(n_words).collect();
        let mut reader = PairReader::new(WordRule::Whitespace);
        let features = reader.read(&candidate, &reference).unwrap();
        let alone = reader.read(&cut.join(" "), &reference).unwrap();
        prop_assert_eq!(features.matched, alone.candidate);
    }

    /// So recall(a, b) = precision(b, a).
    #[test]
    fn overlap_is_symmetric(a in text(), b in text()) {
        let mut reader = PairReader::new(WordRule::Whitespace);
        let ab = reader.read(&a, &b).unwrap();
        let ba = reader.read(&b, &a).unwrap();
        prop_assert_eq!(ab.candidate.overlaps, ba.candidate.overlaps);
        prop_assert_eq!(ab.candidate.words, ba.words_reference);
    }

    #[test]
    fn overlap_is_bounded_by_both_sides(a in text(), b in text()) {
        let features = PairReader::new(WordRule::Whitespace).read(&a, &b).unwrap();
        for (overlap, n) in features.candidate.overlaps.into_iter().zip(1..) {
            let shorter = features.candidate.words.min(features.words_reference);
            prop_assert!(overlap <= (shorter + 1).saturating_sub(n));
        }
    }

    #[test]
    fn reader_remembers_nothing(pairs in prop::collection::vec((text(), text()), 1..8)) {
        let mut reader = PairReader::new(WordRule::Whitespace);
        for (candidate, reference) in &pairs {
            let fresh = PairReader::new(WordRule::Whitespace).read(candidate, reference);
            prop_assert_eq!(reader.read(candidate, reference), fresh);
            prop_assert_eq!(reader.read(candidate, reference), fresh);
        }
    }

    #[test]
    fn words_are_those_of_the_standard_library(text in spaced_text()) {
        let words: Vec<_> = WordRule::Whitespace.words(&text).collect();
        let standard: Vec<_> = text.split_whitespace().map(str::as_bytes).collect();
        prop_assert_eq!(words, standard);
    }
}
