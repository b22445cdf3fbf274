//! Sixteen-bit numbers, 32 at a time.
//!
//! Each operation is one or a few vector instructions, so that a loop over all places of a text
//! is written once, for the processor and for the tests.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod list;
#[cfg(test)]
mod portable;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use list::List;
#[cfg(test)]
pub(super) use portable::Portable;

/// Numbers in a row.
pub(super) const WIDTH: usize = ROW as usize;
/// The same in the numbers of a row.
pub(super) const ROW: u16 = 32;
/// The numbers of the first row, counted from 0.
#[expect(clippy::indexing_slicing, reason = "below the width, when compiled")]
pub(super) static FIRST_ROW: [u16; WIDTH] = {
    let mut numbers = [0; WIDTH];
    let mut at = 0;
    while at < ROW {
        numbers[at as usize] = at;
        at += 1;
    }
    numbers
};
/// Places that rows are made of, at most.
pub(super) const MAX_PLACES: usize = 7 * 1024;

/// Instructions on rows.
pub(super) trait Lanes: Copy {
    /// A row in registers.
    type Row: Copy;

    /// For each number of a row whether it is meant.
    type Mask: Copy;

    /// Runs a loop with these instructions, if all that it calls is inlined into it.
    fn run<R>(self, task: impl FnOnce() -> R) -> R;

    fn load(self, numbers: &[u16; WIDTH]) -> Self::Row;

    /// Bytes as numbers.
    fn load_bytes(self, bytes: &[u8; WIDTH]) -> Self::Row;

    fn store(self, row: Self::Row, numbers: &mut [u16; WIDTH]);

    /// The same number everywhere.
    fn splat(self, number: u16) -> Self::Row;

    fn add(self, left: Self::Row, right: Self::Row) -> Self::Row;

    fn subtract(self, left: Self::Row, right: Self::Row) -> Self::Row;

    fn and(self, left: Self::Row, right: Self::Row) -> Self::Row;

    fn shift_right<const BITS: u32>(self, row: Self::Row) -> Self::Row;

    fn is_equal(self, left: Self::Row, right: Self::Row) -> Self::Mask;

    /// Where the left number is greater. All are below 2^15.
    fn is_greater(self, left: Self::Row, right: Self::Row) -> Self::Mask;

    fn both(self, left: Self::Mask, right: Self::Mask) -> Self::Mask;

    /// What is in the left mask and not in the right one.
    fn but_not(self, left: Self::Mask, right: Self::Mask) -> Self::Mask;

    /// Numbers of one row where the mask is set, and of the other where it is not.
    fn select(self, mask: Self::Mask, set: Self::Row, unset: Self::Row) -> Self::Row;

    /// Appends the pairs of numbers for which the mask is set.
    fn push(self, list: &mut List, mask: Self::Mask, pairs: [Self::Row; 2]);
}

/// Rows from a number on.
pub(super) fn rows<T>(numbers: &[T], from: usize) -> &[[T; WIDTH]] {
    numbers.get(from..).unwrap_or_default().as_chunks().0
}

/// Rows to be written.
pub(super) fn rows_mut<T>(numbers: &mut [T]) -> &mut [[T; WIDTH]] {
    numbers.as_chunks_mut().0
}
