//! Words joined by single spaces.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the text, and there is room for all words and spaces"
)]

use crate::places::{self, Place};

/// Bytes that a word is copied by.
const STEP: usize = 16;

/// The words of one text.
#[derive(Default)]
pub(crate) struct Joined {
    /// Whether the text itself joins them so.
    is_text: bool,
    /// Else they are copied here, and what stands behind them means nothing.
    letters: Vec<u8>,
}

impl Joined {
    /// Takes the words of a text from their places.
    pub(crate) fn read(&mut self, text: &[u8], places: &[Place]) {
        let mut neighbours = places.iter().zip(places.iter().skip(1));
        self.is_text = neighbours.all(|(&[_, end], &[start, _])| {
            end + 1 == start && text.get(end as usize) == Some(&b' ')
        });
        if !self.is_text {
            self.copy(text, places);
        }
    }

    fn copy(&mut self, text: &[u8], places: &[Place]) {
        let room = text.len() + places.len() + STEP;
        if self.letters.len() < room {
            self.letters.resize(room, 0);
        }
        let mut to = 0;
        for &[start, end] in places {
            let length = (end - start) as usize;
            let letters = &mut self.letters[to..];
            match letters.first_chunk_mut::<{ STEP + 1 }>() {
                Some(step) if length <= STEP => {
                    step[..STEP].copy_from_slice(&places::letters::<STEP>(text, start));
                    step[length] = b' ';
                }
                _ => {
                    letters[..length].copy_from_slice(&text[start as usize..end as usize]);
                    letters[length] = b' ';
                }
            }
            to += length + 1;
        }
    }

    /// Those at `places`, the first ones of the text that was read.
    pub(crate) fn words<'a>(&'a self, text: &'a [u8], places: &[Place]) -> &'a [u8] {
        let ([first, ..], [.., last]) = (places, places) else {
            return &[];
        };
        if self.is_text {
            return &text[first[0] as usize..last[1] as usize];
        }
        let n_letters: u32 = places.iter().map(|[start, end]| end - start).sum();
        &self.letters[..n_letters as usize + places.len() - 1]
    }
}
