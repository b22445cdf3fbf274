use crate::error::{KernelError, MAX_BYTES};

/// Refuses a text of more than [`MAX_BYTES`].
pub(crate) fn check_length(text: &[u8]) -> Result<(), KernelError> {
    if text.len() > MAX_BYTES {
        return Err(KernelError::TooLong(text.len()));
    }
    Ok(())
}

/// A count as it is stored.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a text within the limit has at most 2^30 characters and 2^29 words, and nothing \
              is counted that has more than three for a character or five for a word"
)]
pub(crate) fn number(count: usize) -> u32 {
    count as u32
}
