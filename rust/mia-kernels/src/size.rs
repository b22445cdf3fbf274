//! The compressed size of texts, one after the other.

use std::cell::Cell;

use crate::candidate::Cut;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::reference::Reference;
use crate::zlib::ZlibSizer;

thread_local! {
    /// For all texts of a thread: to make a sizer takes as long as tens of texts, because its
    /// memory is new.
    static SIZER: Cell<Option<Box<ZlibSizer>>> = const { Cell::new(None) };
}

/// Bytes of the stream of classic zlib at level 6, as [`ZlibSizer::size`] tells them; 8 for an
/// empty text.
///
/// A thread keeps the memory of its sizer, less than 900 KiB, until it ends.
///
/// # Errors
///
/// [`KernelError::TooLong`] if the text has more than [`MAX_BYTES`](crate::MAX_BYTES).
pub fn zlib_size(text: &[u8]) -> Result<u32, KernelError> {
    let mut sizer = SIZER.take().unwrap_or_default();
    let size = sizer.size(text);
    SIZER.set(Some(sizer)); // not after a panic, which leaves it in the middle of a text
    size
}

/// Sizes the words of a candidate, joined by single spaces.
pub(crate) struct SizeKernel;

impl Kernel for SizeKernel {
    fn fields(&self) -> Vec<String> {
        vec!["zlib_candidate".to_owned()]
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        _: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        numbers.push(Some(zlib_size(cut.joined())?));
        Ok(())
    }
}
