//! How often n-grams of words are said, and overlap that counts each by how rarely it is.

use std::fmt;

use hashbrown::HashMap;

use crate::error::KernelError;
use crate::limits::check_length;
use crate::words::WordRule;

/// The longest n-grams that are counted.
pub const RARITY_MAX_N: usize = 3;

/// Bits of the largest table, which takes 2 GiB.
const MAX_BITS: u32 = 28;

/// In how many groups of texts each n-gram occurs, in a table of fixed size.
///
/// N-grams whose hashes begin alike share an entry, so a count may be too large, never too small.
/// Texts of one group must come one after the other; groups may come in any order.
pub struct Frequencies {
    bits: u32,
    counts: Vec<u32>,
    /// The group that each entry was last counted for, plus 1.
    last: Vec<u32>,
    words: Vec<u64>,
    ngrams: Vec<u64>,
}

impl fmt::Debug for Frequencies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Frequencies of {} entries", self.counts.len())
    }
}

impl Frequencies {
    /// An empty table of `2^bits` entries: `None` unless these are 1 to 28 bits.
    pub fn new(bits: u32) -> Option<Self> {
        let is_table = (1..=MAX_BITS).contains(&bits);
        is_table.then(|| vec![0; 1 << bits]).and_then(Self::counted)
    }

    /// A table that counted other groups before: `None` unless it has `2^bits` entries.
    pub fn counted(counts: Vec<u32>) -> Option<Self> {
        let bits = counts.len().trailing_zeros();
        let is_table = counts.len().is_power_of_two() && (1..=MAX_BITS).contains(&bits);
        is_table.then(|| Self {
            bits,
            last: vec![0; counts.len()],
            counts,
            words: Vec::new(),
            ngrams: Vec::new(),
        })
    }

    /// Counts the n-grams of a text, each once for its group, which is below [`u32::MAX`].
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn add(&mut self, text: &str, group: u32, rule: WordRule) -> Result<(), KernelError> {
        hash_words(text, rule, &mut self.words)?;
        for n in 1..=RARITY_MAX_N {
            lengthen(&mut self.ngrams, &self.words, n);
            for ngram in &self.ngrams {
                let entry = entry(*ngram, self.bits);
                if let (Some(count), Some(last)) =
                    (self.counts.get_mut(entry), self.last.get_mut(entry))
                    && *last != group + 1
                {
                    *last = group + 1;
                    *count += 1;
                }
            }
        }
        Ok(())
    }

    /// The number of groups by entry.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    fn count(&self, ngram: u64) -> u32 {
        let entry = entry(ngram, self.bits);
        self.counts.get(entry).copied().unwrap_or_default()
    }
}

/// What one pair of texts shares, each n-gram with its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rarity {
    /// Sum of the weights of the words with which both begin.
    pub leading: f64,
    /// Sum of the weights of shared n-grams, by n - 1, each counted as often as both have it.
    pub overlap: [f64; RARITY_MAX_N],
}

/// Reads pairs and weighs what they share.
#[derive(Debug)]
pub struct RarityReader<'table> {
    table: &'table Frequencies,
    rule: WordRule,
    total: f64,
    candidate: Vec<u64>,
    reference: Vec<u64>,
    said: Vec<u64>,
    wanted: Vec<u64>,
    left: HashMap<u64, u32>,
}

impl<'table> RarityReader<'table> {
    /// A reader that weighs an n-gram by `ln(total / (1 + count in other groups))`.
    pub fn new(table: &'table Frequencies, rule: WordRule, total: u32) -> Self {
        Self {
            table,
            rule,
            total: f64::from(total),
            candidate: Vec::new(),
            reference: Vec::new(),
            said: Vec::new(),
            wanted: Vec::new(),
            left: HashMap::new(),
        }
    }

