//! The compressed size as a group of numbers.

use crate::candidate::Cut;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number, Reference};
use crate::zlib::ZlibSizer;

/// Sizes the words of a candidate, joined by single spaces.
#[derive(Default)]
pub(crate) struct SizeKernel(ZlibSizer);

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
        numbers.push(Some(self.0.size(cut.joined())?));
        Ok(())
    }
}
