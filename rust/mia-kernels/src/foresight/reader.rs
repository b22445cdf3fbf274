//! A reader of tokens, who says of each whether it could be foreseen.

#![expect(
    clippy::indexing_slicing,
    reason = "places are of tokens that were read, and forms of tokens that are known"
)]

use hashbrown::{HashMap, HashSet};

use super::rules::{Counting, edit, judge_counting};
use super::tokens::{Kind, is_number, values_of};
use crate::limits::number;

const RATE: f64 = 0.25; // weight of the last guess in a rule's trust
const TRUSTED: f64 = 0.5;
const N_RECENT: usize = 4; // places of a context that are kept
const LAGS: std::ops::RangeInclusive<usize> = 1..=8;
const EDIT_LAGS: std::ops::RangeInclusive<usize> = 1..=3;

/// The number of a token among those that are known, or one of the next three.
type Form = u32;
const A_NUMBER: Form = Form::MAX; // any
const A_VALUE: Form = Form::MAX - 1; // any word of a series
const NOTHING: Form = Form::MAX - 2; // before the first token

/// How far tokens of a context must be the same.
#[derive(Clone, Copy)]
enum Sameness {
    Exact,
    ButNumbers,
    ButSeries,
}

/// Contexts: how far how many tokens must be the same.
const CONTEXTS: [(Sameness, usize); 10] = [
    (Sameness::Exact, 1),
    (Sameness::Exact, 2),
    (Sameness::Exact, 3),
    (Sameness::Exact, 5),
    (Sameness::ButNumbers, 2),
    (Sameness::ButNumbers, 4),
    (Sameness::ButNumbers, 6),
    (Sameness::ButSeries, 1),
    (Sameness::ButSeries, 2),
    (Sameness::ButSeries, 4),
];
const LONG_CONTEXT: u8 = 3; // of five tokens: it is trusted at once
const POINTER_CONTEXT: u8 = 5; // of four tokens: the text may repeat what stands behind it
const POINTER: u8 = 10;
const FIRST_LAG: u8 = 16;

/// Which context, and its tokens.
type Context = (u8, [Form; 6]);

/// Where a context stood, the last place first.
#[derive(Clone, Copy, Default)]
struct Places {
    places: [usize; N_RECENT],
    n_places: usize,
}

impl Places {
    fn add(&mut self, place: usize) {
        self.places.copy_within(..N_RECENT - 1, 1);
        self.places[0] = place;
        self.n_places = N_RECENT.min(self.n_places + 1);
    }

    fn as_slice(&self) -> &[usize] {
        &self.places[..self.n_places]
    }
}

/// What is known of a token.
struct Token {
    text: Box<[char]>,
    values: Vec<(Kind, i128)>,
    but_numbers: Form,
    but_series: Form,
    is_word: bool,
    may_come_again: bool, // as a name does, unlike a mark
}

impl Token {
    fn new(text: &[char], form: Form) -> Self {
        let values = values_of(text);
        let but_numbers = if is_number(text) { A_NUMBER } else { form };
        let has_series = but_numbers != A_NUMBER && !values.is_empty();
        Self {
            text: text.into(),
            values,
            but_numbers,
            but_series: if has_series { A_VALUE } else { but_numbers },
            is_word: text.first().is_some_and(|each| each.is_alphabetic()),
            may_come_again: text.iter().all(|each| each.is_alphanumeric()),
        }
    }
}

/// How far rules are trusted, at all places and after each token.
#[derive(Default)]
struct Trust {
    of_rules: HashMap<(Rule, Option<Form>), f64>,
    after: Option<Form>,
}

/// What a rule guesses, and by which context or lag.
type Rule = (Guess, u8);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Guess {
    Copy,
    CopyOfLag,
    ValueIsDue,
    Count(Counting, Kind),
    Edit,
}

impl Trust {
    /// Whether a rule that is trusted guessed the token; its trust changes.
    fn judge(&mut self, rule: Rule, hit: bool, at_first: f64) -> bool {
        let mut is_trusted = false;
        for place in [None, self.after] {
            let trust = self.of_rules.entry((rule, place)).or_insert(at_first);
            is_trusted |= *trust >= TRUSTED;
            *trust += RATE * (f64::from(u8::from(hit)) - *trust);
        }
        is_trusted && hit
    }
}

/// Reads a text token by token.
#[derive(Default)]
pub(super) struct Reader {
    forms: HashMap<Box<[char]>, Form>,
    tokens: Vec<Token>, // by their forms
    read: Vec<Form>,
    words: Vec<Form>,
    values: HashMap<Kind, Vec<i128>>, // in order
    contexts: Vec<Context>,           // that the tokens up to now make
    places: HashMap<Context, Places>, // of what followed a context
    trust: Trust,
    edits: HashSet<(usize, [Box<[char]>; 2])>,
    pointer: Option<usize>, // the place that comes next, if the text repeats itself
}

