//! Texts at the edges of zlib's rules.

use crate::generators::Random;
use crate::{Pair, prose};

/// zlib's window, and how far back a match may start.
const WINDOW: usize = 1 << 15;
const MAX_DISTANCE: usize = WINDOW - 262;
/// Symbols in a full block.
const BLOCK: usize = (1 << 14) - 1;

fn around(middle: usize, by: usize) -> std::ops::RangeInclusive<usize> {
    middle - by..=middle + by
}

/// Noise in which what stands at `at` stood `distance` before.
fn repeat(n_bytes: usize, at: usize, distance: usize, length: usize) -> Vec<u8> {
    let mut text = Random(n_bytes as u64).bytes(n_bytes);
    for place in at..n_bytes.min(at + length) {
        text[place] = text[place - distance];
    }
    text
}

/// Texts without a match: low and high bytes in turns, each pair of which comes again out of
/// reach only. Some of them, because one may have the right size by chance.
fn unmatched(n_bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    let pairs = (0..=127).flat_map(|low| (128..=255).flat_map(move |high| [low, high]));
    let starts = (0..16_000).step_by(999);
    starts.map(move |start| pairs.clone().cycle().skip(start).take(n_bytes).collect())
}

#[test]
fn runs_of_every_length() {
    let mut pair = Pair::default();
    for length in 0..=2000 {
        let mut text = vec![b'a'; length];
        pair.assert_equal(&text, || "a run".into());
        text.push(b'b');
        pair.assert_equal(&text, || "a run and another byte".into());
        text.rotate_right(1);
        pair.assert_equal(&text, || "a byte and a run of another".into());
    }
}

#[test]
fn blocks_just_full() {
    let mut pair = Pair::default();
    for n_blocks in 1..=3 {
        for length in around(n_blocks * BLOCK, 20) {
            for text in unmatched(length) {
                pair.assert_equal(&text, || "literals only".into());
            }
            let mut text = Random(7).bytes(length);
            pair.assert_equal(&text, || "nearly literals only".into());
            text.extend_from_within(length - 300..);
            pair.assert_equal(&text, || "a match in the end".into());
            let letters: Vec<_> = text.iter().map(|byte| byte % 64).collect();
            pair.assert_equal(&letters, || "64 letters".into());
        }
    }
}

#[test]
fn distances_at_their_limits() {
    let mut pair = Pair::default();
    for limit in [4096, MAX_DISTANCE, WINDOW] {
        for distance in around(limit, 20) {
            for length in [3, 4, 5, 20] {
                for before in [0, 1, 2, 5000] {
                    let at = before + distance;
                    let text = repeat(at + length + 300, at, distance, length);
                    pair.assert_equal(&text, || format!("{length} bytes {distance} back"));
                }
            }
        }
    }
}

/// zlib moves its window where few bytes are left of it or of the text.
#[test]
fn matches_where_the_window_moves() {
    let mut pair = Pair::default();
    for moves in 0..3 {
        for at in around(WINDOW * (moves + 1) + MAX_DISTANCE, 4) {
            for distance in around(MAX_DISTANCE, 2) {
                for left in [3, 4, 100, 260, 261, 262, 263, 264, 600] {
                    let text = repeat(at + left, at, distance, 10);
                    pair.assert_equal(&text, || format!("{distance} back from {at}"));
                }
            }
        }
    }
}

#[test]
fn matches_of_every_length() {
    let mut pair = Pair::default();
    for length in 3..=260 {
        for distance in [1, 2, 7, 600, 5000] {
            for start in [0, 1, 2, 40] {
                let at = start + distance;
                for after in [0, 1, 2, 30] {
                    let text = repeat(at + length + after, at, distance, length);
                    pair.assert_equal(&text, || format!("{length} bytes {distance} back"));
                }
            }
        }
    }
}

/// Bytes of few values, so that a period has some of its bytes more than once.
fn letters(seed: usize, n_bytes: usize) -> Vec<u8> {
    let bytes = Random(seed as u64).bytes(n_bytes);
    bytes.iter().map(|byte| b'a' + byte % 7).collect()
}

#[test]
fn loops_of_every_period() {
    let mut pair = Pair::default();
    for period in 1..=1100 {
        let piece = letters(period, period);
        for n_bytes in [3 * period + 60, 4 * period + 100, 5000] {
            let looped: Vec<_> = piece.iter().copied().cycle().take(n_bytes).collect();
            let other = letters(0, 40 + period % 100);
            let text = [&other[..], &looped, &other, &looped[period / 2..]].concat();
            pair.assert_equal(&looped, || format!("a loop of {period} bytes"));
            pair.assert_equal(&text, || format!("two loops of {period} bytes"));
        }
    }
}

#[test]
fn loops_where_the_window_moves() {
    let mut pair = Pair::default();
    for period in [1, 2, 31, 32, 33, 100, 777, 1024] {
        let looped = letters(period, period).into_iter().cycle();
        let looped: Vec<_> = looped.take(3 * WINDOW).collect();
        for at in around(2 * WINDOW - 300, 4).chain(around(2 * WINDOW, 4)) {
            let mut text = looped.clone();
            text[at] = b'!';
            pair.assert_equal(&text, || format!("a loop of {period} bytes, cut at {at}"));
            text.drain(..at - 2000);
            pair.assert_equal(&text, || format!("the end of a loop of {period} bytes"));
        }
    }
}

#[test]
fn long_texts_cut_anywhere() {
    let prose = prose();
    let mut pair = Pair::default();
    for length in [2 * WINDOW, 3 * WINDOW, 4 * WINDOW] {
        for length in (length - 900..length + 900).step_by(7) {
            pair.assert_equal(&prose[5..5 + length], || "prose".into());
        }
    }
}

#[test]
fn texts_of_a_mebibyte() {
    let mebibyte = 1 << 20;
    let prose = prose();
    let texts = [
        prose[..mebibyte].to_vec(),
        Random(3).bytes(mebibyte),
        vec![0; mebibyte],
        prose
            .iter()
            .copied()
            .take(77)
            .cycle()
            .take(mebibyte)
            .collect(),
        prose
            .iter()
            .copied()
            .take(40_000)
            .cycle()
            .take(mebibyte)
            .collect(),
    ];
    let mut pair = Pair::default();
    for text in &texts {
        pair.assert_equal(text, || "a mebibyte".into());
    }
}
