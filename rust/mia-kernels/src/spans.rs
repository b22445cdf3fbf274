//! Where the words of a text stand, in characters.

use crate::error::KernelError;
use crate::limits::{check_length, number};
use crate::words::WordRule;

impl WordRule {
    /// Tells of each word of `text`, in order, the characters before its first and before what
    /// follows its last.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if `text` has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn spans(self, text: &str, mut tell: impl FnMut(u32, u32)) -> Result<(), KernelError> {
        check_length(text.as_bytes())?;
        let origin = text.as_ptr().addr();
        let (mut at, mut n_characters) = (0, 0);
        let mut count_to = |place| {
            n_characters += count_characters(text.as_bytes().get(at..place).unwrap_or_default());
            at = place;
            number(n_characters)
        };
        self.words(text).for_each(|word| {
            let start = word.as_ptr().addr() - origin;
            let first = count_to(start);
            tell(first, count_to(start + word.len()));
        });
        Ok(())
    }
}

/// Bytes that continue no character.
fn count_characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&byte| byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(rule: WordRule, text: &str) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        let told = rule.spans(text, |start, end| found.push((start, end)));
        assert_eq!(told, Ok(()));
        found
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert_eq!(
            spans(WordRule::Whitespace, " né\u{3000}🙂 b"),
            [(1, 3), (4, 5), (6, 7)]
        );
        assert_eq!(spans(WordRule::Space, "a\nb  c"), [(0, 3), (5, 6)]);
        assert_eq!(
            spans(WordRule::Unicode, "“我们”e\u{301}."),
            [(1, 2), (2, 3), (4, 6)]
        );
    }

    #[test]
    fn letters_that_are_ascii_in_lower_case_only_belong_to_words() {
        assert_eq!(
            spans(WordRule::Rouge, "5\u{212a}-É a\u{130}b"),
            [(0, 2), (5, 7), (7, 8)]
        );
    }

    #[test]
    fn nothing_has_no_words() {
        assert_eq!(spans(WordRule::Unicode, ""), []);
        assert_eq!(spans(WordRule::Unicode, " 。\0"), []);
    }
}
