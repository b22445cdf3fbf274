//! Clipped n-gram overlap (ROUGE-N, Lin 2004, section 2) for every n up to some longest at once.
//!
//! Every distinct n-gram of the reference is a **node**. A node knows its suffix of n - 1
//! words, and a table knows which node it becomes by one word more. The candidate is read
//! word by word while we hold the longest n-gram of the reference that ends there. Its
//! suffixes are exactly the shorter n-grams that end there and occur in the reference, so one
//! walk along them counts every n. Nodes are distinguished by `(prefix, word)`, never by a hash
//! alone, so every count is exact.

#![expect(
    clippy::indexing_slicing,
    reason = "nodes are indices that this module hands out, and no n is above the largest"
)]

use std::ops::RangeInclusive;

use crate::candidate::{Cut, Known};
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::limits::number;
use crate::numbers::{Numbers, UNKNOWN};
use crate::reference::Reference;

/// The longest n-grams that can be counted.
pub(crate) const MAX_N: usize = 5;

/// Up to so many words of a reference room for their n-grams is made at once.
const USUAL_WORDS: usize = 1000;

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
struct NgramIndex {
    /// The longest, at most [`MAX_N`].
    max_n: usize,
    n_words: u32,
    ngrams: Vec<Ngram>,
    counts: Vec<u32>,
    /// The n-grams of several words, each by its prefix and its last word. They are numbered
    /// behind those of one word.
    longer: Numbers,
}

impl NgramIndex {
    /// Forgets the last reference and reads another.
    fn read(&mut self, reference: &Reference) {
        let n_words = reference.vocabulary.len();
        self.n_words = number(n_words);
        self.ngrams.clear();
        self.ngrams.resize(n_words, Ngram { n: 1, suffix: None });
        self.counts.clear();
        self.counts.resize(n_words, 0);
        self.longer.clear();
        self.longer
            .reserve(reference.words.len().min(USUAL_WORDS) * (self.max_n - 1));
        let mut longest = None;
        for &word in &reference.words {
            let node = self.insert(self.extendable(longest), word);
            self.count_suffixes(node);
            longest = Some(node);
        }
    }

    /// The node of `prefix` and then `word`, made with its suffixes if it is new.
    fn insert(&mut self, prefix: Option<Node>, word: u32) -> Node {
        let Some(prefix) = prefix else { return word };
        let node = self.n_words + self.longer.intern(key(prefix, word));
        if (node as usize) < self.ngrams.len() {
            return node;
        }
        let Ngram { n, suffix } = self.ngrams[prefix as usize];
        self.ngrams.push(Ngram { n: n + 1, suffix });
        self.counts.push(0);
        self.ngrams[node as usize].suffix = Some(self.insert(suffix, word));
        node
    }

    /// The node of `prefix` and then `word`, if the reference has it.
    fn longer(&self, prefix: Node, word: u32) -> Option<Node> {
        let number = self.longer.get(key(prefix, word));
        (number != UNKNOWN).then(|| self.n_words + number)
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
        if ngram.n < self.max_n {
            node
        } else {
            ngram.suffix
        }
    }

    /// The longest n-gram of the reference that ends with `word`, after `longest` before it.
    fn follow(&self, longest: Option<Node>, word: u32) -> Node {
        let mut prefix = self.extendable(longest);
        while let Some(node) = prefix {
            if let Some(found) = self.longer(node, word) {
                return found;
            }
            prefix = self.ngrams[node as usize].suffix;
        }
        word
    }
}

fn key(prefix: Node, word: u32) -> u128 {
    u128::from(prefix) << 64 | u128::from(word)
}

/// What was read of a candidate.
#[derive(Clone, Copy, Default)]
struct Count {
    /// The longest n-gram of the reference that ends with the word before `next`.
    longest: Option<Node>,
    next: u32,
    matched: [u32; MAX_N],
}

impl Count {
    /// Takes the candidate's next word that the reference has.
    fn push(&mut self, known: Known, index: &NgramIndex, unmatched: &mut [u32]) {
        let before = self.longest.filter(|_| known.at == self.next);
        self.next = known.at + 1;
        self.longest = Some(index.follow(before, known.word));
        let mut next = self.longest;
        while let Some(node) = next {
            let Ngram { n, suffix } = index.ngrams[node as usize];
            let unmatched = &mut unmatched[node as usize];
            let one = u32::from(*unmatched > 0);
            *unmatched -= one;
            self.matched[n - 1] += one;
            next = suffix;
        }
    }
}

/// Counts the n-grams that a candidate shares with its reference.
pub(crate) struct OverlapCounter {
    /// The smallest and the largest n.
    sizes: RangeInclusive<usize>,
    index: NgramIndex,
    /// Occurrences of each node in the reference that the candidate has not matched yet.
    unmatched: Vec<u32>,
    count: Count,
}

impl OverlapCounter {
    /// For n-grams of so many words, at most [`MAX_N`].
    pub(crate) fn new(sizes: RangeInclusive<usize>) -> Self {
        Self {
            index: NgramIndex {
                max_n: *sizes.end(),
                ..NgramIndex::default()
            },
            sizes,
            unmatched: Vec::new(),
            count: Count::default(),
        }
    }
}

impl Kernel for OverlapCounter {
    fn fields(&self) -> Vec<String> {
        self.sizes.clone().map(|n| format!("overlap_{n}")).collect()
    }

    fn read_reference(&mut self, reference: &Reference) {
        self.index.read(reference);
    }

    fn start(&mut self, _: &Reference) {
        self.unmatched.clone_from(&self.index.counts);
        self.count = Count::default();
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        _: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        let mut count = self.count; // here it stays in registers
        for &known in cut.new_known {
            count.push(known, &self.index, &mut self.unmatched);
        }
        self.count = count;
        let sizes = self.sizes.start() - 1..*self.sizes.end();
        numbers.extend(count.matched[sizes].iter().copied().map(Some));
        Ok(())
    }
}
