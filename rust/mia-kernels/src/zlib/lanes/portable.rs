//! Rows without vector instructions, for tests on any processor.

use std::array::from_fn;

use super::list::joined;
use super::{Lanes, List, WIDTH};

#[derive(Clone, Copy, Default)]
pub(in crate::zlib) struct Portable;

fn mask(is_set: impl Fn(usize) -> bool) -> u32 {
    (0..WIDTH).map(|lane| u32::from(is_set(lane)) << lane).sum()
}

impl Lanes for Portable {
    type Row = [u16; WIDTH];
    /// A bit for each number.
    type Mask = u32;

    fn run<R>(self, task: impl FnOnce() -> R) -> R {
        task()
    }

    fn load(self, numbers: &[u16; WIDTH]) -> Self::Row {
        *numbers
    }

    fn load_bytes(self, bytes: &[u8; WIDTH]) -> Self::Row {
        bytes.map(u16::from)
    }

    fn store(self, row: Self::Row, numbers: &mut [u16; WIDTH]) {
        *numbers = row;
    }

    fn splat(self, number: u16) -> Self::Row {
        [number; WIDTH]
    }

    fn add(self, left: Self::Row, right: Self::Row) -> Self::Row {
        from_fn(|lane| left[lane].wrapping_add(right[lane]))
    }

    fn subtract(self, left: Self::Row, right: Self::Row) -> Self::Row {
        from_fn(|lane| left[lane].wrapping_sub(right[lane]))
    }

    fn and(self, left: Self::Row, right: Self::Row) -> Self::Row {
        from_fn(|lane| left[lane] & right[lane])
    }

    fn shift_right<const BITS: u32>(self, row: Self::Row) -> Self::Row {
        row.map(|number| number >> BITS)
    }

    fn is_equal(self, left: Self::Row, right: Self::Row) -> u32 {
        mask(|lane| left[lane] == right[lane])
    }

    fn is_greater(self, left: Self::Row, right: Self::Row) -> u32 {
        mask(|lane| left[lane] > right[lane])
    }

    fn both(self, left: u32, right: u32) -> u32 {
        left & right
    }

    fn but_not(self, left: u32, right: u32) -> u32 {
        left & !right
    }

    fn select(self, mask: u32, set: Self::Row, unset: Self::Row) -> Self::Row {
        from_fn(|lane| {
            if mask >> lane & 1 == 1 {
                set[lane]
            } else {
                unset[lane]
            }
        })
    }

    fn push(self, list: &mut List, mask: u32, [firsts, seconds]: [Self::Row; 2]) {
        for lane in 0..WIDTH {
            list.extend([joined([firsts[lane], seconds[lane]])], mask >> lane & 1);
        }
    }
}
