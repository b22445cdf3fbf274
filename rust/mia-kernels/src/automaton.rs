//! Where each position of a text ends the longest run that another text has.
//!
//! A suffix automaton (Blumer et al. 1985, "The smallest automaton recognizing the subwords of
//! a text") of n symbols has fewer than 2 n states and 3 n steps and is built in one pass. A
//! **state** stands for the runs of symbols that end at the same places; its **link** leads to
//! the longest suffix of them that ends in more places.

#![expect(
    clippy::indexing_slicing,
    reason = "states are indices that this module hands out"
)]

use crate::limits::number;
use crate::numbers::{Numbers, UNKNOWN};

type StateId = u32;

pub(crate) const ROOT: StateId = 0;

/// Ends a list of steps.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct State {
    /// Symbols of its longest run.
    length: u32,
    link: StateId,
    /// Where its runs end for the first time.
    first_end: u32,
    /// The last of its steps that was made.
    step: u32,
}

/// A symbol by which a state is left, where to, and the step made before it from the same state.
#[derive(Clone, Copy)]
struct Step {
    symbol: u32,
    target: StateId,
    before: u32,
}

/// The longest run that ends at a position and that the automaton's text has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Match {
    /// The state of the run.
    pub(crate) state: StateId,
    /// Its symbols; 0 for none.
    pub(crate) length: u32,
}

/// Every run of symbols of one text.
#[derive(Default)]
pub(crate) struct Automaton {
    states: Vec<State>,
    steps: Vec<Step>,
    /// Numbers of the steps, each by its state and symbol.
    numbers: Numbers,
    /// The state of the text up to and with each position.
    prefixes: Vec<StateId>,
    /// All states, those of shorter runs first.
    order: Vec<StateId>,
}

impl Automaton {
    /// Forgets the last text and reads another.
    pub(crate) fn read(&mut self, symbols: impl IntoIterator<Item = u32>) {
        self.states.clear();
        self.steps.clear();
        self.numbers.clear();
        self.prefixes.clear();
        self.add_state(0, ROOT, 0);
        for symbol in symbols {
            self.append(symbol);
        }
        self.sort();
    }

    /// States of the text up to and with each position.
    pub(crate) fn prefixes(&self) -> &[StateId] {
        &self.prefixes
    }

    /// All states but the root, those of shorter runs first.
    pub(crate) fn order(&self) -> &[StateId] {
        self.order.get(1..).unwrap_or_default()
    }

    pub(crate) fn n_states(&self) -> usize {
        self.states.len()
    }

    /// Symbols of the state's longest run.
    pub(crate) fn length(&self, state: StateId) -> u32 {
        self.states[state as usize].length
    }

    pub(crate) fn link(&self, state: StateId) -> StateId {
        self.states[state as usize].link
    }

    /// Where the run starts for the first time.
    pub(crate) fn first_start(&self, run: Match) -> u32 {
        self.states[run.state as usize].first_end + 1 - run.length
    }

    /// The match one `symbol` after `run`.
    pub(crate) fn follow(&self, run: Match, symbol: u32) -> Match {
        let Match {
            mut state,
            mut length,
        } = run;
        loop {
            if let Some(step) = self.step(state, symbol) {
                return Match {
                    state: self.steps[step].target,
                    length: length + 1,
                };
            }
            if state == ROOT {
                return Match::default();
            }
            state = self.link(state);
            length = self.length(state);
        }
    }

    /// The match at each of `symbols`.
    pub(crate) fn matches(&self, symbols: &[u32], matches: &mut Vec<Match>) {
        let mut last = Match::default();
        matches.clear();
        matches.extend(symbols.iter().map(|&symbol| {
            last = self.follow(last, symbol);
            last
        }));
    }

    fn append(&mut self, symbol: u32) {
        let end = number(self.prefixes.len());
        let last = self.prefixes.last().copied().unwrap_or(ROOT);
        let state = self.add_state(self.length(last) + 1, ROOT, end);
        self.prefixes.push(state);
        let mut from = last;
        loop {
            if let Some(step) = self.step(from, symbol) {
                let target = self.steps[step].target;
                self.states[state as usize].link = self.split(from, symbol, target);
                return;
            }
            self.add_step(from, symbol, state);
            if from == ROOT {
                return;
            }
            from = self.link(from);
        }
    }

    /// The state of the longest run of `from`, then `symbol`: `target`, or a part of it.
    fn split(&mut self, from: StateId, symbol: u32, target: StateId) -> StateId {
        let length = self.length(from) + 1;
        let State {
            length: longest,
            link,
            first_end,
            step,
        } = self.states[target as usize];
        if longest == length {
            return target;
        }
        let part = self.add_state(length, link, first_end);
        self.copy_steps(step, part);
        self.states[target as usize].link = part;
        self.redirect(from, symbol, target, part);
        part
    }

    fn copy_steps(&mut self, mut step: u32, to: StateId) {
        while step != NONE {
            let Step {
                symbol,
                target,
                before,
            } = self.steps[step as usize];
            self.add_step(to, symbol, target);
            step = before;
        }
    }

    /// Leads the steps by `symbol` from `from` and its suffixes to `part` instead of `target`.
    fn redirect(&mut self, mut from: StateId, symbol: u32, target: StateId, part: StateId) {
        while let Some(step) = self.step(from, symbol) {
            if self.steps[step].target != target {
                return;
            }
            self.steps[step].target = part;
            if from == ROOT {
                return;
            }
            from = self.link(from);
        }
    }

    fn add_state(&mut self, length: u32, link: StateId, first_end: u32) -> StateId {
        let state = number(self.states.len());
        self.states.push(State {
            length,
            link,
            first_end,
            step: NONE,
        });
        state
    }

    fn add_step(&mut self, from: StateId, symbol: u32, target: StateId) {
        let step = number(self.steps.len());
        let before = std::mem::replace(&mut self.states[from as usize].step, step);
        self.steps.push(Step {
            symbol,
            target,
            before,
        });
        self.numbers.intern(key(from, symbol));
    }

    /// The step by `symbol` from a state, if there is one.
    fn step(&self, from: StateId, symbol: u32) -> Option<usize> {
        let step = self.numbers.get(key(from, symbol));
        (step != UNKNOWN).then_some(step as usize)
    }

    /// Counting sort of the states by the length of their longest run.
    fn sort(&mut self) {
        let mut places = vec![0; self.prefixes.len() + 2];
        for state in &self.states {
            places[state.length as usize + 1] += 1;
        }
        for length in 1..places.len() {
            places[length] += places[length - 1];
        }
        self.order.clear();
        self.order.resize(self.states.len(), ROOT);
        for (id, state) in self.states.iter().enumerate() {
            let place = &mut places[state.length as usize];
            self.order[*place] = number(id);
            *place += 1;
        }
    }
}

fn key(from: StateId, symbol: u32) -> u128 {
    u128::from(from) << 64 | u128::from(symbol)
}
