//! Cases counted by hand; zlib sizes by Python 3.11 on zlib 1.2.13.

use std::borrow::Cow;
use std::str::FromStr;

use strum::VariantArray;

use mia_kernels::{Group, KernelError, MAX_BYTES, PairReader, Settings, WordRule, ZlibSizer};

fn reader(groups: &[Group]) -> PairReader {
    PairReader::new(&Settings {
        words: WordRule::Whitespace,
        groups: groups.to_vec(),
        near_verbatim_min_words: 3,
    })
}

fn numbers(groups: &[Group], candidate: &str, reference: &str) -> Vec<Option<u32>> {
    let mut numbers = Vec::new();
    let read = reader(groups).read(candidate, reference, &mut numbers);
    assert_eq!(read, Ok(()));
    numbers
}

fn some<const N: usize>(numbers: [u32; N]) -> Vec<Option<u32>> {
    numbers.map(Some).to_vec()
}

fn words(rule: WordRule, text: &str) -> Vec<Cow<'_, str>> {
    rule.words(text).map(String::from_utf8_lossy).collect()
}

#[test]
fn whitespace_is_what_python_calls_space() {
    let spaces = "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\
                  \u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\
                  \u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";
    for character in (0..=0x0010_ffff).filter_map(char::from_u32) {
        let text = format!("a{character}b");
        let n_words = if spaces.contains(character) { 2 } else { 1 };
        assert_eq!(
            WordRule::Whitespace.count(&text),
            Ok(n_words),
            "{character:?}"
        );
    }
}

#[test]
fn whitespace_leaves_no_empty_word() {
    let text = "\n\u{3000} to  be,\tor\u{a0}not \r\n";
    assert_eq!(
        words(WordRule::Whitespace, text),
        ["to", "be,", "or", "not"]
    );
    assert_eq!(words(WordRule::Whitespace, " \n"), [""; 0]);
    assert_eq!(words(WordRule::Whitespace, ""), [""; 0]);
}

/// Texts are read 64 bytes at a time.
#[test]
fn words_reach_over_blocks() {
    for n in 1..200 {
        let (left, right) = ("a".repeat(n), "b".repeat(200 - n));
        for (space, rule) in [
            ("\u{3000}", WordRule::Whitespace),
            ("\u{85}\n", WordRule::Whitespace),
            (" ", WordRule::Space),
            ("\u{e9}-", WordRule::Rouge),
            ("\u{e9}-\u{212a}-", WordRule::Rouge),
        ] {
            let text = format!("{left}{space}{right}");
            let kelvin = space.contains('\u{212a}').then_some("\u{212a}");
            let expected: Vec<_> = [Some(left.as_str()), kelvin, Some(&right)]
                .into_iter()
                .flatten()
                .collect();
            assert_eq!(words(rule, &text), expected, "{n} {space:?}");
        }
    }
}

#[test]
fn space_keeps_newlines_and_tabs_inside_words() {
    let text = "  to\nbe  or\tnot\u{a0}to ";
    assert_eq!(words(WordRule::Space, text), ["to\nbe", "or\tnot\u{a0}to"]);
}

#[test]
fn scripts_without_spaces_are_cut_within() {
    for (text, expected) in [
        (
            "Moby-Dick, “我们”的。",
            &["Moby-Dick,", "我", "们", "的"][..],
        ),
        (
            "a-b我 2024年 — ไท",
            &["a-b", "我", "2024", "年", "—", "ไ", "ท"],
        ),
        ("カタカナ、ひら\u{1c}x", &["カタカナ", "ひ", "ら", "x"]),
        ("한국어 문장", &["한국어", "문장"]),
        ("，。", &["，。"]),
        ("我，", &["我"]),
    ] {
        assert_eq!(words(WordRule::Script, text), expected, "{text}");
    }
}

/// Words: a 3 b 2 c 1 against a 2 b 2. Pairs: ab 2 ba 2 ac 1 against ab 2 ba 1.
/// Triples: aba 2 bab 1 bac 1 against aba 1 bab 1. Then abab 1 against abab 1.
#[test]
fn overlaps_are_clipped_on_both_sides() {
    let found = numbers(&[Group::Unigrams, Group::Ngrams], "a b a b a c", "a b a b");
    assert_eq!(found, some([6, 4, 4, 3, 2, 1, 0]));
}

