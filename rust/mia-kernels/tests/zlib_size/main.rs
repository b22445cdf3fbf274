//! Zlib sizes counted against those from compressing: 200,000 texts, or as many as
//! `MIA_BATCH_ZLIB_TEXTS` says.

#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests may panic"
)]

mod edges;
mod generators;
#[path = "../stock/mod.rs"]
mod stock;

use std::path::Path;
use std::{env, fs};

use generators::{Random, families};
use mia_kernels::ZlibSizer;
use stock::StockZlib;

/// A sizer and what it is compared with, both used again and again.
#[derive(Default)]
struct Pair {
    counted: ZlibSizer,
    compressed: StockZlib,
}

impl Pair {
    #[track_caller]
    fn assert_equal(&mut self, text: &[u8], what: impl Fn() -> String) {
        let counted = self.counted.size(text).ok();
        let compressed = self.compressed.size(text);
        assert!(
            counted == compressed && counted.is_some(),
            "{}, {} bytes: {counted:?}, not {compressed:?}",
            what(),
            text.len()
        );
    }
}

/// Books where there are any, and words made up elsewhere.
fn prose() -> Vec<u8> {
    let books = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/books");
    let Ok(files) = fs::read_dir(books) else {
        return made_up_words();
    };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .flat_map(|path| fs::read(path).unwrap())
        .collect()
}

fn made_up_words() -> Vec<u8> {
    let mut random = Random(1);
    let letters = b"aaabcdeeefghiiklmnooprstu";
    let words: Vec<Vec<u8>> = (0..3000)
        .map(|_| {
            (0..2 + random.below(9))
                .map(|_| letters[random.below(letters.len())])
                .collect()
        })
        .collect();
    let mut text = Vec::new();
    while text.len() < 4 << 20 {
        text.extend_from_slice(&words[random.magnitude(words.len())]);
        text.push(b' ');
    }
    text
}

type Family = fn(&mut Random, &[u8], usize) -> Vec<u8>;

fn assert_family(family: Family, name: &str) {
    let n_texts: u64 = env::var("MIA_BATCH_ZLIB_TEXTS").map_or(200_000, |n| n.parse().unwrap());
    let prose = prose();
    let mut pair = Pair::default();
    for seed in 0..n_texts.div_ceil(N_FAMILIES) {
        let random = &mut Random(seed);
        let most = if seed % 500 == 0 { 1 << 20 } else { 1 << 14 };
        let length = random.magnitude(most);
        let text = family(random, &prose, length);
        pair.assert_equal(&text, || format!("{name}, seed {seed}"));
    }
}

macro_rules! test_families {
    ($($family:ident),+ $(,)?) => {
        const N_FAMILIES: u64 = [$(stringify!($family)),+].len() as u64;
        $(
            #[test]
            fn $family() {
                assert_family(generators::$family, stringify!($family));
            }
        )+
    };
}

families!(test_families);
