//! How far a candidate follows its reference from the first word, and from the first character.

use crate::candidate::Cut;
use crate::error::KernelError;
use crate::kernel::{Kernel, Number};
use crate::limits::number;
use crate::reference::Reference;

/// Counts what agrees before the first difference.
#[derive(Default)]
pub(crate) struct LeadingCounter {
    n_words: u32,
}

impl Kernel for LeadingCounter {
    fn fields(&self) -> Vec<String> {
        ["leading_words", "leading_characters"]
            .map(str::to_owned)
            .to_vec()
    }

    fn start(&mut self, _: &Reference) {
        self.n_words = 0;
    }

    fn numbers(
        &mut self,
        cut: Cut<'_>,
        reference: &Reference,
        numbers: &mut Vec<Number>,
    ) -> Result<(), KernelError> {
        for known in cut.new_known {
            let agrees = reference.words.get(known.at as usize) == Some(&known.word);
            if known.at != self.n_words || !agrees {
                break; // nothing behind it stands where the count goes on
            }
            self.n_words += 1;
        }
        let pairs = cut.text().chars().zip(reference.text().chars());
        let n_characters = pairs.take_while(|(left, right)| left == right).count();
        numbers.extend([Some(self.n_words), Some(number(n_characters))]);
        Ok(())
    }
}
