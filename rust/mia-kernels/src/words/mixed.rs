//! Words of texts of which a part is written without spaces.

use super::segments::Segments;

/// Words between white space; where a script has no spaces, its stretches are cut by UAX #29.
///
/// What a word is depends on the characters up to the next white space or change of script alone,
/// so that a text that is cut between two words has the same words. Marks without a letter are no
/// word beside such a script; a cut that parts them from it leaves them one.
#[derive(Debug)]
pub(super) struct Mixed<'a> {
    /// Words of the stretch without spaces that comes before the rest.
    words: Segments<'a>,
    rest: &'a str,
    /// Whether such a stretch ends where the rest begins.
    follows: bool,
}

impl<'a> Mixed<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            words: Segments::new(""),
            rest: text,
            follows: false,
        }
    }

    /// Takes the characters for which `belongs` is true, at least the first.
    fn take(&mut self, belongs: fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|character| !belongs(character));
        let (stretch, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        stretch
    }
}

impl<'a> Iterator for Mixed<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            if let Some(word) = self.words.next() {
                return Some(word);
            }
            let first = self.rest.chars().next()?;
            if is_whitespace(first) {
                self.take(is_whitespace);
                self.follows = false;
            } else if is_unspaced(first) {
                self.words = Segments::new(self.take(is_unspaced));
                self.follows = true;
            } else {
                let stretch = self.take(|each| !is_whitespace(each) && !is_unspaced(each));
                let touches = self.follows || self.rest.starts_with(is_unspaced);
                self.follows = false;
                if !touches || stretch.contains(char::is_alphanumeric) {
                    return Some(stretch);
                }
            }
        }
    }
}

/// Whether a text has a character of a script that is written without spaces.
pub(super) fn has_unspaced(text: &str) -> bool {
    let begins = |byte: &u8| u8::from(matches!(byte, 0xe0 | 0xe1 | 0xe3..=0xea | 0xef..=0xf0));
    // First the bytes that may begin one, piece by piece, because that takes vector instructions.
    let mut pieces = text.as_bytes().chunks(64);
    pieces.any(|piece| piece.iter().map(begins).fold(0, |found, one| found | one) != 0)
        && text.contains(is_unspaced)
}

/// White space as Python's `str.isspace` says.
fn is_whitespace(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// Whether a character is of a script that is written without spaces between words.
fn is_unspaced(character: char) -> bool {
    matches!(character,
        '\u{e00}'..='\u{109f}'                          // Thai, Lao, Tibetan, Myanmar
        | '\u{1780}'..='\u{17ff}'                       // Khmer
        | '\u{1950}'..='\u{19ff}'                       // Tai Le, New Tai Lue, Khmer symbols
        | '\u{1a20}'..='\u{1aaf}'                       // Tai Tham
        | '\u{3005}' | '\u{3007}'                       // marks that stand for a character
        | '\u{3041}'..='\u{312f}'                       // Hiragana, Katakana, Bopomofo
        | '\u{31a0}'..='\u{31bf}' | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{a4cf}' // Han, Yi
        | '\u{a980}'..='\u{a9ff}' | '\u{aa60}'..='\u{aadf}' // Javanese, Myanmar, Tai Viet
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' // Han and Katakana of other encodings
        | '\u{1b000}'..='\u{1b16f}' | '\u{20000}'..='\u{3ffff}')
}
