//! Shared runs of words, counted by hand and against a slow twin.

use mia_kernels::{KernelError, MAX_BYTES, RunIndex, RunReader, SharedRuns, WordRule};
use proptest::prelude::*;

fn compare(text: &str, others: &[&str], run_words: usize) -> Result<SharedRuns, KernelError> {
    let mut reader = RunReader::new(WordRule::Whitespace, run_words);
    let mut runs = Vec::new();
    for other in others {
        runs.push(reader.runs(other)?.collect());
    }
    RunIndex::new(&runs).compare(&mut reader, text)
}

#[test]
fn every_place_of_a_shared_run_counts_and_the_first_text_is_named() {
    let expected = |shared, other| {
        Ok(SharedRuns {
            runs: 5,
            shared,
            other: Some(other),
        })
    };
    let text = "x b c d b c";
    assert_eq!(compare(text, &["", "d b", "c d b c"], 2), expected(4, 2));
    assert_eq!(compare(text, &["", "c b c d", "b c"], 2), expected(3, 1));
}

#[test]
fn a_text_of_fewer_words_has_no_runs() {
    let none = SharedRuns {
        runs: 0,
        shared: 0,
        other: None,
    };
    assert_eq!(compare("a b", &["a b", "a b c"], 3), Ok(none));
    assert_eq!(compare("", &[], 1), Ok(none));
}

#[test]
fn rouge_words_are_compared_in_lower_case() {
    let mut reader = RunReader::new(WordRule::Rouge, 2);
    let left: Vec<_> = reader.runs("The CAT, sat").unwrap().collect();
    let right: Vec<_> = reader.runs("the cat sat!").unwrap().collect();
    assert_eq!(left, right);
    assert_eq!(left.len(), 2);
}

#[test]
fn a_text_beyond_the_limit_is_refused() {
    let text = String::from_utf8(vec![0; MAX_BYTES + 1]).unwrap(); // zero pages cost no memory
    let mut reader = RunReader::new(WordRule::Space, 2);
    let refusal = Err(KernelError::TooLong(MAX_BYTES + 1));
    assert_eq!(RunIndex::default().compare(&mut reader, &text), refusal);
}

proptest! {
    #[test]
    fn shared_runs_equal_the_slow_twin(
        text in "[ab ]{0,30}",
        others in prop::collection::vec("[ab ]{0,12}", 0..4),
        run_words in 1_usize..5,
    ) {
        fn runs(text: &str, run_words: usize) -> Vec<Vec<&str>> {
            let words: Vec<_> = text.split_whitespace().collect();
            words.windows(run_words).map(<[_]>::to_vec).collect()
        }
        let others: Vec<_> = others.iter().map(String::as_str).collect();
        let found = compare(&text, &others, run_words).unwrap();
        let all = runs(&text, run_words);
        let holder = |run: &Vec<&str>| {
            others.iter().position(|other| runs(other, run_words).contains(run))
        };
        prop_assert_eq!(found.runs as usize, all.len());
        prop_assert_eq!(found.shared as usize, all.iter().filter_map(holder).count());
        let first = all.iter().find_map(holder);
        prop_assert_eq!(found.other.map(|other| other as usize), first);
    }
}
