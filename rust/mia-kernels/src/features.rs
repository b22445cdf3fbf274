//! Everything about one pair of texts from one reading of both.

use strum::VariantArray;

use crate::blocks::BlockKernel;
use crate::candidate::Candidate;
use crate::characters::CharacterCounter;
use crate::coverage::CoverageCounter;
use crate::distinct::DistinctCounter;
use crate::error::KernelError;
use crate::group::Group;
use crate::kernel::Kernel;
use crate::lcs::LcsCounter;
use crate::leading::LeadingCounter;
use crate::limits::{check_length, number};
use crate::ngram::{MAX_N, OverlapCounter};
use crate::reference::{Needs, Reference};
use crate::size::SizeKernel;
use crate::words::WordRule;

/// What a [`PairReader`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How texts are cut into words.
    pub words: WordRule,
    /// What is computed beside the numbers of words; order and repetition mean nothing.
    pub groups: Vec<Group>,
    /// Words of the shortest block that [`Group::Blocks`] counts as near verbatim; at least 1.
    pub near_verbatim_min_words: u32,
}

/// Reads pairs one after the other and keeps what the next one can use again: the buffers,
/// and the reference if it comes again.
pub struct PairReader {
    rule: WordRule,
    matched: bool,
    needs: Needs,
    kernels: Vec<Box<dyn Kernel>>,
    reference: Reference,
    candidate: Candidate,
}

impl PairReader {
    /// A reader that does what `settings` say.
    pub fn new(settings: &Settings) -> Self {
        let chosen = Group::VARIANTS
            .iter()
            .filter(|group| settings.groups.contains(group));
        Self {
            rule: settings.words,
            matched: settings.groups.contains(&Group::Matched),
            needs: needs(settings),
            kernels: chosen
                .filter_map(|group| kernel(*group, settings))
                .collect(),
            reference: Reference::default(),
            candidate: Candidate::default(),
        }
    }

    /// Names of the numbers that [`read`](Self::read) gives, in order.
    pub fn fields(&self) -> Vec<String> {
        let of_candidate: Vec<_> = self
            .kernels
            .iter()
            .flat_map(|kernel| kernel.fields())
            .collect();
        let mut fields = vec!["words_candidate".to_owned(), "words_reference".to_owned()];
        for kernel in &self.kernels {
            fields.append(&mut kernel.reference_fields());
        }
        fields.extend_from_slice(&of_candidate);
        if self.matched {
            fields.push("words_candidate_matched".to_owned());
            fields.extend(of_candidate.iter().map(|field| format!("{field}_matched")));
        }
        fields
    }

    /// Appends the numbers of one pair; `None` where one is undefined.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if a text has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn read(
        &mut self,
        candidate: &str,
        reference: &str,
        numbers: &mut Vec<Option<u32>>,
    ) -> Result<(), KernelError> {
        check_length(candidate.as_bytes())?;
        check_length(reference.as_bytes())?;
        self.read_reference(reference);
        self.candidate
            .read(candidate, self.rule, &self.reference, self.needs);
        self.append_numbers(candidate, numbers)
    }

    fn read_reference(&mut self, text: &str) {
        if self.reference.read(text, self.rule, self.needs) {
            for kernel in &mut self.kernels {
                kernel.read_reference(&self.reference);
            }
        }
    }

    fn append_numbers(
        &mut self,
        text: &str,
        numbers: &mut Vec<Option<u32>>,
    ) -> Result<(), KernelError> {
        for kernel in &mut self.kernels {
            kernel.start(&self.reference);
        }
        let n_reference = self.reference.words.len();
        let n_candidate = self.candidate.n_words();
        let n_matched = if self.matched {
            n_candidate.min(n_reference)
        } else {
            0
        };
        let mut matched = Vec::new();
        if self.matched {
            self.extend(text, 0, n_matched, &mut matched)?;
        }
        numbers.extend([Some(number(n_candidate)), Some(number(n_reference))]);
        for kernel in &self.kernels {
            kernel.reference_numbers(&self.reference, numbers);
        }
        if self.matched && n_matched == n_candidate {
            numbers.extend_from_slice(&matched);
        } else {
            self.extend(text, n_matched, n_candidate, numbers)?;
        }
        if self.matched {
            numbers.push(Some(number(n_matched)));
            numbers.append(&mut matched);
        }
        Ok(())
    }

    /// Appends the numbers of the candidate's first `end` words, whose first `start` words the
    /// kernels have seen.
    fn extend(
        &mut self,
        text: &str,
        start: usize,
        end: usize,
        numbers: &mut Vec<Option<u32>>,
    ) -> Result<(), KernelError> {
        let cut = self.candidate.cut(text, self.rule, start, end);
        for kernel in &mut self.kernels {
            kernel.numbers(cut, &self.reference, numbers)?;
        }
        Ok(())
    }
}

fn needs(settings: &Settings) -> Needs {
    let any = |groups: &[Group]| settings.groups.iter().any(|group| groups.contains(group));
    let runs = any(&[Group::Blocks, Group::Coverage]);
    Needs {
        numbers: runs || any(&[Group::Unigrams, Group::Ngrams, Group::Lcs, Group::Leading]),
        runs,
        letters: any(&[Group::Zlib]),
    }
}

fn kernel(group: Group, settings: &Settings) -> Option<Box<dyn Kernel>> {
    let has = |group| settings.groups.contains(&group);
    match group {
        Group::Unigrams if has(Group::Ngrams) => Some(Box::new(OverlapCounter::new(1..=MAX_N))),
        Group::Unigrams => Some(Box::new(OverlapCounter::new(1..=1))),
        Group::Ngrams if has(Group::Unigrams) => None, // theirs are counted by one reading
        Group::Ngrams => Some(Box::new(OverlapCounter::new(2..=MAX_N))),
        Group::Zlib => Some(Box::new(SizeKernel)),
        Group::Lcs => Some(Box::new(LcsCounter::default())),
        Group::Blocks => Some(Box::new(BlockKernel::new(settings.near_verbatim_min_words))),
        Group::Coverage => Some(Box::new(CoverageCounter::default())),
        Group::Distinct => Some(Box::new(DistinctCounter::default())),
        Group::Characters => Some(Box::new(CharacterCounter::default())),
        Group::Leading => Some(Box::new(LeadingCounter::default())),
        Group::Matched => None,
    }
}
