//! What every group of numbers is computed from, and how.

use crate::candidate::Cut;
use crate::error::KernelError;
use crate::reference::Reference;

/// A number of a pair; `None` where it is undefined.
pub(crate) type Number = Option<u32>;

/// Computes one group of numbers.
pub(crate) trait Kernel {
    /// Fields of [`numbers`](Self::numbers), in order.
    fn fields(&self) -> Vec<String>;

    /// Fields of [`reference_numbers`](Self::reference_numbers), in order.
    fn reference_fields(&self) -> Vec<String> {
        Vec::new()
    }

    /// Forgets the last reference and reads another.
    fn read_reference(&mut self, _: &Reference) {}

    /// Prepares for a new candidate.
    fn start(&mut self, _: &Reference) {}

    /// Appends the numbers of a candidate that has grown to `cut`.
    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError>;

    /// Appends the numbers of the reference alone.
    fn reference_numbers(&self, _: &Reference, _: &mut Vec<Number>) {}
}
