//! Which path for short texts is the faster one on this processor.
//!
//! A table of all matches saves branches that nobody can predict, and costs loads and stores.
//! Which is more depends on more of a processor than the instructions that it has: with AVX2 on
//! a Zen 3 the table takes prose half as long again. So both paths are timed, as Linux does with its
//! checksums for RAID (`lib/raid6/algos.c`).

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::ZlibSizer;

/// Others may use the processor in some rounds.
const N_ROUNDS: usize = 5;
/// No text comes twice: a processor would know its branches by then.
const N_TEXTS: usize = 5;
const N_BYTES: usize = 3000;
const N_WORD_BITS: usize = 12;

/// Whether texts take less time with a table: asked once in a process, within milliseconds.
pub(super) fn is_table_faster() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| ZlibSizer::with_table().is_some_and(is_faster_than_simple))
}

/// Whether it takes less time than the simple path in more than half of the rounds.
fn is_faster_than_simple(mut table: ZlibSizer) -> bool {
    let mut simple = ZlibSizer::simple();
    let prose = prose(N_ROUNDS * N_TEXTS * N_BYTES);
    let rounds = prose.chunks_exact(N_TEXTS * N_BYTES);
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

/// Words and letters about as frequent as those of English.
fn prose(n_bytes: usize) -> Vec<u8> {
    const LETTERS: &[u8] = b"eeeeeeetttttaaaaaooooiiiinnnnsssshhhrrrddlluuccmmwwffggyyppbvk";
    let mut random = Random(1);
    let words: Vec<Vec<u8>> = (0..1 << N_WORD_BITS)
        .map(|_| {
            let n_letters = 2 + random.below(7);
            let letters = (0..n_letters).filter_map(|_| LETTERS.get(random.below(LETTERS.len())));
            letters.copied().collect()
        })
        .collect();
    let mut text = Vec::new();
    while text.len() < n_bytes {
        // As many are among the second to third, the fourth to seventh, and so on (Zipf's law).
        let first = 1 << random.below(N_WORD_BITS);
        let word = words.get(first - 1 + random.below(first));
        text.extend(word.into_iter().flatten());
        text.push(b' ');
    }
    text.truncate(n_bytes);
    text
}

/// A linear congruential generator (Knuth, MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
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
        let texts = prose(N_ROUNDS * N_TEXTS * N_BYTES);
        let texts = texts.chunks_exact(N_BYTES);
        assert_eq!(texts.len(), N_ROUNDS * N_TEXTS);
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
