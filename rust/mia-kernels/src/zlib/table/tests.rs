#![expect(
    clippy::cast_possible_truncation,
    reason = "helpers of tests may panic"
)]

#[path = "../../../tests/zlib_size/generators.rs"]
mod generators;

use generators::{Random, families};

use super::Table;
use crate::StockZlib;
use crate::zlib::block::Block;
use crate::zlib::lanes::Portable;
use crate::zlib::stream_bytes;

/// A table in which every processor can try what some do.
struct Sizer {
    table: Table,
    block: Block,
    stock: StockZlib,
}

impl Sizer {
    fn new() -> Self {
        Self {
            table: Table::default(),
            block: Block::default(),
            stock: StockZlib::default(),
        }
    }

    /// Tells whether a table does for the text, and that the size is zlib's if so.
    fn is_taken(&mut self, text: &[u8], what: &str) -> bool {
        let is_taken = self.table.push(Portable, text, &mut self.block);
        if is_taken {
            let size = stream_bytes(self.block.close(0, Some(text.len())));
            let right = self.stock.size(text).unwrap();
            assert_eq!(size, u64::from(right), "{what}, {} bytes", text.len());
        }
        is_taken
    }
}

/// Words of letters of which some are frequent.
fn prose() -> Vec<u8> {
    let mut random = Random(5);
    let words: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            let n_letters = 1 + random.below(9);
            (0..n_letters)
                .map(|_| b'a' + random.magnitude(26) as u8)
                .collect()
        })
        .collect();
    let mut text = Vec::new();
    while text.len() < 1 << 20 {
        text.extend_from_slice(&words[random.magnitude(words.len())]);
        text.push(b' ');
    }
    text
}

macro_rules! test_families {
    ($($family:ident),+ $(,)?) => {
        $(
            #[test]
            fn $family() {
                let prose = prose();
                let mut sizer = Sizer::new();
                let mut n_taken = 0;
                for seed in 0..4000 {
                    let random = &mut Random(seed);
                    let length = random.magnitude(6000);
                    let mut text = generators::$family(random, &prose, length);
                    text.retain(|byte| *byte != 0);
                    n_taken += u32::from(sizer.is_taken(&text, &format!("seed {seed}")));
                }
                assert!(n_taken > 600, "{n_taken}");
            }
        )+
    };
}

families!(test_families);

#[test]
fn texts_that_are_not_for_a_table() {
    let prose = prose();
    let mut sizer = Sizer::new();
    let mut is_taken = |text: &[u8]| sizer.is_taken(text, "an edge");
    assert!(!is_taken(b""));
    assert!(!is_taken(&prose[..63]));
    assert!(is_taken(&prose[..64]));
    let noise = Random(3).bytes(8000);
    let noise: Vec<u8> = noise.into_iter().filter(|byte| *byte != 0).collect();
    assert!(is_taken(&noise[..7136]));
    assert!(!is_taken(&noise[..7137]));
    assert!(!is_taken(&[&prose[..100], b"\0"].concat()));
    let letters: Vec<u8> = Random(4)
        .bytes(4000)
        .iter()
        .map(|byte| b'a' + byte % 4)
        .collect();
    assert!(is_taken(&letters[..100]));
    assert!(!is_taken(&letters));
    assert!(is_taken(&[b'a'; 259]));
    assert!(!is_taken(&[b'a'; 261]));
}

/// All that stand 20 bytes apart have the same four bytes, and the longest match is further
/// back than zlib looks.
#[test]
fn matches_beyond_the_last_try() {
    let mut sizer = Sizer::new();
    for n_between in [30, 33, 60, 127, 128, 129, 200] {
        for known in [&b""[..], b"12345678", b"123456789012345"] {
            let mut random = Random(n_between);
            let mut text = [known, b"abcd-the end of it "].concat();
            for _ in 0..n_between {
                text.extend_from_slice(b"abcd");
                text.extend((0..12).map(|_| b' ' + random.byte() % 90));
            }
            text.extend_from_slice(known);
            text.extend_from_slice(b"?abcd-the end of it");
            assert!(sizer.is_taken(&text, &format!("{n_between} between")));
        }
    }
}
