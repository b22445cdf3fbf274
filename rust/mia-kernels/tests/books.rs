//! What generations give back of a book, counted by hand.

use mia_kernels::{BookCoverage, CoverageRules, Passage, RecallReader, WordRule};

/// Words with numbers, the last not among them.
fn book(start: usize, end: usize) -> String {
    let words: Vec<_> = (start..end).map(|at| format!("w{at}")).collect();
    words.join(" ")
}

/// 60 words, 2 that are missing, 60 more: neither part is kept without the second pass.
#[test]
fn passages_are_joined_in_two_passes() {
    let mut reader = RecallReader::new(WordRule::Whitespace);
    let generation = format!("{} {}", book(0, 60), book(62, 122));
    let recall = reader.read(&generation, &book(0, 200)).unwrap();
    let passage = Passage {
        start: 0,
        end: 10 * 3 + 90 * 4 + 22 * 5 - 1,
        words: 120,
    };
    assert_eq!((recall.words_book, recall.words_generation), (200, 120));
    assert_eq!(recall.passages, [passage]);
    let recall = reader.read(&book(0, 99), &book(0, 200)).unwrap();
    assert_eq!(recall.passages, []);
}

#[test]
fn what_was_told_covers_nothing() {
    let rules = CoverageRules {
        words: WordRule::Whitespace,
        min_words: 3,
        trim_words: 2,
    };
    let covered = BookCoverage::new("à b c d e f g h i", rules).unwrap();
    covered.add("x à b c d e f g y", Some("z c d q")).unwrap();
    let passage = |start, end, words| Passage { start, end, words };
    let found = covered.covered();
    assert_eq!(found.blocks, [passage(8, 13, 3)]);
    assert_eq!((found.words, found.longest_span), (9, 7));
    covered.add("b c d e", None).unwrap();
    assert_eq!(covered.covered().blocks, [passage(2, 13, 6)]);
    assert_eq!(found.long_spans, []);
}
