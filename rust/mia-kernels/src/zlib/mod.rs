//! The size of a text under zlib, as published scores measure it.

mod block;
mod compare;
mod huffman;
mod search;
mod window;

use block::{Block, MAX_SYMBOLS};
use search::{find, find_longer};
use window::Window;

use crate::error::KernelError;
use crate::limits::check_length;

/// Two bytes of header and four of checksum.
const WRAPPER_BYTES: u64 = 6;

/// Tells how long classic zlib's stream of a text is at level 6, without writing it.
///
/// It equals `len(zlib.compress(text))` of a Python that runs on classic zlib (1.2.8 to
/// 1.3.1), for any bytes. It finds the matches that zlib finds, counts the symbols of each block,
/// and adds up what zlib would take for them. It holds less than 900 KiB however long a text is,
/// and allocates nothing after its making.
#[derive(Default)]
pub struct ZlibSizer {
    window: Window,
    block: Block,
}

impl ZlibSizer {
    /// Bytes of the zlib stream of `text`; 8 for an empty text.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn size(&mut self, text: &[u8]) -> Result<u32, KernelError> {
        check_length(text)?;
        let mut unread = text;
        self.window.open(&mut unread);
        let bits = if text.len() < MAX_SYMBOLS {
            self.blocks::<true>(unread)
        } else {
            self.blocks::<false>(unread)
        };
        let bytes = bits.div_ceil(8) + WRAPPER_BYTES;
        u32::try_from(bytes).map_err(|_| KernelError::TooLong(text.len()))
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

#[cfg(test)]
#[path = "../../tests/stock/mod.rs"]
mod stock;

#[cfg(test)]
mod tests {
    use super::ZlibSizer;
    use super::stock::StockZlib;
    use super::window::hash_four;

    /// Other bytes with the same hash.
    fn colliding(bytes: [u8; 4]) -> [u8; 4] {
        let mut all = (0..u32::MAX).map(u32::to_le_bytes);
        let hash = |bytes| hash_four(u32::from_le_bytes(bytes));
        all.find(|other| hash(*other) == hash(bytes) && *other != bytes)
            .unwrap()
    }

    #[test]
    fn places_of_other_bytes_under_the_same_hash_end_no_search() {
        let rare = colliding(*b"AAAA");
        let pieces = (0..50).map(|number| [&rare[..], &[number; 9]].concat());
        let mut text = pieces.clone().flatten().collect::<Vec<_>>();
        for (start, piece) in (0..).step_by(600).zip(pieces.rev()) {
            let numbers = (start..start + 600).map(|number| format!("AAAA{number:x}"));
            text.extend(numbers.flat_map(String::into_bytes));
            text.extend(piece);
        }
        let size = ZlibSizer::default().size(&text);
        assert_eq!(size.ok(), StockZlib::default().size(&text));
    }
}
