//! All matches of a short text at once, in loops that vector instructions make fast.
//!
//! At level 6 zlib inserts every place in its hash chains, and whether it takes the match at a
//! place depends on the match at the next one only. So the chains come first, then the matches
//! at all places, then the choice among them. This does more than zlib, which skips places, but
//! hardly anything in it has to wait for what comes before.

mod chains;
mod choices;
mod finder;
mod loops;
mod matches;
mod rules;
mod text;
mod tries;

use chains::Chains;
use choices::Choices;
use finder::Finder;
#[cfg(target_arch = "x86_64")]
use loops::is_looped;
use matches::Matches;
use rules::MAX_TRIES;
use text::Text;

use super::block::Block;
use super::lanes::Lanes;

/// A shorter text takes less time without a table, which takes some however short a text is.
#[cfg(target_arch = "x86_64")]
const SHORTEST: usize = 2048;
#[cfg(target_arch = "x86_64")]
const N_UNTRIED: u32 = 15;
/// With more places of the same three bytes the search place by place is faster.
const MAX_RANK: u16 = 2 * MAX_TRIES;

/// Finds the symbols of texts. Everything is kept for the next one.
pub(super) struct Table<L> {
    lanes: L,
    text: Text,
    chains: Chains,
    finder: Finder,
    matches: Matches,
    choices: Choices,
    /// Texts that follow and are not tried.
    #[cfg(target_arch = "x86_64")]
    n_untried: u32,
}

impl<L: Lanes> Table<L> {
    pub(super) fn new(lanes: L) -> Self {
        Self {
            lanes,
            text: Text::default(),
            chains: Chains::default(),
            finder: Finder::default(),
            matches: Matches::default(),
            choices: Choices::default(),
            #[cfg(target_arch = "x86_64")]
            n_untried: 0,
        }
    }

    /// Adds the symbols of a text to a block that is empty, or tells that it takes less time
    /// without a table.
    ///
    /// Texts that come one after the other are often alike: after one for which a table did not
    /// do, some are not tried.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn push(&mut self, text: &[u8], block: &mut Block) -> bool {
        if text.len() < SHORTEST || is_looped(text) {
            return false;
        }
        if self.n_untried > 0 {
            self.n_untried -= 1;
            return false;
        }
        let is_done = self.take(text, block);
        if !is_done {
            self.n_untried = N_UNTRIED;
        }
        is_done
    }

    /// Adds the symbols of a text to a block that is empty, or tells that a table does not do.
    fn take(&mut self, text: &[u8], block: &mut Block) -> bool {
        if !self.text.read(self.lanes, text) {
            return false;
        }
        let rank = self.chains.link(self.lanes, &self.text);
        if rank > MAX_RANK {
            return false;
        }
        let (text, chains, matches) = (&self.text, &self.chains, &mut self.matches);
        if !self.finder.find(self.lanes, text, chains, matches) {
            return false;
        }
        if rank > MAX_TRIES {
            tries::limit(text, chains, matches);
        }
        let symbols = self.choices.take(self.lanes, text, chains, matches);
        if let Some([literals, matches]) = symbols {
            block.push_all(literals, matches);
        }
        symbols.is_some()
    }
}

#[cfg(test)]
mod tests;
