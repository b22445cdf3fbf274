//! How many different words a text has.

use crate::candidate::Cut;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::limits::number;
use crate::reference::Reference;
use crate::vocabulary::Vocabulary;

/// Counts distinct words of a candidate and its reference.
#[derive(Default)]
pub(crate) struct DistinctCounter {
    words: Vocabulary,
}

impl Kernel for DistinctCounter {
    fn fields(&self) -> Vec<String> {
        vec!["distinct_candidate".to_owned()]
    }

    fn reference_fields(&self) -> Vec<String> {
        vec!["distinct_reference".to_owned()]
    }

    fn start(&mut self, _: &Reference) {
        self.words.clear();
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        _: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        for &place in cut.new_places() {
            self.words.intern(cut.spelled(), place);
        }
        numbers.push(Some(number(self.words.len())));
        Ok(())
    }

    fn reference_numbers(&self, reference: &Reference, numbers: &mut Vec<Number>) {
        numbers.push(Some(number(reference.vocabulary.len())));
    }
}
