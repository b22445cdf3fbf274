//! Which path for short texts is the faster one on this processor.
//!
//! A table of all matches saves branches that nobody can predict, and costs loads and stores.
//! Which is more depends on more of a processor than the instructions that it has: what took less
//! time on a Zen 5 took half as long again on a Zen 3. So both paths are timed, as Linux does with
//! its checksums for RAID (`lib/raid6/algos.c`).

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::ZlibSizer;

/// Others may use the processor in some rounds.
const N_ROUNDS: usize = 5;
/// No text comes twice: a processor would know its branches by then.
const N_TEXTS: usize = 5;
const N_BYTES: usize = 4500;
const N_WORD_BITS: usize = 12;

/// Whether texts take less time with a table: asked once in a process, within milliseconds.
pub(super) fn is_table_faster() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| ZlibSizer::with_table().is_some_and(is_faster_than_simple))
}

/// Whether it takes less time than the simple path in more than half of the rounds.
fn is_faster_than_simple(mut table: ZlibSizer) -> bool {
    let mut simple = ZlibSizer::simple();
    let prose = prose((1 + N_ROUNDS) * N_TEXTS * N_BYTES);
    let mut rounds = prose.chunks_exact(N_TEXTS * N_BYTES);
    // The first time all memory is new.
    for texts in rounds.by_ref().take(1) {
        time(&mut table, texts);
        time(&mut simple, texts);
    }
    let won = rounds.filter(|texts| time(&mut table, texts) < time(&mut simple, texts));
    won.count() > N_ROUNDS / 2
}

fn time(sizer: &mut ZlibSizer, texts: &[u8]) -> Duration {
    let start = Instant::now();
    for text in texts.chunks(N_BYTES) {
        black_box(sizer.size(text).ok());
    }
    start.elapsed()
}

/// Words, letters and pairs of letters about as frequent as those of English.
fn prose(n_bytes: usize) -> Vec<u8> {
    const LETTERS: &[u8] = b"eeeeeeetttttaaaaaooooiiiinnnnsssshhhrrrddlluuccmmwwffggyyppbvk";
    const PAIRS: &[&[u8]] = &[
        b"th", b"he", b"in", b"er", b"an", b"re", b"nd", b"at", b"on", b"nt", b"ha", b"es", b"st",
        b"en", b"ed", b"to", b"it", b"ou", b"ea", b"hi", b"is", b"or", b"ti", b"as", b"te", b"et",
        b"ng", b"of", b"al", b"de", b"se", b"le", b"sa", b"si", b"ar", b"ve", b"ra", b"ld", b"ur",
    ];
    let mut random = Random(1);
    let words: Vec<Vec<u8>> = (0..1 << N_WORD_BITS)
        .map(|_| {
            let pieces = (0..=random.below(5)).filter_map(|_| match random.below(2) {
                0 => PAIRS.get(random.below(PAIRS.len())).copied(),
                _ => LETTERS.chunks(1).nth(random.below(LETTERS.len())),
            });
            pieces.flatten().copied().collect()
        })
        .collect();
    let mut text = Vec::new();
    while text.len() < n_bytes {
        // As many are among the first to fourth, the fifth to twelfth, and so on (Zipf's law).
        let first = 4 << random.below(N_WORD_BITS - 2);
        let word = words.get(first - 4 + random.below(first));
        text.extend(word.into_iter().flatten());
        text.push(b' ');
    }
    text.truncate(n_bytes);
    text
}

/// A linear congruential generator (Knuth, MMIX).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let Self(state) = self;
        *state = state.wrapping_mul(6_364_136_223_846_793_005);
        *state = state.wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % bound
    }
}

#[cfg(test)]
mod tests {
    use super::{N_BYTES, N_ROUNDS, N_TEXTS, is_table_faster, prose};
    use crate::zlib::block::Block;
    use crate::zlib::short::ShortTexts;
    use crate::{StockZlib, ZlibSizer};

    #[test]
    fn texts_that_are_timed_are_for_a_table_and_like_prose() {
        let texts = prose((1 + N_ROUNDS) * N_TEXTS * N_BYTES);
        let texts = texts.chunks_exact(N_BYTES);
        assert_eq!(texts.len(), (1 + N_ROUNDS) * N_TEXTS);
        let mut zlib = StockZlib::default();
        for text in texts {
            let size = zlib.size(text).unwrap();
            assert!(
                (N_BYTES / 5 * 2..N_BYTES / 5 * 3).contains(&(size as usize)),
                "{size}"
            );
            if let Some(mut table) = ShortTexts::detect() {
                assert!(table.push(text, &mut Block::default()));
            }
        }
    }

    #[test]
    fn the_answer_stays() {
        let answer = is_table_faster();
        assert_eq!(is_table_faster(), answer);
        assert_eq!(ZlibSizer::default().short.is_some(), answer);
    }
}
