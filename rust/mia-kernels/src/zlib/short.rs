//! The path for short texts, on processors that have it.

use super::block::Block;
#[cfg(target_arch = "x86_64")]
use super::lanes::Avx512;
#[cfg(target_arch = "x86_64")]
use super::table::{Table, is_looped};

pub(super) struct ShortTexts {
    #[cfg(target_arch = "x86_64")]
    table: Option<Table<Avx512>>,
}

impl ShortTexts {
    /// What this processor can do.
    pub(super) fn detect() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            table: Avx512::detect().map(Table::new),
        }
    }

    /// No text is short.
    pub(super) fn none() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            table: None,
        }
    }

    /// Adds the symbols of a text to an empty block, or tells that it has to be read otherwise.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn push(&mut self, text: &[u8], block: &mut Block) -> bool {
        let table = self.table.as_mut();
        table.is_some_and(|table| !is_looped(text) && table.push(text, block))
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[expect(clippy::unused_self, reason = "no other processor has it yet")]
    pub(super) fn push(&mut self, _text: &[u8], _block: &mut Block) -> bool {
        false
    }
}
