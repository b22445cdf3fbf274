//! What every group of numbers is computed from, and how.

use std::ops::Range;

use crate::automaton::{Automaton, Match};
use crate::error::KernelError;
use crate::numbers::UNKNOWN;
use crate::vocabulary::Vocabulary;
use crate::words::WordRule;

/// A number of a pair; `None` where it is undefined.
pub(crate) type Number = Option<u32>;

/// What the kernels need to know of the words.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// Their numbers in the reference's vocabulary.
    pub(crate) numbers: bool,
    /// The longest runs of them that the reference has.
    pub(crate) runs: bool,
    /// Their letters.
    pub(crate) letters: bool,
}

/// One side of many pairs, read once.
#[derive(Default)]
pub(crate) struct Reference {
    text: Option<String>,
    pub(crate) vocabulary: Vocabulary,
    /// Its words, by their numbers in the vocabulary.
    pub(crate) words: Vec<u32>,
    /// Every run of its words; empty if nobody asked for it.
    pub(crate) automaton: Automaton,
}

impl Reference {
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Reads `text` and says whether it differs from the text before.
    pub(crate) fn read(&mut self, text: &str, rule: WordRule, needs: Needs) -> bool {
        if self.text.as_deref() == Some(text) {
            return false;
        }
        text.clone_into(self.text.get_or_insert_default());
        self.vocabulary.clear();
        self.words.clear();
        let spelled = rule.spell(text);
        rule.place_words(&spelled, |place| {
            let number = self.vocabulary.intern(spelled.as_bytes(), place);
            self.words.push(number);
        });
        if needs.runs {
            self.automaton.read(self.words.iter().copied());
        }
        true
    }
}

/// The words of one candidate.
#[derive(Default)]
pub(crate) struct Candidate {
    /// Their numbers in the reference's vocabulary, or [`UNKNOWN`].
    words: Vec<u32>,
    /// Which of them have a number; empty if nobody asked for it.
    known: Vec<usize>,
    /// The longest run of words that ends at each of them and that the reference has; empty if
    /// nobody asked for it.
    matches: Vec<Match>,
    /// Where each word stands in the text as it is spelled.
    places: Vec<Range<usize>>,
    /// If anybody asked for their letters.
    joined: Joined,
}

impl Candidate {
    pub(crate) fn read(
        &mut self,
        text: &str,
        rule: WordRule,
        reference: &mut Reference,
        needs: Needs,
    ) {
        self.words.clear();
        self.places.clear();
        let spelled = rule.spell(text);
        rule.place_words(&spelled, |place| self.places.push(place));
        if needs.numbers {
            let vocabulary = &mut reference.vocabulary;
            let numbers = self.places.iter().cloned();
            let numbers = numbers.map(|place| vocabulary.get(spelled.as_bytes(), place));
            self.words.extend(numbers);
            find_known(&self.words, &mut self.known);
        }
        self.words.resize(self.places.len(), UNKNOWN);
        if needs.letters {
            self.joined.read(spelled.as_bytes(), &self.places);
        }
        if needs.runs {
            reference.automaton.matches(&self.words, &mut self.matches);
        }
    }

    pub(crate) fn n_words(&self) -> usize {
        self.words.len()
    }

    /// Its first `n_words` words, of which `n_old` have been seen; `text` is where it stands.
    pub(crate) fn cut<'a>(
        &'a self,
        text: &'a str,
        rule: WordRule,
        n_old: usize,
        n_words: usize,
    ) -> Cut<'a> {
        let end = if n_words < self.words.len() {
            rule.end_of_words(text, n_words)
        } else {
            text.len()
        };
        let [first, end_known] =
            [n_old, n_words].map(|word| self.known.partition_point(|&known| known < word));
        Cut {
            words: self.words.get(..n_words).unwrap_or_default(),
            new_known: self.known.get(first..end_known).unwrap_or_default(),
            matches: self.matches.get(..n_words).unwrap_or_default(),
            n_old,
            joined: &self.joined,
            text: text.get(..end).unwrap_or_default(),
        }
    }
}

