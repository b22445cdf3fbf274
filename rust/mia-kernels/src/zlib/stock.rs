//! Classic zlib itself, for comparison.

use std::ffi::CStr;

use flate2::{Compress, Compression, FlushCompress, Status};

use crate::error::KernelError;
use crate::limits::check_length;

/// What Python's `zlib.compress` takes by default.
const LEVEL: u32 = 6;

/// Compresses texts with classic zlib at level 6 and keeps nothing but the size.
///
/// It is what [`ZlibSizer`](crate::ZlibSizer) is tested and timed against. One stream serves
/// all texts, because a new one would clear 256 KiB of memory each time.
pub struct StockZlib {
    stream: Compress,
    /// Takes the compressed bytes, which nobody reads.
    output: Box<[u8]>,
}

impl Default for StockZlib {
    fn default() -> Self {
        Self {
            stream: Compress::new(Compression::new(LEVEL), true),
            output: vec![0; 4096].into(),
        }
    }
}

impl StockZlib {
    /// Bytes of the zlib stream of `text`; 8 for an empty text.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLong`] if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
    pub fn size(&mut self, text: &[u8]) -> Result<u32, KernelError> {
        check_length(text)?;
        self.stream.reset();
        let mut rest = text;
        while self.compress(rest)? != Status::StreamEnd {
            let read = usize::try_from(self.stream.total_in()).ok();
            rest = read
                .and_then(|read| text.get(read..))
                .ok_or(KernelError::Zlib)?;
        }
        u32::try_from(self.stream.total_out()).map_err(|_| KernelError::TooLong(text.len()))
    }

    fn compress(&mut self, text: &[u8]) -> Result<Status, KernelError> {
        match self
            .stream
            .compress(text, &mut self.output, FlushCompress::Finish)
        {
            Ok(Status::BufError) | Err(_) => Err(KernelError::Zlib),
            Ok(status) => Ok(status),
        }
    }
}

/// Version of the zlib inside, such as `"1.3.1"`.
#[expect(unsafe_code, reason = "a call into C")]
pub fn zlib_version() -> &'static str {
    // SAFETY: zlib returns a pointer to a constant, terminated string.
    let version = unsafe { CStr::from_ptr(libz_sys::zlibVersion()) };
    version.to_str().unwrap_or("unknown")
}
