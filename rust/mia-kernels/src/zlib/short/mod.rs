//! The path for short texts, on processors that have it.

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::ShortTexts;

#[cfg(not(target_arch = "x86_64"))]
pub(super) enum ShortTexts {}

#[cfg(not(target_arch = "x86_64"))]
impl ShortTexts {
    pub(super) fn detect() -> Option<Self> {
        None
    }

    pub(super) fn takes(_text: &[u8]) -> bool {
        false
    }

    pub(super) fn push(&mut self, _text: &[u8], _block: &mut super::block::Block) -> bool {
        match *self {}
    }
}
