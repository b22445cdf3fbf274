use proptest::array::uniform32;
use proptest::prelude::*;

use super::{Avx2, Avx512, FIRST_ROW, Lanes, List, Portable, WIDTH};

/// What every operation makes of some numbers.
fn results<L: Lanes>(
    lanes: L,
    numbers: [[u16; WIDTH]; 2],
    bytes: &[u8; WIDTH],
) -> (Vec<[u16; WIDTH]>, Vec<Vec<[u16; 2]>>) {
    let mut lists: [List; 5] = Default::default();
    let rows = lanes.run(|| {
        let [left, right] = [&numbers[0], &numbers[1]].map(|numbers| lanes.load(numbers));
        let [low_left, low_right] =
            [left, right].map(|row| lanes.and(row, lanes.splat((1 << 15) - 1)));
        let is_equal = lanes.is_equal(left, right);
        let is_greater = lanes.is_greater(low_left, low_right);
        let masks = [
            is_equal,
            is_greater,
            lanes.is_greater(low_right, low_left),
            lanes.both(is_equal, is_greater),
            lanes.but_not(is_equal, is_greater),
        ];
        for (list, mask) in lists.iter_mut().zip(masks) {
            lanes.push(list, mask, [lanes.load(&FIRST_ROW), left]);
            lanes.push(list, is_equal, [right, left]);
        }
        [
            left,
            lanes.load_bytes(bytes),
            lanes.splat(numbers[0][0]),
            lanes.add(left, right),
            lanes.subtract(left, right),
            lanes.and(left, right),
            lanes.shift_right::<3>(left),
            lanes.shift_right::<11>(left),
            lanes.select(is_greater, left, right),
        ]
    });
    let rows = rows.map(|row| {
        let mut numbers = [0; WIDTH];
        lanes.store(row, &mut numbers);
        numbers
    });
    let lists = lists.iter().map(|list| list.iter().collect());
    (rows.to_vec(), lists.collect())
}

proptest! {
    #[test]
    fn the_processor_does_what_the_portable_rows_do(
        numbers in uniform32(any::<u16>()),
        others in uniform32(any::<u16>()),
        equal in any::<u32>(),
        bytes in uniform32(any::<u8>()),
    ) {
        let numbers = [numbers, Portable.select(equal, numbers, others)];
        let expected = results(Portable, numbers, &bytes);
        if let Some(avx2) = Avx2::detect() {
            prop_assert_eq!(&results(avx2, numbers, &bytes), &expected);
        }
        if let Some(avx512) = Avx512::detect() {
            prop_assert_eq!(&results(avx512, numbers, &bytes), &expected);
        }
    }
}

#[test]
fn operations_by_hand() {
    let mut numbers = [[7; WIDTH], [7; WIDTH]];
    numbers[0][0] = 40_000;
    numbers[1][31] = 65_535;
    let mut bytes = [0; WIDTH];
    bytes[1] = 255;
    let (rows, lists) = results(Portable, numbers, &bytes);
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
        (40_000, 7, 65_535),
    ];
    assert_eq!(ends, expected);
    let all_equal = vec![[7, 7]; 30];
    let places = |places: &[u16]| {
        places
            .iter()
            .map(|at| [*at, numbers[0][usize::from(*at)]])
            .collect::<Vec<_>>()
    };
    let between: Vec<u16> = (1..31).collect();
    for (list, expected) in lists.iter().zip([&between[..], &[0], &[31], &[], &between]) {
        assert_eq!(*list, [places(expected), all_equal.clone()].concat());
    }
}
