//! The side of a pair that is counted word by word.

use std::borrow::Cow;

use crate::automaton::Match;
use crate::joined::Joined;
use crate::limits::number;
use crate::numbers::UNKNOWN;
use crate::places::{Place, Places};
use crate::reference::{Needs, Reference};
use crate::words::WordRule;

/// A word that the reference has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The words of the candidate before it.
    pub(crate) at: u32,
    /// Its number in the reference's vocabulary.
    pub(crate) word: u32,
}

/// The words of one candidate.
#[derive(Default)]
pub(crate) struct Candidate {
    /// The text as it is spelled, if that is not as it stands.
    spelled: Option<String>,
    /// Where each word stands in the text as it is spelled.
    places: Places,
    /// Those of them that the reference has; empty if nobody asked for their numbers.
    known: Vec<Known>,
    /// The numbers of all in the reference's vocabulary, or [`UNKNOWN`]; empty if nobody asked
    /// for runs.
    words: Vec<u32>,
    /// The longest run of words that ends at each of them and that the reference has; empty if
    /// nobody asked for runs.
    matches: Vec<Match>,
    /// If anybody asked for their letters.
    joined: Joined,
}

impl Candidate {
    pub(crate) fn read(&mut self, text: &str, rule: WordRule, reference: &Reference, needs: Needs) {
        self.spelled = match rule.spell(text) {
            Cow::Borrowed(_) => None,
            Cow::Owned(spelled) => Some(spelled),
        };
        let spelled = self.spelled.as_deref().unwrap_or(text);
        rule.place_words(spelled, &mut self.places);
        let places = self.places.as_slice();
        if needs.numbers {
            look_up(spelled.as_bytes(), places, reference, &mut self.known);
        }
        if needs.letters {
            self.joined.read(spelled.as_bytes(), rule, places);
        }
        if needs.runs {
            fill_in(&mut self.words, places.len(), &self.known);
            reference.automaton.matches(&self.words, &mut self.matches);
        }
    }

    pub(crate) fn n_words(&self) -> usize {
        self.places.as_slice().len()
    }

    /// Its first `n_words` words, of which `n_old` have been seen; `text` is where it stands.
    pub(crate) fn cut<'a>(
        &'a self,
        text: &'a str,
        rule: WordRule,
        n_old: usize,
        n_words: usize,
    ) -> Cut<'a> {
        let [first, end_known] =
            [n_old, n_words].map(|n| self.known.partition_point(|known| (known.at as usize) < n));
        Cut {
            words: self.words.get(..n_words).unwrap_or_default(),
            new_known: self.known.get(first..end_known).unwrap_or_default(),
            matches: self.matches.get(..n_words).unwrap_or_default(),
            places: self.places.as_slice().get(..n_words).unwrap_or_default(),
            n_old,
            candidate: self,
            text,
            rule,
        }
    }
}

/// Lists the words that have a number: first those that may have one, and without a branch,
/// because which have one is as good as random.
///
/// A function of its own, because then what it looks up stays in registers.
#[expect(
    clippy::indexing_slicing,
    reason = "no more are listed than there are words"
)]
#[inline(never)]
fn look_up(text: &[u8], places: &[Place], reference: &Reference, known: &mut Vec<Known>) {
    known.resize(places.len(), Known::default());
    let list = known.as_mut_slice();
    let mut n_possible = 0;
    for (at, &place) in places.iter().enumerate() {
        list[n_possible].at = number(at);
        n_possible += usize::from(reference.filter.may_have(text, place));
    }
    let mut n_known = 0;
    for possible in 0..n_possible {
        let at = list[possible].at;
        let word = reference.vocabulary.get(text, places[at as usize]);
        list[n_known] = Known { at, word };
        n_known += usize::from(word != UNKNOWN);
    }
    known.truncate(n_known);
}

/// Lists all words.
fn fill_in(words: &mut Vec<u32>, n_words: usize, known: &[Known]) {
    words.clear();
    words.resize(n_words, UNKNOWN);
    for &Known { at, word } in known {
        if let Some(place) = words.get_mut(at as usize) {
            *place = word;
        }
    }
}

/// A candidate from its start to the end of some word.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// Its words, by their numbers in the reference's vocabulary, or [`UNKNOWN`]; empty if nobody
    /// asked for runs.
    pub(crate) words: &'a [u32],
    /// The words that the reference has and the kernels have not seen.
    pub(crate) new_known: &'a [Known],
    /// The longest run of words that ends at each of them and that the reference has; empty if
    /// nobody asked for runs.
    pub(crate) matches: &'a [Match],
    /// Where its words stand in the text as it is spelled.
    places: &'a [Place],
    /// How many of them the kernels have seen since the candidate's start.
    n_old: usize,
    /// All of it.
    candidate: &'a Candidate,
    text: &'a str,
    rule: WordRule,
}

impl<'a> Cut<'a> {
    /// Its words joined by single spaces.
    pub(crate) fn joined(self) -> &'a [u8] {
        self.candidate.joined.words(self.spelled(), self.places)
    }

    /// The text in which its words have their places.
    pub(crate) fn spelled(self) -> &'a [u8] {
        self.candidate
            .spelled
            .as_deref()
            .unwrap_or(self.text)
            .as_bytes()
    }

    /// Its text; to the very end if no word was cut.
    pub(crate) fn text(self) -> &'a str {
        let n_words = self.places.len();
        if n_words == self.candidate.n_words() {
            return self.text;
        }
        let end = self.rule.end_of_words(self.text, n_words);
        self.text.get(..end).unwrap_or_default()
    }

    /// Where the words that the kernels have not seen stand in the text as it is spelled.
    pub(crate) fn new_places(self) -> &'a [Place] {
        self.places.get(self.n_old..).unwrap_or_default()
    }

    /// The matches that the kernels have not seen.
    pub(crate) fn new_matches(self) -> &'a [Match] {
        self.matches.get(self.n_old..).unwrap_or_default()
    }
}
