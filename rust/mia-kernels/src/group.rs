//! What a reader may be asked for.

use strum::{EnumString, VariantArray};

/// A group of numbers that cost nothing unless they are asked for.
///
/// `_candidate` and `_reference` name the side; every number but those of the reference alone
/// exists a second time for the candidate cut to the reference's number of words, if
/// [`Matched`](Self::Matched) is asked for.
///
/// Its name, as [`EnumString`] parses and [`Display`](strum::Display) writes it, is the variant's in
/// lower case, such as `"ngrams"`; [`VariantArray`] lists all in the order of their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, strum::Display, VariantArray)]
#[strum(serialize_all = "lowercase")]
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
