//! How complex a series of log-probabilities is: two of CAMIA's signals.

/// Edges between the lowest log-probability and 0.
const EDGES: u32 = 100;

/// Words of the parse of Lempel and Ziv (1978) over the number of values.
///
/// A value becomes the number of edges below it, of 100 at equal distances from the lowest value to
/// 0; then the symbol `i` where that number is above `i` and not above `i + 1` parts of the highest
/// such number, cut into `bins` equal parts. The parse goes on from the left as long as what it has
/// read since the last word is known; a word that the end cuts short does not count. A value above
/// 0 counts as 0. `None` where there is no value, or one is not finite; or without bins.
pub fn lempel_ziv_complexity(logprobs: &[f64], bins: u32) -> Option<f64> {
    let lowest = lowest(logprobs)?.min(0.0);
    let step = -lowest / f64::from(EDGES - 1);
    let last = std::iter::once(0.0);
    let edges = (0..EDGES - 1).map(|edge| f64::from(edge) * step + lowest);
    let edges: Vec<f64> = edges.chain(last).collect();
    let level = |value: &f64| edges.partition_point(|edge| *edge < value.min(0.0)) as u64;
    let levels = logprobs.iter().map(level);
    let highest = levels.clone().max()?;
    let ends = levels.map(|level| (level * u64::from(bins)).div_ceil(highest.max(1)));
    let symbols = ends.map(|end| end.saturating_sub(1));
    (bins > 0).then(|| words(symbols) as f64 / logprobs.len() as f64)
}

/// Words of a series of symbols: each is the longest one known before, and one symbol more.
fn words(symbols: impl Iterator<Item = u64>) -> usize {
    let mut known = hashbrown::HashMap::new(); // a word's number, by that of its start and its end
    let mut word = 0;
    for symbol in symbols {
        let new = known.len() + 1;
        let number = *known.entry((word, symbol)).or_insert(new);
        word = if number == new { 0 } else { number };
    }
    known.len()
}

/// Approximate entropy with templates of `m` and `m + 1` values, in nats.
///
/// `|phi(m) - phi(m + 1)|`; `phi(m)` is the mean over templates of the log of the share of templates,
/// itself among them, of which no value is farther away than `r` times the standard deviation of
/// all values. `None` where there are `m + 1` values or fewer, or one is not finite.
pub fn approximate_entropy(values: &[f64], m: usize, r: f64) -> Option<f64> {
    lowest(values)?;
    if values.len() <= m + 1 {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    let tolerance = r * (squares.sum::<f64>() / n).sqrt();
    let [short, long] = alike(values, m, tolerance).map(|counts| {
        let n = counts.len() as f64;
        let shares = counts.iter().map(|count| (f64::from(*count) / n).ln());
        shares.sum::<f64>() / n
    });
    Some((short - long).abs())
}

/// How many templates are like each of `m` values, and like each of `m + 1`, itself among them.
fn alike(values: &[f64], m: usize, tolerance: f64) -> [Vec<u32>; 2] {
    let mut counts = [m, m + 1].map(|length| vec![1; values.len() + 1 - length]);
    for lag in 1..values.len() {
        let mut run = 0;
        for (end, (one, other)) in (1..).zip(values.iter().zip(values.iter().skip(lag))) {
            run = (run + 1) * usize::from((one - other).abs() <= tolerance);
            for (length, counts) in (m..).zip(&mut counts) {
                if run >= length {
                    let start = end - length;
                    for template in [start, start + lag] {
                        if let Some(count) = counts.get_mut(template) {
                            *count += 1;
                        }
                    }
                }
            }
        }
    }
    counts
}

/// The lowest value; `None` where there is none, or one is not finite.
fn lowest(values: &[f64]) -> Option<f64> {
    let finite = values.iter().all(|value| value.is_finite());
    let lowest = values.iter().copied().reduce(f64::min);
    lowest.filter(|_| finite)
}

#[cfg(test)]
mod tests {
    use super::{approximate_entropy, lempel_ziv_complexity, words};

    #[test]
    fn words_are_the_longest_known_and_one_symbol_more() {
        assert_eq!(words([1, 0, 0, 1, 1, 1].into_iter()), 4); // 1, 0, 01, 11
        assert_eq!(words([1, 0, 0, 1, 1, 1, 0].into_iter()), 4); // and a 0 that is known
        assert_eq!(words([0; 11].into_iter()), 4); // 0, 00, 000, 0000, and one 0 left
        assert_eq!(words([0; 0].into_iter()), 0);
    }

    #[test]
    fn levels_are_cut_into_equal_parts_of_the_highest() {
        // Levels 0, 33, 34, 66, 67, 99; of three parts of 99 that is 0, 0, 1, 1, 2, 2.
        let logprobs = [-99.0, -66.0, -65.5, -33.0, -32.5, 0.0];
        assert_eq!(lempel_ziv_complexity(&logprobs, 3), Some(4.0 / 6.0)); // 0, 01, 1, 2 and a 2
        // Of five, 19.8 each: 0, 1, 1, 3, 3, 4, which are 0, 1, 13, 3, 4.
        assert_eq!(lempel_ziv_complexity(&logprobs, 5), Some(5.0 / 6.0));
    }

    #[test]
    fn equal_values_are_one_symbol_and_have_no_entropy() {
        for value in [-2.5, -0.1, 0.0, 1e-9] {
            let equal = [value; 11];
            assert_eq!(lempel_ziv_complexity(&equal, 4), Some(4.0 / 11.0));
            assert_eq!(approximate_entropy(&equal, 8, 0.8), Some(0.0));
        }
    }

    #[test]
    fn entropy_by_hand() {
        // The deviation is less than 1, so alike is equal: of 0, 1, 0, 0 three are, of 01, 10, 00 none.
        let values = [0.0, -1.0, 0.0, 0.0];
        let one = (3.0 * 0.75_f64.ln() + 0.25_f64.ln()) / 4.0;
        let two = (1.0_f64 / 3.0).ln();
        let found = approximate_entropy(&values, 1, 0.8).unwrap();
        assert!((found - (one - two)).abs() < 1e-15);
        assert_eq!(approximate_entropy(&values[..2], 1, 0.8), None);
        assert_eq!(approximate_entropy(&values, 3, 0.8), None);
    }

    #[test]
    fn what_is_just_as_far_away_is_alike() {
        let values = [0.0, -1.0, -1.0, 0.0, -1.0, 0.0]; // the deviation is 0.5
        assert_eq!(approximate_entropy(&values, 2, 2.0), Some(0.0));
        assert_ne!(approximate_entropy(&values, 2, 1.999), Some(0.0));
    }

    #[test]
    fn what_is_not_finite_gives_nothing() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let values = [[-1.0; 10], [bad; 10]].concat();
            assert_eq!(lempel_ziv_complexity(&values, 3), None);
            assert_eq!(approximate_entropy(&values, 2, 0.8), None);
        }
        assert_eq!(lempel_ziv_complexity(&[], 3), None);
        assert_eq!(approximate_entropy(&[], 2, 0.8), None);
        assert_eq!(lempel_ziv_complexity(&[-1.0], 0), None);
    }
}
