use thiserror::Error;

/// The longest text in bytes: 1 GiB, so that every count fits 32 bits.
pub const MAX_BYTES: usize = 1 << 30;

/// Why a kernel gives no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// The counts might not fit 32 bits.
    #[error("a text has {0} bytes, more than the {MAX_BYTES} allowed; cut it into windows")]
    TooLong(usize),
}
