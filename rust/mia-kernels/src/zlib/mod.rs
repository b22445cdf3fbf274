//! The size of a text under zlib, as published scores measure it.

mod block;
mod huffman;
#[cfg(any(test, target_arch = "x86_64"))]
mod lanes;
mod paths;
mod race;
mod search;
mod short;
mod stock;
#[cfg(any(test, target_arch = "x86_64"))]
mod table;
mod window;

use paths::Paths;
use race::Race;
use short::ShortTexts;

use crate::error::KernelError;
use crate::limits::check_length;

pub use stock::{StockZlib, zlib_version};

/// Two bytes of header and four of checksum.
const WRAPPER_BYTES: u64 = 6;

/// Tells how long classic zlib's stream of a text is at level 6, without writing it.
///
/// It equals `len(zlib.compress(text))` of a Python that runs on classic zlib (1.2.8 to
/// 1.3.1), and [`StockZlib`], for any bytes. It finds the matches that zlib finds, counts the
/// symbols of each block, and adds up what zlib would take for them. It holds less than
/// 900 KiB, and with a table some 3 MiB, however long a text is, and allocates nothing after its
/// making but the table, for the first text that may be worth one.
pub struct ZlibSizer {
    paths: Paths,
    choice: Choice,
}

/// Which path short texts go.
enum Choice {
    Simple,
    /// If it suits them.
    Table,
    Faster(Race),
}

/// Takes the path that is the faster one at the time: now and then a few texts go both ways.
impl Default for ZlibSizer {
    fn default() -> Self {
        let choice = Choice::Faster(Race::default());
        Paths::with_table().map_or_else(Self::simple, |paths| Self { paths, choice })
    }
}

impl ZlibSizer {
    /// Searches all texts place by place, as every processor can.
    pub fn simple() -> Self {
        Self {
            paths: Paths::default(),
            choice: Choice::Simple,
        }
    }

    /// Makes a table of all matches of texts of 1.5 to 7 KiB, unless they are loops, have a zero
    /// byte or very few letters. Sizes are the same. `None` where the processor has neither AVX-512
    /// nor AVX2.
    pub fn with_table() -> Option<Self> {
        let choice = Choice::Table;
        Paths::with_table().map(|paths| Self { paths, choice })
    }

    /// Bytes of the zlib stream of `text`; 8 for an empty text.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn size(&mut self, text: &[u8]) -> Result<u32, KernelError> {
        check_length(text)?;
        let bytes = stream_bytes(self.bits(text));
        u32::try_from(bytes).map_err(|_| KernelError::TooLong(text.len()))
    }

    /// Bits of all blocks.
    fn bits(&mut self, text: &[u8]) -> u64 {
        let paths = &mut self.paths;
        match &mut self.choice {
            _ if !ShortTexts::takes(text) => paths.simple(text),
            Choice::Simple => paths.simple(text),
            Choice::Table => paths.table(text).unwrap_or_else(|| paths.simple(text)),
            Choice::Faster(race) => {
                race.run(paths, |paths| paths.simple(text), |paths| paths.table(text))
            }
        }
    }
}

/// Bytes of a stream with so many bits in its blocks.
fn stream_bytes(bits: u64) -> u64 {
    bits.div_ceil(8) + WRAPPER_BYTES
}

#[cfg(test)]
mod tests {
    use super::window::hash_four;
    use super::{StockZlib, ZlibSizer};

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
        assert_eq!(size, StockZlib::default().size(&text));
    }
}
