//! Clipped n-gram overlap (ROUGE-N, Lin 2004, section 2) for every n up to [`MAX_N`] at once.
//!
//! Every distinct n-gram of the reference is a **node**. A node knows its suffix of n - 1
//! words, and a table knows which node it becomes by one word more. The candidate is read
//! word by word while we hold the longest n-gram of the reference that ends there. Its
//! suffixes are exactly the shorter n-grams that end there and occur in the reference, so one
//! walk along them counts every n. Nodes are told apart by `(prefix, word)`, never by a hash
//! alone, so every count is exact.

#![expect(
    clippy::indexing_slicing,
    reason = "nodes are indices that this module hands out"
)]

use hashbrown::HashMap;

use crate::limits::number;
use crate::words::{Vocabulary, WordRule};

/// The longest n-grams that are counted.
pub const MAX_N: usize = 5;

/// Number of a node; a 1-gram has the number of its word.
type Node = u32;

#[derive(Clone, Copy)]
struct Ngram {
    /// Words in it.
    n: usize,
    /// The node without its first word; `None` for a 1-gram.
    suffix: Option<Node>,
}

/// The n-grams of one reference.
#[derive(Default)]
pub(crate) struct NgramIndex {
    vocabulary: Vocabulary,
    words: Vec<u32>,
    ngrams: Vec<Ngram>,
    counts: Vec<u32>,
    longer: HashMap<(Node, u32), Node>,
}

impl NgramIndex {
    /// Forgets the last reference and reads another.
    pub(crate) fn read(&mut self, reference: &str, rule: WordRule) {
        self.clear();
        self.number_words(reference, rule);
        let mut longest = None;
        for position in 0..self.words.len() {
            let node = self.insert(self.extendable(longest), self.words[position]);
            self.count_suffixes(node);
            longest = Some(node);
        }
    }

    /// Words of the reference.
    pub(crate) fn n_words(&self) -> usize {
        self.words.len()
    }

    fn clear(&mut self) {
        self.vocabulary.clear();
        self.words.clear();
        self.ngrams.clear();
        self.counts.clear();
        self.longer.clear();
    }

    fn number_words(&mut self, reference: &str, rule: WordRule) {
        for word in rule.words(reference) {
            self.words.push(self.vocabulary.intern(word));
        }
        let unigram = Ngram { n: 1, suffix: None };
        self.ngrams.resize(self.vocabulary.len(), unigram);
        self.counts.resize(self.vocabulary.len(), 0);
    }

    /// The node of `prefix` and then `word`, made with its suffixes if it is new.
    fn insert(&mut self, prefix: Option<Node>, word: u32) -> Node {
        let Some(prefix) = prefix else { return word };
        if let Some(&node) = self.longer.get(&(prefix, word)) {
            return node;
        }
        let Ngram { n, suffix } = self.ngrams[prefix as usize];
        let ngram = Ngram {
            n: n + 1,
            suffix: Some(self.insert(suffix, word)),
        };
        let node = self.push(ngram);
        self.longer.insert((prefix, word), node);
        node
    }

    fn push(&mut self, ngram: Ngram) -> Node {
        let node = number(self.ngrams.len());
        self.ngrams.push(ngram);
        self.counts.push(0);
        node
    }

    fn count_suffixes(&mut self, longest: Node) {
        let mut next = Some(longest);
        while let Some(node) = next {
            self.counts[node as usize] += 1;
            next = self.ngrams[node as usize].suffix;
        }
    }

    /// The longest suffix of `node`, itself included, that one word more may extend.
    fn extendable(&self, node: Option<Node>) -> Option<Node> {
        let ngram = self.ngrams[node? as usize];
        if ngram.n < MAX_N { node } else { ngram.suffix }
    }

    /// The longest n-gram of the reference that ends with `word`, after `longest` before it.
    fn follow(&self, longest: Option<Node>, word: u32) -> Node {
        let mut prefix = self.extendable(longest);
        while let Some(node) = prefix {
            if let Some(&found) = self.longer.get(&(node, word)) {
                return found;
            }
            prefix = self.ngrams[node as usize].suffix;
        }
        word
    }
}

/// Counts the n-grams that a candidate shares with an [`NgramIndex`].
#[derive(Default)]
pub(crate) struct OverlapCounter {
    /// Occurrences of each node in the reference that the candidate has not matched yet.
    unmatched: Vec<u32>,
    longest: Option<Node>,
    matched: [u32; MAX_N],
}

impl OverlapCounter {
    /// Prepares for a new candidate.
    pub(crate) fn start(&mut self, index: &NgramIndex) {
        self.unmatched.clone_from(&index.counts);
        self.longest = None;
        self.matched = [0; MAX_N];
    }

    /// Takes the next word of the candidate.
    pub(crate) fn push(&mut self, word: &[u8], index: &NgramIndex) {
        self.longest = index
            .vocabulary
            .get(word)
            .map(|word| index.follow(self.longest, word));
        let mut next = self.longest;
        while let Some(node) = next {
            let ngram = index.ngrams[node as usize];
            self.match_one(node, ngram.n);
            next = ngram.suffix;
        }
    }

    /// Matched n-grams of the words so far for n = 1, 2, ..., each n-gram counted at most as
    /// often as it occurs on both sides.
    pub(crate) fn matched(&self) -> [u32; MAX_N] {
        self.matched
    }

    fn match_one(&mut self, node: Node, n: usize) {
        let unmatched = &mut self.unmatched[node as usize];
        if *unmatched > 0 {
            *unmatched -= 1;
            self.matched[n - 1] += 1;
        }
    }
}
