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

/// How a text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Place by place.
    Simple,
    /// With a table of all matches.
    Table,
}

/// Texts one after the other, of which some go both ways.
#[derive(Default)]
pub(super) struct Race {
    /// Texts since the race began.
    n_texts: u32,
    /// How many of those that were timed took less time with a table.
    n_won: u32,
}

impl Race {
    /// Reads the next text.
    #[inline]
    pub(super) fn run<R>(&mut self, mut read: impl FnMut(Path) -> R) -> R {
        if self.n_texts == PERIOD {
            *self = Self::default();
        }
        self.n_texts += 1;
        if self.n_texts > N_WARMING + N_TIMED {
            return read(self.winner());
        }
        let (times, result) = time_both(self.n_texts, read);
        self.record(times);
        result
    }

    fn winner(&self) -> Path {
        if self.n_won > N_TIMED / 2 {
            Path::Table
        } else {
            Path::Simple
        }
    }

    fn record(&mut self, [simple, table]: [Duration; 2]) {
        self.n_won += u32::from(self.n_texts > N_WARMING && table < simple);
    }
}

/// Reads a text both ways, not always the same one first: it readies the processor for the other.
/// Where nothing is to be had from a table, it is second once less, and loses.
#[inline(never)]
fn time_both<R>(text: u32, mut read: impl FnMut(Path) -> R) -> ([Duration; 2], R) {
    let mut time = |path| {
        let start = Instant::now();
        let result = read(path);
        (start.elapsed(), result)
    };
    if text % 2 == 1 {
        let (table, _) = time(Path::Table);
        let (simple, result) = time(Path::Simple);
        ([simple, table], result)
    } else {
        let (simple, _) = time(Path::Simple);
        let (table, result) = time(Path::Table);
        ([simple, table], result)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{N_TIMED, N_WARMING, PERIOD, Path, Race, time_both};

    /// The path after a race in which a table won so many of the timed texts, and each text before.
    fn winner_of(n_won: u32) -> Path {
        let mut race = Race::default();
        for text in 1..=N_WARMING + N_TIMED {
            race.n_texts = text;
            let is_won = text <= N_WARMING + n_won;
            race.record([is_won, !is_won].map(|is| Duration::from_nanos(is.into())));
        }
        race.winner()
    }

    #[test]
    fn more_than_half_of_the_timed_texts_are_a_win() {
        let paths = [0, 7, 8, 15].map(winner_of);
        assert_eq!(paths[..2], [Path::Simple; 2]);
        assert_eq!(paths[2..], [Path::Table; 2]);
    }

    #[test]
    fn the_first_texts_of_each_period_go_both_ways() {
        let mut race = Race::default();
        for _ in 0..2 {
            let reads: Vec<_> = (0..PERIOD)
                .map(|_| {
                    let mut n_reads = 0;
                    race.run(|_| n_reads += 1);
                    n_reads
                })
                .collect();
            let (both, one) = reads.split_at((N_WARMING + N_TIMED) as usize);
            assert!(both.iter().all(|reads| *reads == 2));
            assert!(one.iter().all(|reads| *reads == 1));
        }
    }

    #[test]
    fn each_way_is_the_first_one_of_every_second_text() {
        let firsts = [1, 2, 3, 4].map(|text| {
            let mut paths = Vec::new();
            time_both(text, |path| paths.push(path));
            assert_eq!(paths.len(), 2);
            assert_ne!(paths[0], paths[1]);
            paths[0]
        });
        assert_eq!(firsts, [Path::Table, Path::Simple].repeat(2)[..]);
    }
}