    /// Compares a candidate, cut to the reference's number of words, with its reference.
    ///
    /// `others` is 0 if the table counts the candidate's own group, so that each n-gram's count is
    /// 1 + that in other groups, and 1 if it does not.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if one has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn read(
        &mut self,
        candidate: &str,
        reference: &str,
        others: u32,
    ) -> Result<Rarity, KernelError> {
        hash_words(candidate, self.rule, &mut self.candidate)?;
        hash_words(reference, self.rule, &mut self.reference)?;
        self.candidate.truncate(self.reference.len());
        let both = self.candidate.iter().zip(&self.reference);
        let agreeing = both.take_while(|(left, right)| left == right);
        let mut found = Rarity {
            leading: agreeing.fold(0.0, |sum, (_, word)| {
                sum + self.weight(mix(0, *word), others) // the sum of nothing would be -0
            }),
            ..Rarity::default()
        };
        for (n, overlap) in (1..).zip(&mut found.overlap) {
            lengthen(&mut self.said, &self.candidate, n);
            lengthen(&mut self.wanted, &self.reference, n);
            self.left.clear();
            for ngram in &self.said {
                *self.left.entry(*ngram).or_default() += 1;
            }
            for ngram in &self.wanted {
                match self.left.get_mut(ngram) {
                    Some(left) if *left > 0 => *left -= 1,
                    _ => continue,
                }
                *overlap += self.weight(*ngram, others);
            }
        }
        Ok(found)
    }

    fn weight(&self, ngram: u64, others: u32) -> f64 {
        let count = self.table.count(ngram).saturating_add(others);
        (self.total / f64::from(count.max(1))).ln()
    }
}

fn entry(hash: u64, bits: u32) -> usize {
    usize::try_from(hash >> (64 - bits)).unwrap_or_default()
}

fn hash_words(text: &str, rule: WordRule, hashes: &mut Vec<u64>) -> Result<(), KernelError> {
    check_length(text.as_bytes())?;
    let spelled = rule.spell(text);
    hashes.clear();
    hashes.extend(rule.words(&spelled).map(hash_word));
    Ok(())
}

/// FNV-1a, the same on every machine, because tables are kept.
fn hash_word(word: &[u8]) -> u64 {
    word.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Makes hashes of (n - 1)-grams those of n-grams, which start with them; of words, where n is 1.
fn lengthen(ngrams: &mut Vec<u64>, words: &[u64], n: usize) {
    if n == 1 {
        ngrams.clear();
        ngrams.resize(words.len(), 0);
    }
    ngrams.truncate(words.len().saturating_sub(n - 1));
    for (ngram, word) in ngrams.iter_mut().zip(words.iter().skip(n - 1)) {
        *ngram = mix(*ngram, *word);
    }
}

/// The hash of an n-gram and one word more, mixed as in `SplitMix64` (Steele et al. 2014).
fn mix(ngram: u64, word: u64) -> u64 {
    let mut mixed = ngram.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the same sums in the same order")]
mod tests {
    use super::*;

    fn counted(texts: &[(&str, u32)]) -> Frequencies {
        let mut table = Frequencies::new(12).unwrap();
        for (text, group) in texts {
            table.add(text, *group, WordRule::Whitespace).unwrap();
        }
        table
    }

    #[test]
    fn counts_groups_not_texts_nor_places() {
        let table = counted(&[("a a b", 0), ("a", 0), ("a c", 1)]);
        let count = |words: &[&str]| {
            let hashes: Vec<_> = words
                .iter()
                .map(|word| hash_word(word.as_bytes()))
                .collect();
            table.count(hashes.into_iter().fold(0, mix))
        };
        assert_eq!(count(&["a"]), 2);
        assert_eq!(count(&["b"]), 1);
        assert_eq!(count(&["a", "b"]), 1);
        assert_eq!(count(&["a", "a", "b"]), 1);
        assert_eq!(count(&["b", "a"]), 0);
    }

    #[test]
    fn a_table_has_1_to_28_bits() {
        for bits in [0, 29, 64, u32::MAX] {
            assert!(Frequencies::new(bits).is_none());
        }
        for n_entries in [0, 1, 3] {
            assert!(Frequencies::counted(vec![0; n_entries]).is_none());
        }
        let mut more = Frequencies::counted(counted(&[("a", 0)]).counts().to_vec()).unwrap();
        more.add("a", 1, WordRule::Whitespace).unwrap();
        assert_eq!(more.counts(), counted(&[("a", 0), ("a", 1)]).counts());
    }

    #[test]
    fn weighs_by_hand() {
        let table = counted(&[("a b", 0), ("a", 1), ("a", 2), ("x", 3)]);
        let mut reader = RarityReader::new(&table, WordRule::Whitespace, 4);
        let found = reader.read("a b b z", "a b c b", 0).unwrap();
        let (a, b) = ((4.0_f64 / 3.0).ln(), 4.0_f64.ln());
        assert_eq!(found.leading, a + b);
        assert_eq!(found.overlap, [a + b + b, b, 0.0]); // "a b" was said by one
        let found = reader.read("a z", "a z", 1).unwrap();
        assert_eq!(found.overlap[0], 0.0 + 4.0_f64.ln()); // "a" by three others, "z" by none
    }
}