impl Reader {
    /// Takes a token; whether it could be foreseen.
    pub(super) fn read(&mut self, text: &[char]) -> bool {
        let form = self.form_of(text);
        let found = |context: &Context| Some((context.0, *self.places.get(context)?));
        let mut columns: Vec<(u8, Places)> = self.contexts.iter().filter_map(found).collect();
        if let Some(pointer) = self.pointer {
            let mut places = Places::default();
            places.add(pointer);
            columns.push((POINTER, places));
        }
        let last = self.read.last();
        let after = last.map_or(NOTHING, |&last| self.tokens[last as usize].but_series);
        self.trust.after = Some(after);
        let mut is_foreseen = self.is_copied(form, &columns);
        if !self.tokens[form as usize].values.is_empty() {
            is_foreseen |= self.is_counted(form, &columns);
        }
        if self.tokens[form as usize].is_word {
            is_foreseen |= self.is_edited(form);
        }
        self.remember(form);
        is_foreseen
    }

    fn form_of(&mut self, text: &[char]) -> Form {
        if let Some(&form) = self.forms.get(text) {
            return form;
        }
        let form = number(self.tokens.len());
        self.forms.insert(text.into(), form);
        self.tokens.push(Token::new(text, form));
        form
    }

    fn new_contexts(&self) -> Vec<Context> {
        let context = |(name, (same, size)): (u8, (Sameness, usize))| {
            let first = self.read.len().checked_sub(size)?;
            let mut forms = [NOTHING; 6];
            for (slot, &form) in forms.iter_mut().zip(&self.read[first..]) {
                let token = &self.tokens[form as usize];
                *slot = match same {
                    Sameness::Exact => form,
                    Sameness::ButNumbers => token.but_numbers,
                    Sameness::ButSeries => token.but_series,
                };
            }
            Some((name, forms))
        };
        (0..).zip(CONTEXTS).filter_map(context).collect()
    }

    fn is_copied(&mut self, form: Form, columns: &[(u8, Places)]) -> bool {
        let mut is_copied = false;
        for (name, places) in columns {
            let hit = self.read[places.places[0]] == form;
            let at_first = if *name == LONG_CONTEXT { TRUSTED } else { 0.0 };
            is_copied |= self.trust.judge((Guess::Copy, *name), hit, at_first);
        }
        if self.tokens[form as usize].may_come_again {
            for (name, lag) in (0..).zip(LAGS).skip(1) {
                let Some(place) = self.read.len().checked_sub(lag) else {
                    break;
                };
                let hit = self.read[place] == form;
                is_copied |= self.trust.judge((Guess::CopyOfLag, name), hit, 0.0);
            }
        }
        is_copied
    }

    /// Whether it could be foreseen that a value comes, and which.
    fn is_counted(&mut self, form: Form, columns: &[(u8, Places)]) -> bool {
        let Self {
            tokens,
            read,
            values,
            trust,
            ..
        } = self;
        let token = &tokens[form as usize];
        let token_at = |place: usize| &tokens[read[place] as usize];
        let mut is_due = false;
        for (name, places) in columns {
            let hit = token_at(places.places[0]).but_series == token.but_series;
            is_due |= trust.judge((Guess::ValueIsDue, *name), hit, 0.0);
        }
        let mut is_counted = false;
        for &(kind, value) in &token.values {
            let mut count = |name: u8, column: &[i128]| {
                judge_counting(column, kind, value, |rule, hit| {
                    is_counted |= trust.judge((Guess::Count(rule, kind), name), hit, 0.0);
                });
            };
            for (name, places) in columns {
                let of_kind = |&(other, value): &(Kind, i128)| (other == kind).then_some(value);
                let earlier = places.as_slice().iter().map(|&place| token_at(place));
                let column = earlier.filter_map(|each| each.values.iter().find_map(of_kind));
                count(*name, &column.collect::<Vec<_>>());
            }
            let values_of_kind = values.get(&kind).map_or(&[][..], |values| values);
            for (name, lag) in (FIRST_LAG..).zip(LAGS) {
                let column = values_of_kind.iter().rev().skip(lag - 1).step_by(lag);
                count(name, &column.take(N_RECENT).copied().collect::<Vec<_>>());
            }
        }
        is_due && is_counted
    }

    /// Whether a word is an earlier one, changed as an earlier one was changed.
    fn is_edited(&mut self, form: Form) -> bool {
        let mut is_edited = false;
        for (name, lag) in (0..).zip(EDIT_LAGS) {
            let Some(place) = self.words.len().checked_sub(lag) else {
                break;
            };
            let earlier = &self.tokens[self.words[place] as usize].text;
            let change = edit(earlier, &self.tokens[form as usize].text);
            let is_new = self.edits.insert((lag, change.map(Into::into)));
            is_edited |= self.trust.judge((Guess::Edit, name), !is_new, 0.0);
        }
        is_edited
    }

    fn remember(&mut self, form: Form) {
        for context in &self.contexts {
            self.places
                .entry(*context)
                .or_default()
                .add(self.read.len());
        }
        self.read.push(form);
        let token = &self.tokens[form as usize];
        for &(kind, value) in &token.values {
            self.values.entry(kind).or_default().push(value);
        }
        if token.is_word {
            self.words.push(form);
        }
        self.contexts = self.new_contexts();
        let repeated = self
            .contexts
            .iter()
            .find(|&&(name, _)| name == POINTER_CONTEXT);
        let place = repeated.and_then(|context| self.places.get(context));
        self.pointer = match place {
            Some(places) => Some(places.places[0]),
            None => self.pointer.map(|place| place + 1),
        };
    }
}
