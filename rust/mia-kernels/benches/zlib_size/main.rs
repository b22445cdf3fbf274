//! `cargo bench -p mia-kernels`: zlib sizes counted, against those from compressing, against
//! both of our paths by themselves, and against the prototype where its folder lies beside the
//! repository's.
//!
//! All take turns on the same texts. Shown are medians over the rounds, and how many times
//! faster than each rival we are. `-- --json` gives a line of JSON for each row instead.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is the result"
)]
#![expect(clippy::indexing_slicing, reason = "a bench may panic")]

mod prototype;

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::Path;

use mia_kernels::{StockZlib, ZlibSizer};
use prototype::Rivals;
use rustix::time::{ClockId, clock_gettime};

const LENGTHS: [usize; 13] = [
    100, 500, 1_000, 2_000, 3_000, 4_000, 4_611, 6_000, 10_000, 16_000, 32_000, 64_000, 1_000_000,
];
/// Bytes in all texts of one length.
const BATCH: usize = 1_000_000;
const ROUNDS: usize = 15;
/// What the others are compared with.
const OURS: &str = "mia-batch";

fn main() {
    let Some(prose) = prose() else {
        eprintln!("skipped: no books in ../shared/data");
        return;
    };
    let program = prototype::build();
    let program = program.inspect_err(|error| eprintln!("without the prototype: {error}"));
    let program = program.ok();
    let is_json = std::env::args().any(|argument| argument == "--json");
    for (kind, texts) in [
        ("prose", cuts as fn(&[u8], usize) -> Vec<Vec<u8>>),
        ("looped", loops),
        ("random", random),
        ("runs", runs),
    ] {
        for length in LENGTHS {
            let row = Row::measure(&texts(&prose, length), program.as_deref());
            if is_json {
                row.print_json(kind, length);
            } else {
                row.print(kind, length);
            }
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

/// For each that was timed its nanoseconds per byte, by round.
struct Row(BTreeMap<String, Vec<f64>>);

impl Row {
    fn measure(texts: &[Vec<u8>], program: Option<&Path>) -> Self {
        let mut paths = vec![
            (OURS, ZlibSizer::default()),
            ("our simple path", ZlibSizer::simple()),
        ];
        paths.extend(ZlibSizer::with_table().map(|sizer| ("our table path", sizer)));
        let mut zlib = StockZlib::default();
        let mut rivals = program.and_then(|program| Rivals::start(program, texts).ok());
        let n_bytes = texts.iter().map(Vec::len).sum::<usize>() as f64;
        let mut row = Self(BTreeMap::new());
        for _ in 0..ROUNDS {
            let ours = paths.iter_mut().map(|(name, sizer)| {
                let time = time(texts, |text| sizer.size(text).ok());
                ((*name).to_owned(), time)
            });
            let mut times: Vec<(String, f64)> = ours.collect();
            paths.rotate_left(1); // the first one after others takes up to 5 % longer
            times.push(("zlib".into(), time(texts, |text| zlib.size(text).ok())));
            let round = rivals.as_mut().and_then(|rivals| rivals.round().ok());
            times.extend(round.unwrap_or_default());
            for (name, time) in times {
                row.0.entry(name).or_default().push(time / n_bytes);
            }
        }
        row
    }

    fn print(&self, kind: &str, length: usize) {
        let ours = median(self.0[OURS].clone());
        print!(
            "{kind:<7}{length:>8} bytes {ours:>7.2} ns/byte {:>7.1} MB/s  times faster than",
            1e3 / ours
        );
        for (name, ratio) in self.ratios() {
            print!("  {name} {ratio:.2}");
        }
        println!();
    }

    fn print_json(&self, kind: &str, length: usize) {
        let times = self.0.iter();
        let times = times.map(|(name, times)| (name.as_str(), median(times.clone())));
        println!(
            r#"{{"text": "{kind}", "bytes": {length}, "ns_per_byte": {}, "times_faster": {}}}"#,
            json(times),
            json(self.ratios()),
        );
    }

    /// How many times what each took we take.
    fn ratios(&self) -> impl Iterator<Item = (&str, f64)> {
        let others = self.0.iter().filter(|(name, _)| *name != OURS);
        others.map(|(name, times)| {
            let rounds = times.iter().zip(&self.0[OURS]);
            (
                name.as_str(),
                median(rounds.map(|(it, we)| it / we).collect()),
            )
        })
    }
}

fn json<'a>(numbers: impl Iterator<Item = (&'a str, f64)>) -> String {
    let fields: Vec<_> = numbers
        .map(|(name, number)| format!(r#""{name}": {number:.4}"#))
        .collect();
    format!("{{{}}}", fields.join(", "))
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

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
