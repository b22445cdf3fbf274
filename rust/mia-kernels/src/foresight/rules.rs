//! Rules of counting on from earlier values, and of changing a word as another was changed.

use super::tokens::{Kind, NUMBER, modulus};

const MOST_PRIME: i128 = 1_000_000; // a larger one would take too long to find

/// How a value follows from those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Counting {
    Same,
    OneMore,
    OneLess,
    NextPrime,
    EqualDifferences,
    NearlyEqualDifferences,
    Sum,
    Product,
    BeginsAnew,
    EqualRatios,
    GrowingRatios,
    SecondDifferences,
    ThirdDifferences,
}

/// Calls `judge` with each rule that applies and whether it guesses `value` after a column of
/// earlier values, whose last is first.
pub(super) fn judge_counting(
    column: &[i128],
    kind: Kind,
    value: i128,
    mut judge: impl FnMut(Counting, bool),
) {
    let [last, earlier @ ..] = column else { return };
    let last = *last;
    judge(Counting::Same, value == last);
    judge(Counting::OneMore, value == last + 1);
    judge(Counting::OneLess, value == last - 1);
    if kind == NUMBER && last < MOST_PRIME {
        judge(Counting::NextPrime, value == next_prime(last));
    }
    let [before, earlier @ ..] = earlier else {
        return;
    };
    let before = *before;
    let linear = 2 * last - before;
    judge(Counting::EqualDifferences, value == linear);
    judge(
        Counting::NearlyEqualDifferences,
        (value - linear).abs() <= 1,
    );
    judge(Counting::Sum, value == last + before);
    judge(Counting::Product, Some(value) == last.checked_mul(before));
    if let Some(modulus) = modulus(kind) {
        let place = linear.rem_euclid(modulus);
        judge(
            Counting::BeginsAnew,
            value == place || (place == 0 && value == modulus),
        );
    }
    if let Some(square) = last.checked_mul(last)
        && square.checked_rem(before) == Some(0)
    {
        judge(Counting::EqualRatios, value == square / before);
    }
    if last.checked_rem(before) == Some(0) {
        judge(
            Counting::GrowingRatios,
            Some(value) == last.checked_mul(last / before + 1),
        );
    }
    if let [third, ..] = *earlier {
        judge(
            Counting::SecondDifferences,
            value == 3 * last - 3 * before + third,
        );
    }
    if let [third, fourth, ..] = *earlier {
        judge(
            Counting::ThirdDifferences,
            value == 4 * last - 6 * before + 4 * third - fourth,
        );
    }
}

/// The smallest prime above a number below 1,000,000.
fn next_prime(number: i128) -> i128 {
    let is_prime = |candidate: u32| {
        let mut divisors = (2..).take_while(|divisor| divisor * divisor <= candidate);
        divisors.all(|divisor| !candidate.is_multiple_of(divisor))
    };
    let first = u32::try_from(number).unwrap_or_default().max(1) + 1; // quicker than in 128 bits
    let mut candidates = first..2 * first; // of which one is a prime: Bertrand's postulate
    let prime = candidates.find(|&candidate| is_prime(candidate));
    prime.map_or(0, i128::from)
}

/// What changes between two words: between twenty-one and twenty-two it is one and two.
pub(super) fn edit<'a>(one: &'a [char], other: &'a [char]) -> [&'a [char]; 2] {
    let same = |(one, other): &(&char, &char)| one == other;
    let start = one.iter().zip(other).take_while(same).count();
    let [one, other] = [one, other].map(|word| word.get(start..).unwrap_or_default());
    let ends = one.iter().rev().zip(other.iter().rev());
    let end = ends.take_while(same).count();
    [one, other].map(|word| word.get(..word.len() - end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::Counting::{
        EqualDifferences, EqualRatios, GrowingRatios, NearlyEqualDifferences, NextPrime, OneMore,
        Product, Same, SecondDifferences, Sum, ThirdDifferences,
    };
    use super::*;

    fn hits(column: &[i128], kind: Kind, value: i128) -> Vec<Counting> {
        let mut hits = Vec::new();
        judge_counting(column, kind, value, |rule, hit| {
            hits.extend(hit.then_some(rule));
        });
        hits
    }

    #[test]
    fn each_rule_guesses_by_hand() {
        assert_eq!(hits(&[7], NUMBER, 7), [Same]);
        assert_eq!(hits(&[7], NUMBER, 8), [OneMore]);
        assert_eq!(hits(&[13], NUMBER, 17), [NextPrime]);
        assert_eq!(hits(&[16, 9, 4], NUMBER, 25), [Sum, SecondDifferences]);
        assert_eq!(
            hits(&[16, 9], NUMBER, 23),
            [EqualDifferences, NearlyEqualDifferences]
        );
        assert_eq!(hits(&[8, 4], NUMBER, 16), [EqualRatios]);
        assert_eq!(hits(&[24, 6], NUMBER, 120), [GrowingRatios]);
        assert_eq!(hits(&[64, 27, 8, 1], NUMBER, 125), [ThirdDifferences]);
        assert_eq!(hits(&[3, 4], NUMBER, 12), [Product]);
        // Nothing is divided by 0.
        assert_eq!(hits(&[0, 0], NUMBER, 1), [OneMore, NearlyEqualDifferences]);
    }

    #[test]
    fn words_change_in_their_middle() {
        let letters = |word: &str| word.chars().collect::<Vec<_>>();
        let (one, other) = (letters("einundzwanzig"), letters("zweiundzwanzig"));
        assert_eq!(
            edit(&one, &other),
            [&letters("ein")[..], &letters("zwei")[..]]
        );
        assert_eq!(edit(&letters("aa"), &letters("aaa")), [&[][..], &['a'][..]]);
    }
}
