//! Stretches of a text that repeat themselves, as those of a model caught in a loop.

/// The longest period looked for.
const MAX_PERIOD: usize = 1 << 10;
/// Short periods are taken together up to so many bytes, which wide instructions need.
const MIN_PERIOD: usize = 32;
/// Fewer places are not worth the trouble.
const MIN_PLACES: usize = 64;
/// Bytes compared at once.
const CHUNK: usize = 32;

/// Places whose bytes, and all bytes between, stand one, two and three periods before as well.
///
/// So hashes come again in the same order, and the links of a place differ from those a period
/// before as these do from those two periods before: the last place of the same hash is a period
/// further, and its rank has grown by as many places of this hash as a period has.
pub(super) struct Repeat {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) period: usize,
}

impl Repeat {
    /// Places from `at` on where the text goes on as from `before`; none if that is far away, or
    /// the text soon goes on otherwise.
    #[inline]
    pub(super) fn find(text: &[u8], before: usize, at: usize) -> Option<Self> {
        let period = at - before;
        if !(1..=MAX_PERIOD).contains(&period) {
            return None;
        }
        let n_bytes = common_bytes(text.get(before..)?, text.get(at..)?);
        if n_bytes <= 2 * period {
            return None;
        }
        let wide = period * MIN_PERIOD.div_ceil(period);
        let places = Self {
            start: at + 3 * wide - period,
            end: at + n_bytes - 3,
            period: wide,
        };
        (places.end >= places.start + MIN_PLACES).then_some(places)
    }
}

/// Bytes at the start of both that are the same, or a few less.
#[inline]
fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    let (a, _) = a.as_chunks::<CHUNK>();
    let (b, _) = b.as_chunks();
    CHUNK * a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::Repeat;

    /// Start, end and period of what is found from byte 5000 on, where `n_bytes` are those a
    /// period before.
    fn found(period: usize, n_bytes: usize) -> Option<[usize; 3]> {
        let mut text: Vec<u8> = (0..6000_u32)
            .map(|at| at.wrapping_mul(at).to_be_bytes()[2])
            .collect();
        for at in 5000..5000 + n_bytes {
            text[at] = text[at - period];
        }
        text[5000 + n_bytes] = !text[5000 + n_bytes - period];
        let repeat = Repeat::find(&text, 5000 - period, 5000)?;
        Some([repeat.start, repeat.end, repeat.period])
    }

    #[test]
    fn from_the_third_period_on() {
        assert_eq!(found(50, 320), Some([5100, 5317, 50]));
        assert_eq!(found(50, 351), Some([5100, 5317, 50]), "in steps of 32");
        assert_eq!(found(1024, 900), None);
    }

    #[test]
    fn short_periods_are_taken_together() {
        assert_eq!(found(1, 320), Some([5095, 5317, 32]));
        assert_eq!(found(20, 320), Some([5100, 5317, 40]));
        assert_eq!(found(32, 320), Some([5064, 5317, 32]));
    }

    #[test]
    fn too_few_bytes_and_too_long_periods() {
        assert_eq!(found(50, 192), Some([5100, 5189, 50]));
        assert_eq!(found(50, 191), None);
        assert_eq!(found(300, 700), Some([5600, 5669, 300]));
        assert_eq!(found(1025, 900), None);
        assert!(Repeat::find(&[0; 400], 7, 7).is_none());
    }
}
