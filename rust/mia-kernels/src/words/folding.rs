//! Spellings that differ in typography alone, made one.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The text with typographic spellings made one: Unicode's form NFC, quotes, dashes and
/// ellipses as typewriters have them, a run of dashes one dash, ligatures as their letters and the
/// long s as s.
///
/// White space stays where it is, so that the text has as many words as before.
pub(super) fn fold(text: &str) -> Cow<'_, str> {
    if !may_change(text.as_bytes()) {
        return Cow::Borrowed(text);
    }
    let plain = write_plainly(text);
    // What stands below U+0300 neither composes nor goes behind another character by itself.
    if is_nfc_quick(plain.chars().filter(|&each| each >= '\u{300}')) == IsNormalized::Yes {
        return Cow::Owned(plain);
    }
    Cow::Owned(plain.nfc().collect())
}

/// Whether there is a byte beyond ASCII, or a dash next to a dash.
fn may_change(text: &[u8]) -> bool {
    let next = text.get(1..).unwrap_or_default();
    let changes = |(&byte, &after): (&u8, &u8)| {
        u8::from(byte >= 0x80) | (u8::from(byte == b'-') & u8::from(after == b'-'))
    };
    // Piece by piece, because that takes vector instructions; the last byte has none behind it.
    let pairs = text.chunks(64).zip(next.chunks(64));
    text.last().is_some_and(|&last| last >= 0x80)
        || pairs
            .map(|(piece, behind)| piece.iter().zip(behind).map(changes))
            .any(|mut marks| marks.by_ref().fold(0, |any, mark| any | mark) != 0)
}

fn write_plainly(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    // What needs no look stands in long stretches.
    while let Some(at) = rest.find(|each: char| each == '-' || !each.is_ascii()) {
        let (stretch, from_here) = rest.split_at(at);
        plain.push_str(stretch);
        let mut characters = from_here.chars();
        if let Some(character) = characters.next() {
            if is_dash(character) {
                if !plain.ends_with('-') {
                    plain.push('-');
                }
            } else if let Some(letters) = spelled_out(character) {
                plain.push_str(letters);
            } else {
                plain.push(character);
            }
        }
        rest = characters.as_str();
    }
    plain.push_str(rest);
    plain
}

fn is_dash(character: char) -> bool {
    matches!(
        character,
        '-' | '\u{2010}'
            ..='\u{2015}'
                | '\u{2212}'
                | '\u{2e3a}'
                | '\u{2e3b}'
                | '\u{fe58}'
                | '\u{fe63}'
                | '\u{ff0d}'
    )
}

/// What a typewriter has in place of a character.
fn spelled_out(character: char) -> Option<&'static str> {
    Some(match character {
        '\u{2bc}'
        | '\u{2018}'..='\u{201b}'
        | '\u{2032}'
        | '\u{2035}'
        | '\u{2039}'
        | '\u{203a}'
        | '\u{ff07}' => "'",
        '\u{ab}'
        | '\u{bb}'
        | '\u{201c}'..='\u{201f}'
        | '\u{2033}'
        | '\u{2036}'
        | '\u{301d}'..='\u{301f}'
        | '\u{ff02}' => "\"",
        '\u{2026}' => "...",
        '\u{17f}' => "s",
        '\u{1e9b}' => "\u{1e61}",
        '\u{132}' => "IJ",
        '\u{133}' => "ij",
        '\u{fb00}' => "ff",
        '\u{fb01}' => "fi",
        '\u{fb02}' => "fl",
        '\u{fb03}' => "ffi",
        '\u{fb04}' => "ffl",
        '\u{fb05}' | '\u{fb06}' => "st",
        '\u{fb13}' => "\u{574}\u{576}",
        '\u{fb14}' => "\u{574}\u{565}",
        '\u{fb15}' => "\u{574}\u{56b}",
        '\u{fb16}' => "\u{57e}\u{576}",
        '\u{fb17}' => "\u{574}\u{56d}",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn spellings_of_one_text_are_one() {
        for (printed, typed) in [
            ("e\u{301}te\u{301}", "\u{e9}t\u{e9}"),
            ("\u{201c}Don\u{2019}t\u{201d}", "\"Don't\""),
            ("\u{ab}Oui\u{bb}", "\"Oui\""),
            ("a\u{2014}b -- c \u{2013} d---", "a-b - c - d-"),
            ("\u{fb01}nd \u{fb02}ower o\u{fb03}ce", "find flower office"),
            ("mo\u{17f}t \u{17f}in\u{2026}", "most sin..."),
            ("\u{17f}\u{307} \u{1e9b}", "\u{1e61} \u{1e61}"),
        ] {
            assert_eq!(fold(printed), typed);
        }
    }

    #[test]
    fn dashes_are_found_wherever_pieces_end() {
        for n_before in 60..70 {
            let text = format!("{}--", "x".repeat(n_before));
            assert_eq!(fold(&text), text.trim_end_matches('-').to_owned() + "-");
        }
    }
}
