//! One side of many pairs, read once.

use crate::automaton::Automaton;
use crate::filter::Filter;
use crate::places::Places;
use crate::vocabulary::Vocabulary;
use crate::words::WordRule;

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
    places: Places,
    pub(crate) vocabulary: Vocabulary,
    /// Its words, by their numbers in the vocabulary.
    pub(crate) words: Vec<u32>,
    /// Tells most words that the vocabulary lacks; empty if nobody asked for numbers.
    pub(crate) filter: Filter,
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
        rule.place_words(&spelled, &mut self.places);
        for &place in self.places.as_slice() {
            let number = self.vocabulary.intern(spelled.as_bytes(), place);
            self.words.push(number);
        }
        if needs.numbers {
            self.filter.read(spelled.as_bytes(), self.places.as_slice());
        }
        if needs.runs {
            self.automaton.read(self.words.iter().copied());
        }
        true
    }
}
