//! Classic zlib itself, for comparison.

use flate2::{Compress, Compression, FlushCompress, Status};

/// Compresses texts at level 6, as Python's `zlib.compress`, and keeps nothing but the size. One
/// stream serves all texts: a new one would clear 256 KiB of memory each time.
pub(crate) struct StockZlib {
    stream: Compress,
    output: [u8; 4096],
}

impl Default for StockZlib {
    fn default() -> Self {
        Self {
            stream: Compress::new(Compression::new(6), true),
            output: [0; 4096],
        }
    }
}

impl StockZlib {
    /// Bytes of the stream of `text`; `None` if zlib stops before its end.
    pub(crate) fn size(&mut self, text: &[u8]) -> Option<u32> {
        self.stream.reset();
        loop {
            let rest = text.get(usize::try_from(self.stream.total_in()).ok()?..)?;
            let finish = FlushCompress::Finish;
            match self.stream.compress(rest, &mut self.output, finish).ok()? {
                Status::Ok => {}
                Status::StreamEnd => return u32::try_from(self.stream.total_out()).ok(),
                Status::BufError => return None,
            }
        }
    }
}
