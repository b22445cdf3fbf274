//! Which path for short texts is the faster one.
//!
//! A table of all matches saves branches that nobody can predict, and costs loads and stores.
//! Which is more depends on the processor, on whether another thread shares its core, and on the
//! texts: what took less time on a Zen 5 took half as long again on a Zen 3, and on a Zen 5 more
//! than the other path while both threads of a core were busy. So now and then some texts go both
//! ways, and until the next time the rest goes the faster one.

use std::time::{Duration, Instant};

/// The first texts of a race find memory and branches unready.
const N_WARMING: u32 = 4;
/// Others may use the processor during some texts.
const N_TIMED: u32 = 15;
/// Texts from one race to the next, so that all races take less than half a percent.
const PERIOD: u32 = 8192;

/// Texts one after the other, of which some go both ways.
#[derive(Default)]
pub(super) struct Race {
    /// Texts since the race began.
    n_texts: u32,
    /// How much less time each of those that were timed took with a table, as a share of the time
    /// without one; all together.
    gain: f64,
}

impl Race {
    /// Reads the next text with `paths`. `table` gives nothing if a table does not suit it.
    #[inline]
    pub(super) fn run<P, R>(
        &mut self,
        paths: &mut P,
        simple: impl FnOnce(&mut P) -> R,
        table: impl FnOnce(&mut P) -> Option<R>,
    ) -> R {
        if self.n_texts == PERIOD {
            *self = Self::default();
        }
        self.n_texts += 1;
        if self.n_texts > N_WARMING + N_TIMED {
            let result = (self.gain > 0.0).then(|| table(paths)).flatten();
            return result.unwrap_or_else(|| simple(paths));
        }
        // Not always the same one first: it readies the processor for the other.
        let (simple, table) = if self.n_texts % 2 == 1 {
            let table = time(|| table(paths));
            (time(|| simple(paths)), table)
        } else {
            (time(|| simple(paths)), time(|| table(paths)))
        };
        self.record(simple.time, table.time, table.result.is_some());
        simple.result
    }

    fn record(&mut self, simple: Duration, table: Duration, is_read: bool) {
        if self.n_texts > N_WARMING {
            self.gain += gain(simple, table, is_read);
        }
    }
}

struct Timed<R> {
    time: Duration,
    result: R,
}

#[inline(never)]
fn time<R>(read: impl FnOnce() -> R) -> Timed<R> {
    let start = Instant::now();
    let result = read();
    Timed {
        time: start.elapsed(),
        result,
    }
}

/// What a table saved of the time without one, or what was lost where it did not suit the text. At
/// least -1, so that no text that was interrupted outweighs all others.
fn gain(simple: Duration, table: Duration, is_read: bool) -> f64 {
    let share = table.div_duration_f64(simple.max(Duration::from_nanos(1)));
    let gain = if is_read { 1.0 - share } else { -share };
    gain.max(-1.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{N_TIMED, N_WARMING, PERIOD, Race, gain};

    fn gain_of([simple, table]: [u64; 2], is_read: bool) -> f64 {
        let [simple, table] = [simple, table].map(Duration::from_nanos);
        gain(simple, table, is_read)
    }

    /// Which ways the next texts go.
    fn ways(race: &mut Race, n_texts: u32, is_suited: bool) -> Vec<String> {
        let way = |_| {
            let mut way = String::new();
            race.run(
                &mut way,
                |way| way.push_str("simple "),
                |way| {
                    way.push_str("table ");
                    is_suited.then_some(())
                },
            );
            way
        };
        (0..n_texts).map(way).collect()
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "shares that floats hold exactly")]
    fn a_text_counts_by_its_share_of_the_time() {
        assert_eq!(gain_of([2000, 1500], true), 0.25);
        assert_eq!(gain_of([2000, 1500], false), -0.75);
        assert_eq!(gain_of([2000, 3500], true), -0.75);
        assert_eq!(gain_of([2000, 2_000_000], true), -1.0);
        assert_eq!(gain_of([2000, 0], true), 1.0);
        assert_eq!(gain_of([0, 0], true), 1.0);
        assert_eq!(gain_of([0, 2000], false), -1.0);
    }

    /// A race of texts that took so many nanoseconds, `others` those that a table did not suit.
    fn raced(times: [u64; 2], n_others: u32, others: [u64; 2]) -> Race {
        let mut race = Race::default();
        for text in 1..=N_WARMING + N_TIMED {
            race.n_texts = text;
            let is_read = text + n_others <= N_WARMING + N_TIMED;
            let [simple, table] = if is_read { times } else { others }.map(Duration::from_nanos);
            race.record(simple, table, is_read);
        }
        race
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "shares that floats hold exactly")]
    fn all_texts_but_the_first_four_count() {
        assert_eq!(raced([2000, 1500], 0, [0, 0]).gain, 15.0 * 0.25);
        assert_eq!(raced([2000, 2500], 0, [0, 0]).gain, 15.0 * -0.25);
    }

    #[test]
    fn the_rest_of_a_period_goes_the_faster_way() {
        for (mut race, is_suited, expected) in [
            (raced([27, 23], 0, [0, 0]), true, "table "),
            (raced([27, 23], 0, [0, 0]), false, "table simple "),
            (raced([23, 27], 0, [0, 0]), true, "simple "),
            (raced([27, 23], 2, [48, 36]), true, "table "),
            (raced([27, 23], 3, [48, 36]), true, "simple "),
        ] {
            let ways = ways(&mut race, PERIOD - N_WARMING - N_TIMED, is_suited);
            assert!(ways.iter().all(|way| way == expected), "{expected}");
        }
    }

    #[test]
    fn the_first_texts_of_each_period_go_both_ways() {
        let mut race = Race::default();
        for _ in 0..2 {
            let ways = ways(&mut race, PERIOD, true);
            let (both, one) = ways.split_at((N_WARMING + N_TIMED) as usize);
            for (way, both) in both
                .iter()
                .zip(["table simple ", "simple table "].iter().cycle())
            {
                assert_eq!(way, both);
            }
            assert!(one.iter().all(|way| *way == one[0]));
        }
    }
}
