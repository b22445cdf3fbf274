//! The longest run of characters that two texts have.
//!
//! The automaton of the reference would find it alone, but a step in it costs more than all
//! else that is done for a character. So a table of hashed runs of a few characters says
//! first where a longer one may be; where there is none, the whole candidate is read again.

use crate::automaton::{Automaton, Match};
use crate::longest_run::LongestRun;

/// Characters of the runs in the table.
const N: usize = 6;

/// Bits of the table, as a power of two.
const BITS: u32 = 15;

/// Finds the longest run of characters of a candidate and its reference.
#[derive(Default)]
pub(crate) struct CharacterRuns {
    automaton: Automaton,
    /// Bit by bit, whether a run of `N` characters with that hash is in the reference.
    table: Vec<u64>,
    window: Window,
    /// The match at the last character, if the table had the run that ends there.
    last: Option<Match>,
    longest: LongestRun,
    /// Bytes of the candidate that were read.
    n_read: usize,
}

impl CharacterRuns {
    /// Forgets the last reference and reads another.
    pub(crate) fn read_reference(&mut self, text: &str) {
        self.automaton.read(text.chars().map(u32::from));
        self.table.clear();
        self.table.resize((1 << BITS) / 64, 0);
        let mut window = Window::default();
        for character in text.chars() {
            let (limb, bit) = window.push(character);
            if let Some(limb) = self.table.get_mut(limb) {
                *limb |= bit;
            }
        }
    }

    /// Prepares for a new candidate.
    pub(crate) fn start(&mut self) {
        self.window = Window::default();
        self.last = None;
        self.longest = LongestRun::default();
        self.n_read = 0;
    }

    /// The longest run of a candidate that has grown to `text`.
    pub(crate) fn longest(&mut self, text: &str) -> LongestRun {
        let new = text.get(self.n_read..).unwrap_or_default();
        let mut end = self.n_read;
        for character in new.chars() {
            end += character.len_utf8();
            let (limb, bit) = self.window.push(character);
            let in_table = self.table.get(limb).is_some_and(|limb| limb & bit != 0);
            self.last = in_table.then(|| match self.last {
                Some(last) => self.automaton.follow(last, character.into()),
                None => self.start_run(text.get(..end).unwrap_or_default()),
            });
            if let Some(run) = self.last.filter(|run| run.length as usize >= N) {
                self.longest.push(run, &self.automaton);
            }
        }
        self.n_read = end;
        if self.longest.length > 0 {
            self.longest
        } else {
            self.longest_by_automaton(text)
        }
    }

    /// The match at the end of `text`. The character before the last ends no run of `N`, so
    /// the last ends none of more.
    fn start_run(&mut self, text: &str) -> Match {
        let last = text.char_indices().rev().take(N).last();
        let run = last.and_then(|(start, _)| text.get(start..));
        let characters = run.unwrap_or_default().chars();
        characters.fold(Match::default(), |run, character| {
            self.automaton.follow(run, character.into())
        })
    }

    fn longest_by_automaton(&mut self, text: &str) -> LongestRun {
        let mut longest = LongestRun::default();
        let mut last = Match::default();
        for character in text.chars() {
            last = self.automaton.follow(last, character.into());
            longest.push(last, &self.automaton);
        }
        longest
    }
}

/// The last `N` characters of a text, one byte of each.
#[derive(Default)]
struct Window(u64);

impl Window {
    /// Takes the next character and gives the place of the run in the table.
    fn push(&mut self, character: char) -> (usize, u64) {
        const MASK: u64 = (1 << (8 * N)) - 1;
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio
        self.0 = ((self.0 << 8) | u64::from(u32::from(character) & 0xff)) & MASK;
        let hash = self.0.wrapping_mul(FACTOR) >> (u64::BITS - BITS);
        ((hash / 64) as usize, 1 << (hash % 64))
    }
}
