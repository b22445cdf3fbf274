//! What a reader may be asked for.

/// A group of numbers that cost nothing unless they are asked for.
///
/// `_candidate` and `_reference` name the side; every number but those of the reference alone
/// exists a second time for the candidate cut to the reference's number of words, if
/// [`Matched`](Self::Matched) is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// `overlap_1` to `overlap_5`: n-grams of words shared with the reference, each counted at
    /// most as often as it occurs on both sides.
    Overlap,
    /// `zlib_candidate`: bytes of the zlib stream of the words joined by single spaces.
    Zlib,
    /// `lcs_words`: words of the longest common subsequence.
    Lcs,
    /// The same numbers for the candidate cut to the reference's number of words.
    Matched,
}

impl Group {
    /// Every group, in the order of its fields.
    pub const ALL: [Self; 4] = [Self::Overlap, Self::Zlib, Self::Lcs, Self::Matched];

    /// The group of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Its name, such as `"overlap"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Zlib => "zlib",
            Self::Lcs => "lcs",
            Self::Matched => "matched",
        }
    }
}
