//! The part of a text that zlib has in view, and where the same bytes stand in it before.
//!
//! zlib holds 64 KiB. Near their end it moves the upper half down and reads on. At level 6
//! every place joins its hash chain, whatever the matches are, so the chains of all that is in
//! view are linked as soon as it is read.
//!
//! A short text is read behind those before it, while there is room: to clear all chains for
//! every text would take longer than the text.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the window, and hashes have 15 bits"
)]

use std::array::from_fn;
use std::mem::replace;

/// The longest match.
pub(super) const MAX_LENGTH: usize = 258;
/// How far back a match may start.
pub(super) const MAX_DISTANCE: usize = HALF - MIN_LOOKAHEAD;

const HALF: usize = 1 << 15;
const SIZE: usize = 2 * HALF;
/// zlib reads on when fewer bytes are left: the longest match, and a hash after it.
const MIN_LOOKAHEAD: usize = MAX_LENGTH + 4;
/// From here on zlib moves the window before it reads on.
const FULL: usize = HALF + MAX_DISTANCE;
/// zlib's.
const THREE_BITS: u32 = 15;
const FOUR_BITS: u32 = 15;

/// Fields of a place's links.
const RANK: usize = 1;
const FOUR: usize = 2;

/// The bytes in view and their hash chains.
pub(super) struct Window {
    bytes: Box<[u8; SIZE + 8]>,
    /// Where the text starts.
    start: usize,
    /// Where the text, or what is in view of it, ends.
    end: usize,
    /// For each place its [`Links`], and a field to make one store do.
    links: Box<[[u16; 4]; SIZE]>,
    /// For each hash of three bytes its last place.
    last_threes: Box<[u16; 1 << THREE_BITS]>,
    /// For each hash of four bytes its last place.
    last_fours: Box<[u16; 1 << FOUR_BITS]>,
}

/// What is known about a place. What it names is out of view unless it is after the start.
#[derive(Clone, Copy)]
pub(super) struct Links {
    /// The last place before it in its hash chain, which is that of its three bytes.
    pub(super) three: u16,
    /// How far down the hash chain it is, modulo 2^16.
    pub(super) rank: u16,
    /// The last place before it with the same hash of four bytes.
    pub(super) four: u16,
}

#[expect(clippy::large_stack_arrays, reason = "made once for many texts")]
impl Default for Window {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; SIZE + 8]),
            start: 0,
            end: 0,
            links: Box::new([[0; 4]; SIZE]),
            last_threes: Box::new([0; 1 << THREE_BITS]),
            last_fours: Box::new([0; 1 << FOUR_BITS]),
        }
    }
}

impl Window {
    /// Reads the start of another text, which it takes from `unread`.
    pub(super) fn open(&mut self, unread: &mut &[u8]) {
        if self.end + unread.len() >= FULL {
            self.last_threes.fill(0);
            self.last_fours.fill(0);
            self.end = 0;
        }
        self.start = self.end;
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

    /// Bytes from `at` to the end of what is in view.
    #[inline]
    pub(super) fn left(&self, at: usize) -> usize {
        self.end - at
    }

    #[inline]
    pub(super) fn links(&self, at: usize) -> Links {
        let [three, rank, four, _] = self.links[at % SIZE];
        Links { three, rank, four }
    }

    #[inline]
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
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
        self.links.copy_within(HALF.., 0);
        // Ranks stay. Rows of eight places are wide enough for vector instructions.
        let half = place(HALF);
        let moves: [u16; 32] = from_fn(|field| if field % 4 == RANK { 0 } else { half });
        let (rows, _) = self.links[..HALF].as_flattened_mut().as_chunks_mut::<32>();
        for row in rows {
            for (field, by) in row.iter_mut().zip(moves) {
                *field = field.saturating_sub(by);
            }
        }
        for lasts in [&mut self.last_threes[..], &mut self.last_fours[..]] {
            for last in lasts {
                *last = last.saturating_sub(half);
            }
        }
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
    fn link(&mut self, at: usize, is_end: bool) {
        let n_linked = (self.end + usize::from(is_end)).saturating_sub(3 + at);
        let rest = at + n_linked;
        let (links, threes, fours) = (
            &mut *self.links,
            &mut *self.last_threes,
            &mut *self.last_fours,
        );
        let (mut hash, mut rank) = (usize::MAX, 0);
        for (at, bytes) in (at..rest).zip(self.bytes[at..].windows(4)) {
            let bytes = bytes
                .first_chunk()
                .map_or(0, |bytes| u32::from_le_bytes(*bytes));
            let previous = replace(&mut hash, hash_three(bytes));
            let mut three = replace(&mut threes[hash], place(at));
            if hash == previous {
                three = place(at - 1); // known before memory tells, which matters for runs
            } else {
                rank = links[usize::from(three)][RANK];
            }
            rank = rank.wrapping_add(1);
            let four = replace(&mut fours[hash_four(bytes)], place(at));
            links[at % SIZE] = [three, rank, four, 0];
        }
        if is_end && n_linked > 0 {
            self.links[rest - 1][FOUR] = 0;
        }
        for at in rest..=self.end {
            self.links[at % SIZE] = [0; 4];
        }
    }
}

/// zlib's hash of three bytes, the first one lowest.
fn hash_three(bytes: u32) -> usize {
    ((bytes << 10 ^ bytes >> 3 & 0x1fe0 ^ bytes >> 16 & 0xff) % (1 << THREE_BITS)) as usize
}

/// A multiplicative hash (Knuth, The Art of Computer Programming 3, section 6.4).
pub(super) fn hash_four(bytes: u32) -> usize {
    (bytes.wrapping_mul(0x9e37_79b1) >> (32 - FOUR_BITS)) as usize
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the window has 2^16 places"
)]
fn place(at: usize) -> u16 {
    at as u16
}