#[test]
fn words_and_ngrams_can_be_had_alone() {
    let words = numbers(&[Group::Unigrams], "a b a b a c", "a b a b");
    assert_eq!(words, some([6, 4, 4]));
    let ngrams = numbers(&[Group::Ngrams, Group::Lcs], "a b a b a c", "a b a b");
    assert_eq!(ngrams, some([6, 4, 3, 2, 1, 0, 4]));
}

#[test]
fn candidate_is_cut_to_the_words_of_the_reference() {
    let groups = [
        Group::Matched,
        Group::Zlib,
        Group::Unigrams,
        Group::Ngrams,
        Group::Lcs,
    ];
    let found = numbers(&groups, "x  the\ncat sat on the mat", "the cat sat");
    #[rustfmt::skip]
    assert_eq!(found, some([7, 3, 3, 2, 1, 0, 0, 27, 3, 3, 2, 1, 0, 0, 0, 17, 2]));
}

#[test]
fn regurgitation_matches_every_ngram() {
    let text = "it was the best of times it was the worst of times";
    let groups = [Group::Unigrams, Group::Ngrams, Group::Lcs];
    assert_eq!(
        numbers(&groups, text, text),
        some([12, 12, 12, 11, 10, 9, 8, 12])
    );
}

#[test]
fn empty_sides_share_nothing() {
    let groups = [Group::Unigrams, Group::Ngrams, Group::Lcs, Group::Zlib];
    for (candidate, reference, n_words) in [("", "", 0), ("", "a b", 2), (" \n ", "a", 1)] {
        let found = numbers(&groups, candidate, reference);
        assert_eq!(found, some([0, n_words, 0, 0, 0, 0, 0, 8, 0]));
    }
    assert_eq!(
        numbers(&groups, "a b", " "),
        some([2, 0, 0, 0, 0, 0, 0, 11, 0])
    );
}

#[test]
fn case_and_punctuation_tell_words_apart() {
    let found = numbers(
        &[Group::Unigrams, Group::Ngrams],
        "The cat. sat",
        "the cat sat",
    );
    assert_eq!(found, some([3, 3, 1, 0, 0, 0, 0]));
}

#[test]
fn groups_are_found_by_name() {
    for group in Group::VARIANTS {
        assert_eq!(Group::from_str(&group.to_string()), Ok(*group));
    }
    assert!(Group::from_str("rouge").is_err());
}

#[test]
fn zlib_sizes_are_those_of_python() {
    let mut sizer = ZlibSizer::default();
    let run = "a".repeat(1000);
    let cases = [
        ("", 8),
        ("a", 9),
        ("the cat sat on the mat", 27),
        ("caf\u{e9} \u{4f60}\u{597d}", 21),
        (&run, 17),
    ];
    for (text, size) in cases {
        assert_eq!(sizer.size(text.as_bytes()), Ok(size), "{text}");
    }
}

/// Longer than the output buffer, so that zlib is called many times.
#[test]
fn zlib_sizes_of_long_texts_are_those_of_python() {
    let mut sizer = ZlibSizer::default();
    let noise: Vec<u8> = std::iter::successors(Some(1_u64), |x| {
        Some((x * 1_103_515_245 + 12_345) % (1 << 31))
    })
    .skip(1)
    .take(100_000)
    .map(|x| (x >> 16 & 0xff) as u8)
    .collect();
    let letters = |n| noise.iter().map(|byte| b'a' + byte % n).collect::<Vec<_>>();
    assert_eq!(sizer.size(&noise), Ok(100_041));
    assert_eq!(sizer.size(&letters(26)), Ok(63_450));
    assert_eq!(sizer.size(&letters(3)), Ok(23_891));
}

#[test]
fn texts_beyond_the_limit_are_refused() {
    let text = String::from_utf8(vec![0; MAX_BYTES + 1]).unwrap(); // zero pages cost no memory
    let refusal = KernelError::TooLong(MAX_BYTES + 1);
    let mut reader = reader(&[]);
    let mut numbers = Vec::new();
    assert_eq!(reader.read(&text, "a", &mut numbers), Err(refusal));
    assert_eq!(reader.read("a", &text, &mut numbers), Err(refusal));
    assert_eq!(numbers, []);
    assert_eq!(WordRule::Space.count(&text), Err(refusal));
    assert_eq!(ZlibSizer::default().size(text.as_bytes()), Err(refusal));
}
