//! The part of a text that zlib has in view, and where the same bytes stand in it before.
//!
//! zlib holds 64 KiB. Near their end it moves the upper half down and reads on. Places are
//! counted from the start of the window, and 0 also means "nowhere": what stands there is
//! never matched. At level 6 every place joins its hash chain, whatever the matches are, so
//! the chains of the whole window are linked as soon as it is read.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the window, and hashes have 15 bits"
)]

/// The longest match.
pub(super) const MAX_LENGTH: usize = 258;
/// How far back a match may start.
pub(super) const MAX_DISTANCE: usize = HALF - MIN_LOOKAHEAD;

const HALF: usize = 1 << 15;
const SIZE: usize = 2 * HALF;
/// zlib reads on when fewer bytes are left: the longest match, and a hash after it.
const MIN_LOOKAHEAD: usize = MAX_LENGTH + 4;
const HASHES: usize = 1 << 15;

/// The bytes in view and their hash chains.
pub(super) struct Window {
    bytes: Box<[u8; SIZE + 8]>,
    /// Bytes in view.
    end: usize,
    /// For each place the last one before it with the same hash.
    previous: Box<[u16; SIZE]>,
    /// For each hash its last place, plus `past`.
    heads: Box<[u16; HASHES]>,
    /// Heads up to here are of texts read before. It spares clearing all heads for each text.
    past: u16,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for Window {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; SIZE + 8]),
            end: 0,
            previous: Box::new([0; SIZE]),
            heads: Box::new([0; HASHES]),
            past: 0,
        }
    }
}

impl Window {
    /// Forgets the last text and reads the start of another, which it takes from `unread`.
    pub(super) fn open(&mut self, unread: &mut &[u8]) {
        let past = usize::from(self.past) + self.end;
        if past + unread.len() < SIZE {
            self.past = place(past);
        } else {
            self.past = 0;
            self.heads.fill(0);
        }
        self.end = 0;
        self.read(unread);
    }

    /// Reads on if too few bytes are left from `at`, and gives the place that `at` has then.
    #[inline]
    pub(super) fn refill(&mut self, mut at: usize, unread: &mut &[u8]) -> usize {
        if self.left(at) < MIN_LOOKAHEAD && at >= HALF + MAX_DISTANCE {
            self.slide();
            self.read(unread);
            at -= HALF;
        }
        at
    }

    /// Bytes from `at` to the end of what is in view.
    #[inline]
    pub(super) fn left(&self, at: usize) -> usize {
        self.end - at
    }

    /// The last place before `at` whose three bytes have the same hash; 0 if there is none.
    #[inline]
    pub(super) fn previous(&self, at: usize) -> usize {
        self.previous[at % SIZE].into()
    }

    #[inline]
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// Eight bytes, the first one lowest; those beyond the end of the text mean nothing.
    #[inline]
    pub(super) fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes[at..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn slide(&mut self) {
        self.bytes.copy_within(HALF..SIZE, 0);
        self.end -= HALF;
        self.previous.copy_within(HALF.., 0);
        let places = self.previous[..HALF].iter_mut().chain(&mut *self.heads);
        places.for_each(|place| *place = place.saturating_sub(1 << 15));
    }

    fn read(&mut self, unread: &mut &[u8]) {
        let start = self.end;
        let (read, rest) = unread.split_at(unread.len().min(SIZE - start));
        self.end += read.len();
        self.bytes[start..self.end].copy_from_slice(read);
        *unread = rest;
        self.link(start.saturating_sub(2));
    }

    /// Links the places from `start` on. The last two and the end have no three bytes, so no chain.
    fn link(&mut self, start: usize) {
        let bytes = &self.bytes[start..self.end];
        let previous = &mut self.previous[start..self.end];
        for ((at, bytes), previous) in (start..).zip(bytes.windows(3)).zip(&mut *previous) {
            let head = &mut self.heads[hash(bytes)];
            *previous = head.saturating_sub(self.past);
            *head = place(at) + self.past;
        }
        previous
            .iter_mut()
            .rev()
            .take(2)
            .for_each(|place| *place = 0);
        self.previous[self.end % SIZE] = 0;
    }
}

/// zlib's hash of three bytes.
fn hash(bytes: &[u8]) -> usize {
    let shifted = bytes
        .iter()
        .fold(0, |hash, byte| hash << 5 ^ usize::from(*byte));
    shifted % HASHES
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the window has 2^16 places"
)]
fn place(at: usize) -> u16 {
    at as u16
}
