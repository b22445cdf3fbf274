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
use matches::Matches;
use rules::MAX_TRIES;
use text::Text;

#[cfg(target_arch = "x86_64")]
pub(super) use loops::is_looped;
#[cfg(target_arch = "x86_64")]
pub(super) use text::MAX_BYTES;

use super::block::Block;
use super::lanes::Lanes;

/// With more places of the same three bytes the search place by place is faster.
const MAX_RANK: u16 = 2 * MAX_TRIES;

/// Finds the symbols of texts. Everything is kept for the next one.
#[derive(Default)]
pub(super) struct Table {
    text: Text,
    chains: Chains,
    finder: Finder,
    matches: Matches,
    choices: Choices,
}

impl Table {
    /// Adds the symbols of a text to a block that is empty, or tells that a table does not do.
    pub(super) fn push(&mut self, lanes: impl Lanes, text: &[u8], block: &mut Block) -> bool {
        if !self.text.read(lanes, text) {
            return false;
        }
        let rank = self.chains.link(lanes, &self.text);
        if rank > MAX_RANK {
            return false;
        }
        let (text, chains, matches) = (&self.text, &self.chains, &mut self.matches);
        if !self.finder.find(lanes, text, chains, matches) {
            return false;
        }
        if rank > MAX_TRIES {
            tries::limit(text, chains, matches);
        }
        let symbols = self.choices.take(lanes, text, chains, matches);
        if let Some([literals, matches]) = symbols {
            block.push_all(literals, matches);
        }
        symbols.is_some()
    }
}

#[cfg(test)]
mod tests;
