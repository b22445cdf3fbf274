#![expect(clippy::print_stderr, reason = "says what this processor cannot show")]

use proptest::array::uniform32;
use proptest::prelude::*;

use super::{Avx512, Lanes, List, Portable, WIDTH};

/// What every operation makes of some numbers.
fn results<L: Lanes>(
    lanes: L,
    numbers: [[u16; WIDTH]; 2],
    bytes: &[u8; WIDTH],
    mask: u32,
) -> (Vec<[u16; WIDTH]>, [u32; 3], Vec<[u16; 2]>) {
    let mut list = List::default();
    let (rows, masks) = lanes.run(|| {
        let [left, right] = [&numbers[0], &numbers[1]].map(|numbers| lanes.load(numbers));
        let rows = [
            left,
            lanes.load_bytes(bytes),
            lanes.splat(numbers[0][0]),
            lanes.add(left, right),
            lanes.subtract(left, right),
            lanes.and(left, right),
            lanes.shift_right::<3>(left),
            lanes.shift_right::<11>(left),
            lanes.select(mask, left, right),
        ];
        let masks = [
            lanes.is_equal(left, right),
            lanes.is_greater(left, right),
            lanes.is_greater(right, left),
        ];
        lanes.push(&mut list, mask, [left, right]);
        lanes.push(&mut list, !mask, [right, left]);
        (rows, masks)
    });
    let rows = rows.map(|row| {
        let mut numbers = [0; WIDTH];
        lanes.store(row, &mut numbers);
        numbers
    });
    (rows.to_vec(), masks, list.iter().collect())
}

proptest! {
    #[test]
    fn the_processor_does_what_the_portable_rows_do(
        numbers in uniform32(any::<u16>()),
        others in uniform32(any::<u16>()),
        equal in any::<u32>(),
        bytes in uniform32(any::<u8>()),
        mask in any::<u32>(),
    ) {
        let Some(avx512) = Avx512::detect() else {
            eprintln!("skipped: no AVX-512");
            return Ok(());
        };
        let others = Portable.select(equal, numbers, others);
        let numbers = [numbers, others];
        prop_assert_eq!(
            results(avx512, numbers, &bytes, mask),
            results(Portable, numbers, &bytes, mask)
        );
    }
}

#[test]
fn operations_by_hand() {
    let mut numbers = [[7; WIDTH], [7; WIDTH]];
    numbers[0][0] = 40_000;
    numbers[1][31] = 65_535;
    let mut bytes = [0; WIDTH];
    bytes[1] = 255;
    let (rows, masks, pairs) = results(Portable, numbers, &bytes, 1 << 31 | 1);
    let ends: Vec<_> = rows.iter().map(|row| (row[0], row[1], row[31])).collect();
    let expected = [
        (40_000, 7, 7),
        (0, 255, 0),
        (40_000, 40_000, 40_000),
        (40_007, 14, 6),
        (39_993, 0, 8),
        (0, 7, 7),
        (5_000, 0, 0),
        (19, 0, 0),
        (40_000, 7, 7),
    ];
    assert_eq!(ends, expected);
    assert_eq!(masks, [!(1 << 31 | 1), 1, 1 << 31]);
    assert_eq!(pairs[..3], [[40_000, 7], [7, 65_535], [7, 7]]);
    assert_eq!(pairs.len(), WIDTH);
}
