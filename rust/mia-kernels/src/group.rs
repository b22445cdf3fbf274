//! What a reader may be asked for.

/// A group of numbers that cost nothing unless they are asked for.
///
/// `_candidate` and `_reference` name the side; every number but those of the reference alone
/// exists a second time for the candidate cut to the reference's number of words, if
/// [`Matched`](Self::Matched) is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// `overlap_1`: words shared with the reference, each counted at most as often as it occurs on
    /// both sides.
    Unigrams,
    /// `overlap_2` to `overlap_5`: n-grams of several words, likewise.
    Ngrams,
    /// `zlib_candidate`: bytes of the zlib stream of the words joined by single spaces.
    Zlib,
    /// `lcs_words`: words of the longest common subsequence.
    Lcs,
    /// `longest_block_words` and `longest_block_start`: the longest run of words that both sides
    /// have, and the word of the reference where it first starts; `longest_block_chars` and
    /// `longest_block_chars_start`: the same for Unicode characters of the raw texts;
    /// `near_verbatim_words`: words of common blocks, longest first, of at least
    /// [`near_verbatim_min_words`](crate::Settings::near_verbatim_min_words).
    Blocks,
    /// `covered_2` to `covered_12`: words of the candidate inside a span of at least so many
    /// words that the reference has; `covered_reference_2` to `covered_reference_12`: words of
    /// the reference inside such a span that the candidate has.
    Coverage,
    /// `distinct_candidate` and `distinct_reference`: different words.
    Distinct,
    /// `characters_candidate` and `characters_reference`: Unicode characters of the raw texts;
    /// `characters_overlap_3` and `characters_overlap_5`: n-grams of characters shared with the
    /// reference, each counted at most as often as it occurs on both sides.
    Characters,
    /// `leading_words` and `leading_characters`: words, and Unicode characters of the raw texts, before
    /// the first difference.
    Leading,
    /// The same numbers for the candidate cut to the reference's number of words.
    Matched,
}

impl Group {
    /// Every group, in the order of its fields.
    pub const ALL: [Self; 10] = [
        Self::Unigrams,
        Self::Ngrams,
        Self::Zlib,
        Self::Lcs,
        Self::Blocks,
        Self::Coverage,
        Self::Distinct,
        Self::Characters,
        Self::Leading,
        Self::Matched,
    ];

    /// The group of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Its name, such as `"ngrams"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unigrams => "unigrams",
            Self::Ngrams => "ngrams",
            Self::Zlib => "zlib",
            Self::Lcs => "lcs",
            Self::Blocks => "blocks",
            Self::Coverage => "coverage",
            Self::Distinct => "distinct",
            Self::Characters => "characters",
            Self::Leading => "leading",
            Self::Matched => "matched",
        }
    }
}
