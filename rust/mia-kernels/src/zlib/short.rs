//! The path for short texts, on processors that have it.

use super::block::Block;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
use super::table::Table;

/// A table of all matches, in the widest rows that the processor has.
pub(super) enum ShortTexts {
    #[cfg(target_arch = "x86_64")]
    Avx512(Table<Avx512>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Table<Avx2>),
}

impl ShortTexts {
    /// None where the processor has rows of neither kind.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn detect() -> Option<Self> {
        let avx512 = Avx512::detect().map(|lanes| Self::Avx512(Table::new(lanes)));
        avx512.or_else(|| Avx2::detect().map(|lanes| Self::Avx2(Table::new(lanes))))
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn detect() -> Option<Self> {
        None
    }

    /// Adds the symbols of a text to an empty block, or tells that it has to be read otherwise.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn push(&mut self, text: &[u8], block: &mut Block) -> bool {
        match self {
            Self::Avx512(table) => table.push(text, block),
            Self::Avx2(table) => table.push(text, block),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn push(&mut self, _text: &[u8], _block: &mut Block) -> bool {
        match *self {}
    }
}
