//! Texts to bits, place by place or from a table of all matches.

use super::block::{Block, MAX_SYMBOLS};
use super::search::{find, find_longer};
use super::short::ShortTexts;
use super::window::{self, Window};

/// Everything that a text is read with.
#[derive(Default)]
pub(super) struct Paths {
    window: Window,
    block: Block,
    short: Option<ShortTexts>,
}

impl Paths {
    /// With a table too; `None` where the processor has neither AVX-512 nor AVX2.
    pub(super) fn with_table() -> Option<Self> {
        let short = ShortTexts::detect()?;
        Some(Self {
            short: Some(short),
            ..Self::default()
        })
    }

    /// Bits of all blocks, from a table; `None` if that does not suit the text.
    pub(super) fn table(&mut self, text: &[u8]) -> Option<u64> {
        let is_done = self.short.as_mut()?.push(text, &mut self.block);
        is_done.then(|| self.block.close(0, Some(text.len())))
    }

    /// Bits of all blocks, place by place.
    pub(super) fn simple(&mut self, text: &[u8]) -> u64 {
        let mut unread = text;
        self.window.open(&mut unread);
        if text.len() < MAX_SYMBOLS {
            self.blocks::<true>(unread)
        } else {
            self.blocks::<false>(unread)
        }
    }

    /// Bits of all blocks of a text that has been opened. It is `WHOLE` if it is in view from
    /// start to end and fits in one block.
    fn blocks<const WHOLE: bool>(&mut self, mut unread: &[u8]) -> u64 {
        let (window, block) = (&mut self.window, &mut self.block);
        let mut stream = Stream::default();
        let mut at = window.start();
        while window.left(at) > 0 {
            if WHOLE {
                // Known here, it is not made sure of at each step.
                assert!(at < window::SIZE - 1, "a place of the window");
            }
            let mut found = find::<WHOLE>(window, at);
            // A match is taken unless the next place has a longer one.
            while !found.is_none() {
                at += 1;
                if !WHOLE {
                    at = window.refill(at, &mut unread);
                }
                let next = find_longer::<WHOLE>(window, at, found);
                if next.is_none() {
                    break;
                }
                block.push_literal(window.byte(at - 1));
                if !WHOLE && stream.count_symbol() {
                    stream.push(block, window, at);
                }
                found = next;
            }
            if found.is_none() {
                block.push_literal(window.byte(at));
                at += 1;
            } else {
                block.push_match(found);
                at += found.length - 1;
            }
            if WHOLE {
                continue;
            }
            // A literal that ends the text closes no block, so that none comes after it.
            let is_last = found.is_none() && window.left(at) == 0;
            if stream.count_symbol() && !is_last {
                stream.push(block, window, at);
            }
            at = window.refill(at, &mut unread);
        }
        stream.push(block, window, at);
        stream.bits
    }
}

/// What zlib has written.
#[derive(Default)]
struct Stream {
    bits: u64,
    /// Bytes of the text in it.
    n_bytes: usize,
    /// Literals and matches in the block that comes next.
    n_symbols: usize,
}

impl Stream {
    /// Counts a literal or a match, and tells whether its block has as many as it can.
    #[inline]
    fn count_symbol(&mut self) -> bool {
        self.n_symbols += 1;
        self.n_symbols == MAX_SYMBOLS
    }

    /// Closes the block of the bytes before `at`.
    fn push(&mut self, block: &mut Block, window: &Window, at: usize) {
        let n_bytes = window.n_before(at) - self.n_bytes;
        let in_view = (n_bytes <= at).then_some(n_bytes);
        self.bits = block.close(self.bits, in_view);
        self.n_bytes += n_bytes;
        self.n_symbols = 0;
    }
}
