//! Words joined by single spaces.

#![expect(
    clippy::indexing_slicing,
    reason = "places lie inside the text, and there is room for all words and spaces"
)]

use crate::places::Place;

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
            let (start, end) = (start as usize, end as usize);
            let length = end - start;
            match text[start..].first_chunk::<STEP>() {
                Some(word) if length <= STEP => self.letters[to..to + STEP].copy_from_slice(word),
                _ => self.letters[to..to + length].copy_from_slice(&text[start..end]),
            }
            to += length;
            self.letters[to] = b' ';
            to += 1;
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
