//! The part of a text that zlib has in view, and where the same bytes stand in it before.
//!
//! zlib holds 64 KiB. Near their end it moves the upper half down and reads on. At level 6
//! every place joins its hash chain, whatever the matches are, so the chains of all that is in
//! view are linked as soon as it is read: place by place, and where a text repeats itself from
//! the links a period before.
//!
//! A short text is read behind those before it, while there is room: to clear all chains for
//! every text would take longer than the text.

#![expect(clippy::indexing_slicing, reason = "places lie inside the window")]

mod chains;
mod repeat;

use chains::Chains;
use repeat::Repeat;

pub(super) use chains::Links;
#[cfg(test)]
pub(super) use chains::hash_four;

/// The longest match.
pub(super) const MAX_LENGTH: usize = 258;
/// How far back a match may start.
pub(super) const MAX_DISTANCE: usize = HALF - MIN_LOOKAHEAD;

/// Bytes of the window.
pub(super) const SIZE: usize = 2 * HALF;
const HALF: usize = 1 << 15;
/// zlib reads on when fewer bytes are left: the longest match, and a hash after it.
const MIN_LOOKAHEAD: usize = MAX_LENGTH + 4;
/// From here on zlib moves the window before it reads on.
const FULL: usize = HALF + MAX_DISTANCE;

/// What is in view, and so much more that a word can be read at each place.
type Bytes = [u8; SIZE + 8];

/// A text that starts up to here is read behind the others. What their places take stays in the
/// processor's second cache.
const CLOSE: usize = 3 << 13;
/// So often a text is asked whether it repeats itself.
const STRIDE: usize = 128;

/// The bytes in view and their hash chains.
pub(super) struct Window {
    bytes: Box<Bytes>,
    /// Where the text starts.
    start: usize,
    /// Where the text, or what is in view of it, ends.
    end: usize,
    /// By how much the window has moved since the text was opened.
    moved: usize,
    chains: Chains,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for Window {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; SIZE + 8]),
            start: 0,
            end: 0,
            moved: 0,
            chains: Chains::default(),
        }
    }
}

impl Window {
    /// Reads the start of another text, which it takes from `unread`.
    pub(super) fn open(&mut self, unread: &mut &[u8]) {
        if self.end >= CLOSE || self.end + unread.len() >= FULL {
            self.chains.clear();
            self.end = 0;
        }
        self.start = self.end;
        self.moved = 0;
        self.read(unread);
    }

    /// Reads on if too few bytes are left from `at`, and gives the place that `at` has then.
    #[inline]
    pub(super) fn refill(&mut self, at: usize, unread: &mut &[u8]) -> usize {
        if at < FULL || self.left(at) >= MIN_LOOKAHEAD {
            return at;
        }
        self.slide();
        self.read(unread);
        at - HALF
    }

    /// Where the text starts; zlib never finds a match there.
    #[inline]
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Bytes of the text before `at`.
    pub(super) fn n_before(&self, at: usize) -> usize {
        self.moved + at - self.start
    }

    /// Bytes from `at` to the end of what is in view.
    #[inline]
    pub(super) fn left(&self, at: usize) -> usize {
        self.end - at
    }

    #[inline]
    pub(super) fn links(&self, at: usize) -> Links {
        self.chains.links(at)
    }

    #[inline]
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes[at % SIZE]
    }

    /// Eight bytes, the first one lowest; those beyond the end of the text mean nothing.
    #[inline]
    pub(super) fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes[at % SIZE..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    #[cold]
    fn slide(&mut self) {
        self.bytes.copy_within(HALF..SIZE, 0);
        self.end -= HALF;
        self.moved += HALF;
        self.chains.slide();
    }

    fn read(&mut self, unread: &mut &[u8]) {
        let read = self.end;
        let (next, rest) = unread.split_at(unread.len().min(SIZE - read));
        self.end += next.len();
        self.bytes[read..self.end].copy_from_slice(next);
        *unread = rest;
        if read < self.end {
            self.link(read.saturating_sub(3).max(self.start), unread.is_empty());
        }
    }

    /// Links the places from `at` on that have four bytes, and the one that has three if the
    /// text ends here.
    fn link(&mut self, mut at: usize, is_end: bool) {
        let n_linked = (self.end + usize::from(is_end)).saturating_sub(3 + at);
        let rest = at + n_linked;
        let bytes = &*self.bytes;
        while at < rest {
            at = if let Some(repeat) = self.repeat(at) {
                self.chains.link(bytes, at..repeat.start);
                self.chains.link_repeat(bytes, &repeat);
                repeat.end
            } else {
                let next = rest.min(at + STRIDE);
                self.chains.link(bytes, at..next);
                next
            };
        }
        if is_end && n_linked > 0 {
            self.chains.unlink_four(rest - 1);
        }
        self.chains.unlink(rest..=self.end);
    }

    /// Whether the text goes on from `at` as it did from the last place with the same four bytes.
    #[inline]
    fn repeat(&self, at: usize) -> Option<Repeat> {
        let before = self.chains.last_four(&self.bytes[at..]);
        if before < self.start {
            return None;
        }
        Repeat::find(&self.bytes[..self.end], before, at)
    }
}
