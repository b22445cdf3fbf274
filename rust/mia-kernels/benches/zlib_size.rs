//! `cargo bench -p mia-kernels`: zlib sizes counted, against those from compressing.
//!
//! Both take turns on the same texts. Shown are medians over the rounds, and how many times
//! faster than zlib we are. `-- --json` gives a line of JSON for each row instead.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is the result"
)]
#![expect(clippy::indexing_slicing, reason = "a bench may panic")]

#[path = "../tests/stock/mod.rs"]
mod stock;

use std::fs;
use std::hint::black_box;
use std::path::Path;

use mia_kernels::ZlibSizer;
use rustix::time::{ClockId, clock_gettime};
use stock::StockZlib;

const LENGTHS: [usize; 13] = [
    100, 500, 1_000, 2_000, 3_000, 4_000, 4_611, 6_000, 10_000, 16_000, 32_000, 64_000, 1_000_000,
];
/// Bytes in all texts of one length.
const BATCH: usize = 1_000_000;
const ROUNDS: usize = 15;
/// Makes texts of so many bytes from prose.
type Texts = fn(&[u8], usize) -> Vec<Vec<u8>>;
const KINDS: [(&str, Texts); 4] = [
    ("prose", cuts),
    ("looped", loops),
    ("random", random),
    ("runs", runs),
];

fn main() {
    let Some(prose) = prose() else {
        eprintln!("skipped: no books in ../shared/data");
        return;
    };
    let is_json = std::env::args().any(|argument| argument == "--json");
    for (kind, texts) in KINDS {
        for length in LENGTHS {
            Row::measure(&texts(&prose, length)).print(kind, length, is_json);
        }
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

/// Bytes of all values, by a linear congruential generator (Knuth, MMIX).
fn random(_: &[u8], length: usize) -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    let texts = 0..BATCH.div_ceil(length);
    texts
        .map(|_| (0..length).map(|_| byte()).collect())
        .collect()
}

/// One byte, again and again.
fn runs(prose: &[u8], length: usize) -> Vec<Vec<u8>> {
    let texts = cuts(prose, length);
    texts.iter().map(|text| vec![text[0]; length]).collect()
}

/// Medians over the rounds.
struct Row {
    /// Nanoseconds per byte.
    ours: f64,
    zlib: f64,
    /// How many times what we take zlib takes, each round by itself.
    ratio: f64,
}

impl Row {
    fn measure(texts: &[Vec<u8>]) -> Self {
        let (mut sizer, mut zlib) = (ZlibSizer::default(), StockZlib::default());
        let n_bytes = texts.iter().map(Vec::len).sum::<usize>() as f64;
        let rounds = [(); ROUNDS].map(|()| {
            let ours = time(texts, |text| sizer.size(text).ok()) / n_bytes;
            [ours, time(texts, |text| zlib.size(text)) / n_bytes]
        });
        Self {
            ours: median(rounds.map(|[ours, _]| ours)),
            zlib: median(rounds.map(|[_, zlib]| zlib)),
            ratio: median(rounds.map(|[ours, zlib]| zlib / ours)),
        }
    }

    fn print(&self, kind: &str, length: usize, is_json: bool) {
        let Self { ours, zlib, ratio } = self;
        if is_json {
            println!(
                r#"{{"text": "{kind}", "bytes": {length}, "ns_per_byte": {ours:.4}, "zlib": {zlib:.4}, "ratio": {ratio:.4}}}"#
            );
        } else {
            let speed = 1e3 / ours;
            println!(
                "{kind:<7}{length:>8} bytes {ours:>7.2} ns/byte {speed:>7.1} MB/s, {ratio:.2} times zlib's speed"
            );
        }
    }
}

/// Nanoseconds of this thread for all texts. Others may use the processor too.
///
/// The second time counts: the first brings back what the one before had driven out of the caches.
fn time<R>(texts: &[Vec<u8>], mut size: impl FnMut(&[u8]) -> R) -> f64 {
    let mut time_all = || {
        let start = nanoseconds();
        for text in texts {
            black_box(size(black_box(text)));
        }
        nanoseconds() - start
    };
    time_all();
    time_all()
}

fn nanoseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    1e9 * time.tv_sec as f64 + time.tv_nsec as f64
}

fn median(mut numbers: [f64; ROUNDS]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[ROUNDS / 2]
}
