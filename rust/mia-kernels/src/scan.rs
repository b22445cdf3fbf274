//! Runs of bytes between separators, 64 bytes at a time.

/// Which bytes of a block of 64 are separators, the first lowest.
pub(crate) type Mask = u64;

/// The runs of a text that hold no separator.
#[derive(Debug)]
pub(crate) struct Runs<'a> {
    text: &'a [u8],
    separators: fn(&'a [u8], usize) -> u128,
    /// Where the next block starts.
    next: usize,
    /// Where runs of the block at hand start and end.
    edges: Mask,
    /// Whether the block's last byte stands in a run.
    inside: bool,
    /// Separators that reach into the next block.
    over: u128,
}

impl<'a> Runs<'a> {
    /// `separators` marks those of the block that starts at some place of the text; a
    /// separator of several bytes may reach behind it.
    pub(crate) fn new(text: &'a [u8], separators: fn(&'a [u8], usize) -> u128) -> Self {
        Self {
            text,
            separators,
            next: 0,
            edges: 0,
            inside: false,
            over: 0,
        }
    }

    /// The next place where a run starts or ends, but for the text's end.
    #[inline]
    fn edge(&mut self) -> Option<usize> {
        while self.edges == 0 {
            if self.next >= self.text.len() {
                return None;
            }
            self.read_block();
        }
        let bit = self.edges.trailing_zeros() as usize;
        self.edges &= self.edges - 1;
        Some(self.next - 64 + bit)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half is kept for the next block"
    )]
    fn read_block(&mut self) {
        let separators = (self.separators)(self.text, self.next) | self.over;
        self.over = separators >> 64;
        let runs = !(separators as Mask);
        self.edges = runs ^ (runs << 1 | Mask::from(self.inside));
        self.inside = runs >> 63 == 1;
        self.next += 64;
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.edge()?;
        let end = self.edge().unwrap_or(self.text.len());
        self.text.get(start..end)
    }
}

/// Marks the bytes of the block that starts at `start`, given the marks of eight: the highest
/// bit of each. What lies behind the text is marked too.
pub(crate) fn block(text: &[u8], start: usize, marks: impl Fn(u64) -> u64) -> Mask {
    let rest = text.get(start..).unwrap_or_default();
    let Some(block) = rest.first_chunk::<64>() else {
        let mut block = [b' '; 64];
        for (byte, &last) in std::iter::zip(&mut block, rest) {
            *byte = last;
        }
        return mask(&block, marks);
    };
    mask(block, marks)
}

fn mask(block: &[u8; 64], marks: impl Fn(u64) -> u64) -> Mask {
    let (eights, _) = block.as_chunks::<8>();
    let mut mask = 0;
    for eight in eights.iter().rev() {
        let marked = marks(u64::from_le_bytes(*eight)) & repeat(0x80);
        // The product gathers the highest bits of all bytes in the highest byte.
        mask = mask << 8 | marked.wrapping_mul(0x0002_0408_1020_4081) >> 56;
    }
    mask
}

/// Marks ASCII bytes from `first` to `last`.
pub(crate) fn between(bytes: u64, first: u8, last: u8) -> u64 {
    let ascii = bytes & repeat(0x7f);
    let from = |first: u8| ascii + repeat(0x80 - first); // no byte overflows
    from(first) & !from(last + 1) & !bytes
}

pub(crate) fn repeat(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}