/// Lists the places of words that have a number: without a branch, because which have one is as
/// good as random.
#[expect(
    clippy::indexing_slicing,
    reason = "no more are listed than there are words"
)]
fn find_known(words: &[u32], known: &mut Vec<usize>) {
    known.resize(words.len(), 0);
    let mut n_known = 0;
    for (at, &word) in words.iter().enumerate() {
        known[n_known] = at;
        n_known += usize::from(word != UNKNOWN);
    }
    known.truncate(n_known);
}

/// Words joined by single spaces.
#[derive(Default)]
struct Joined {
    letters: Vec<u8>,
    /// Where each word ends in them.
    ends: Vec<usize>,
}

impl Joined {
    /// Takes words from their places in `text`: at once those that stand there so.
    fn read(&mut self, text: &[u8], places: &[Range<usize>]) {
        self.letters.clear();
        self.ends.clear();
        let mut piece = 0..0;
        let mut end = 0;
        for place in places {
            if self.ends.is_empty() {
                piece.start = place.start;
            } else {
                let after_space = text.get(piece.end..place.start) == Some(b" ");
                if !after_space {
                    self.letters.extend(text.get(piece).unwrap_or_default());
                    self.letters.push(b' ');
                    piece = place.clone();
                }
                end += 1;
            }
            piece.end = place.end;
            end += place.len();
            self.ends.push(end);
        }
        self.letters.extend(text.get(piece).unwrap_or_default());
    }

    /// The first `n_words` words.
    fn words(&self, n_words: usize) -> &[u8] {
        let end = self.ends.get(..n_words).and_then(<[usize]>::last);
        self.letters.get(..*end.unwrap_or(&0)).unwrap_or_default()
    }
}

/// A candidate from its start to the end of some word.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// Its words, by their numbers in the reference's vocabulary, or [`UNKNOWN`].
    pub(crate) words: &'a [u32],
    new_known: &'a [usize],
    /// The longest run of words that ends at each of them and that the reference has.
    pub(crate) matches: &'a [Match],
    /// How many of them the kernels have seen since the candidate's start.
    n_old: usize,
    /// All words of the candidate.
    joined: &'a Joined,
    /// Its text; to the very end if no word was cut.
    pub(crate) text: &'a str,
}

impl<'a> Cut<'a> {
    /// Its words joined by single spaces.
    pub(crate) fn joined(self) -> &'a [u8] {
        self.joined.words(self.words.len())
    }

    /// The words that the reference has and the kernels have not seen, with their places.
    #[expect(clippy::indexing_slicing, reason = "they are places of words")]
    pub(crate) fn new_known(self) -> impl Iterator<Item = (usize, u32)> {
        self.new_known.iter().map(move |&at| (at, self.words[at]))
    }

    /// Where the words that the kernels have not seen stand among the [joined](Self::joined).
    pub(crate) fn new_places(self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.joined.ends.get(..self.words.len());
        let (old, new) = ends.unwrap_or_default().split_at(self.n_old);
        let mut start = old.last().map_or(0, |end| end + 1);
        new.iter().map(move |&end| {
            let place = start..end;
            start = end + 1;
            place
        })
    }

    /// The matches that the kernels have not seen.
    pub(crate) fn new_matches(self) -> &'a [Match] {
        self.matches.get(self.n_old..).unwrap_or_default()
    }
}

/// Computes one group of numbers.
pub(crate) trait Kernel {
    /// Fields of [`numbers`](Self::numbers), in order.
    fn fields(&self) -> Vec<String>;

    /// Fields of [`reference_numbers`](Self::reference_numbers), in order.
    fn reference_fields(&self) -> Vec<String> {
        Vec::new()
    }

    /// Forgets the last reference and reads another.
    fn read_reference(&mut self, _: &Reference) {}

    /// Prepares for a new candidate.
    fn start(&mut self, _: &Reference) {}

    /// Appends the numbers of a candidate that has grown to `cut`.
    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError>;

    /// Appends the numbers of the reference alone.
    fn reference_numbers(&self, _: &Reference, _: &mut Vec<Number>) {}
}
