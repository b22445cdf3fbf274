//! `cargo bench -p mia-kernels`: zlib sizes counted, against those from compressing.
//!
//! Both take turns on the same texts. Shown are medians over the rounds.

#![expect(clippy::print_stdout, reason = "the table is the result")]
#![expect(clippy::indexing_slicing, reason = "a bench may panic")]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use mia_kernels::{StockZlib, ZlibSizer};

const LENGTHS: [usize; 14] = [
    100, 500, 1_000, 2_000, 3_000, 4_000, 4_611, 6_000, 10_000, 16_000, 32_000, 64_000, 250_000,
    1_000_000,
];
/// Bytes in all texts of one length.
const BATCH: usize = 1_000_000;
const ROUNDS: usize = 15;

fn main() {
    let Some(prose) = prose() else {
        println!("skipped: no books in ../shared/data");
        return;
    };
    println!("text       bytes   ns/byte      MB/s   zlib ns/byte   ratio");
    for length in LENGTHS {
        print_row("prose", &cuts(&prose, length));
    }
    for length in LENGTHS {
        print_row("looped", &loops(&prose, length));
    }
}

/// All books, one after the other.
fn prose() -> Option<Vec<u8>> {
    let books = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/books");
    let mut paths: Vec<_> = fs::read_dir(books)
        .ok()?
        .flatten()
        .map(|file| file.path())
        .collect();
    paths.sort();
    Some(
        paths
            .iter()
            .filter_map(|path| fs::read(path).ok())
            .flatten()
            .collect(),
    )
}

/// Cuts from places spread over all of the text.
fn cuts(prose: &[u8], length: usize) -> Vec<Vec<u8>> {
    let n_texts = BATCH.div_ceil(length);
    let step = (prose.len() - length) / n_texts;
    let starts = (0..n_texts).map(|text| text * step);
    starts
        .map(|start| prose[start..start + length].to_vec())
        .collect()
}

/// What a language model writes that repeats itself: a piece of 20 to 100 bytes, many times.
fn loops(prose: &[u8], length: usize) -> Vec<Vec<u8>> {
    let pieces = cuts(prose, length).into_iter().zip((20..=100).cycle());
    pieces
        .map(|(text, piece)| text.into_iter().take(piece).cycle().take(length).collect())
        .collect()
}

fn print_row(name: &str, texts: &[Vec<u8>]) {
    let (mut counted, mut compressed) = (ZlibSizer::default(), StockZlib::default());
    let mut rounds: Vec<[f64; 2]> = (0..ROUNDS)
        .map(|_| {
            [
                nanoseconds(texts, |text| counted.size(text).ok()),
                nanoseconds(texts, |text| compressed.size(text).ok()),
            ]
        })
        .collect();
    let bytes = texts.len() * texts[0].len();
    let ours = median(&mut rounds, |round| round[0]) / bytes as f64;
    let zlib = median(&mut rounds, |round| round[1]) / bytes as f64;
    let ratio = median(&mut rounds, |round| round[1] / round[0]);
    println!(
        "{name:<8}{:>8}{ours:>10.2}{:>10.1}{zlib:>15.2}{ratio:>8.2}",
        texts[0].len(),
        1e3 / ours,
    );
}

fn nanoseconds<R>(texts: &[Vec<u8>], mut size: impl FnMut(&[u8]) -> R) -> f64 {
    let start = Instant::now();
    for text in texts {
        black_box(size(black_box(text)));
    }
    start.elapsed().as_nanos() as f64
}

fn median(rounds: &mut [[f64; 2]], key: impl Fn(&[f64; 2]) -> f64) -> f64 {
    rounds.sort_by(|a, b| key(a).total_cmp(&key(b)));
    key(&rounds[rounds.len() / 2])
}
