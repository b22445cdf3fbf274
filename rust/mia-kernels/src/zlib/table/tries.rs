//! How many candidates zlib tries.

#![expect(clippy::indexing_slicing, reason = "every place of 16 bits is inside")]

use super::chains::Chains;
use super::matches::{Match, Matches, lengthen, longest, nearest};
use super::rules::{MAX_TRIES, MAX_TRIES_IF_GOOD, MIN_LENGTH};
use super::text::{START, Text};

/// Down a hash chain from a place, as many candidates as zlib tries.
fn candidates(chains: &Chains, at: u16, tries: u16) -> impl Iterator<Item = u16> {
    let next = |place: &u16| Some(chains.threes.links[usize::from(*place)]);
    let all = std::iter::successors(next(&at), next);
    all.take_while(|place| *place != 0).take(tries.into())
}

/// Whether zlib tries less candidates than lie between a place and its match.
fn is_beyond(chains: &Chains, at: u16, start: u16, tries: u16) -> bool {
    let [rank, other] = [at, start].map(|place| chains.ranks[usize::from(place)]);
    rank.wrapping_sub(other) > tries
}

/// Finds anew the matches that zlib gives up before.
#[cold]
pub(super) fn limit(text: &Text, chains: &Chains, matches: &mut Matches) {
    for at in START + 1..text.end() - 2 {
        let found = matches.get(at);
        if chains.ranks[usize::from(at)] > MAX_TRIES
            && found.length > 0
            && is_beyond(chains, at, found.start, MAX_TRIES)
        {
            matches.set(at, find(text, chains, at));
        }
    }
}

/// No candidate is so long that it ends the search, or it would have ended the one without limit.
fn find(text: &Text, chains: &Chains, at: u16) -> Match {
    let is_near = |start| !is_beyond(chains, at, start, MAX_TRIES);
    let four = nearest(text, &chains.fours.links, [at; 2], 4);
    if four != 0 && is_near(four) {
        let length = text.view().common(at, four, 4).min(longest(text, at));
        let found = Match {
            length,
            start: four,
        };
        return lengthen(text, chains, at, found, is_near);
    }
    let three = nearest(text, &chains.threes.links, [at; 2], MIN_LENGTH);
    if three != 0 && is_near(three) {
        return Match::shortest(at, three);
    }
    Match::NONE
}

/// What zlib sees at a place when it knows a good match at the one before.
pub(super) enum AfterGood {
    /// The same match as otherwise.
    Same,
    /// None that is longer than the one before.
    NotLonger,
    /// Another longer one.
    Other,
}

pub(super) fn after_good(text: &Text, chains: &Chains, matches: &Matches, at: u16) -> AfterGood {
    if !is_beyond(chains, at, matches.get(at).start, MAX_TRIES_IF_GOOD) {
        return AfterGood::Same;
    }
    let before = matches.get(at - 1).length;
    let is_longer = |start| text.view().common(at, start, 0) > before;
    if candidates(chains, at, MAX_TRIES_IF_GOOD).any(is_longer) {
        AfterGood::Other
    } else {
        AfterGood::NotLonger
    }
}
