//! Families of texts, each hard for zlib in its own way. All take a random source, real text
//! and the number of bytes wanted.

/// Hands the names of all families to a macro.
macro_rules! families {
    ($each:ident) => {
        $each!(
            text_cuts,
            random_bytes,
            small_alphabets,
            periodic,
            back_references,
            spliced_text,
            skewed,
            multi_byte_utf8,
            runs,
            far_short_matches,
            full_hash_chains,
            concatenations,
        );
    };
}
pub(crate) use families;

/// `SplitMix64` (Steele, Lea and Flood 2014): every seed gives another sequence.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    /// Numbers below a limit, each number of bits as likely as the next.
    pub(crate) fn magnitude(&mut self, limit: usize) -> usize {
        let n_bits = 1 + self.below(limit.ilog2() as usize);
        self.below(1 << n_bits)
    }

    fn cut<'a>(&mut self, text: &'a [u8], length: usize) -> &'a [u8] {
        let start = self.below(text.len());
        &text[start..text.len().min(start + length)]
    }
}

/// Appends pieces up to the length.
fn grow(length: usize, mut push: impl FnMut(&mut Vec<u8>)) -> Vec<u8> {
    let mut text = Vec::with_capacity(length + 1000);
    while text.len() < length {
        push(&mut text);
    }
    text.truncate(length);
    text
}

/// Sets some bytes at random.
fn disturb(random: &mut Random, mut text: Vec<u8>, most: usize) -> Vec<u8> {
    for _ in 0..random.below(most + 1) {
        let at = random.below(text.len().max(1));
        let byte = random.byte();
        text.get_mut(at..=at).unwrap_or_default().fill(byte);
    }
    text
}

/// Repeats what stands `distance` before the end, itself included where they overlap.
fn copy_back(text: &mut Vec<u8>, distance: usize, length: usize) {
    for _ in 0..length {
        text.push(text[text.len() - distance]);
    }
}

pub(crate) fn text_cuts(random: &mut Random, prose: &[u8], length: usize) -> Vec<u8> {
    random.cut(prose, length).to_vec()
}

pub(crate) fn random_bytes(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    random.bytes(length)
}

pub(crate) fn small_alphabets(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    let alphabet: Vec<_> = (0..=random.below(7)).map(|_| random.byte()).collect();
    grow(length, |text| {
        text.push(alphabet[random.below(alphabet.len())]);
    })
}

pub(crate) fn periodic(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    let n_bytes = 1 + random.magnitude(400);
    let period = random.bytes(n_bytes);
    let text = period.into_iter().cycle().take(length).collect();
    disturb(random, text, 10)
}

pub(crate) fn back_references(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    grow(length, |text| {
        if text.is_empty() || random.below(3) == 0 {
            let n_bytes = 1 + random.below(12);
            text.extend((0..n_bytes).map(|_| b' ' + random.byte() % 96));
        } else {
            let distance = 1 + random.below(text.len());
            copy_back(text, distance, 2 + random.magnitude(300));
        }
    })
}

pub(crate) fn spliced_text(random: &mut Random, prose: &[u8], length: usize) -> Vec<u8> {
    grow(length, |text| {
        let n_bytes = 1 + random.magnitude(256);
        text.extend_from_slice(random.cut(prose, n_bytes));
        let n_bytes = random.below(12).saturating_sub(8);
        text.extend(random.bytes(n_bytes));
    })
}

/// Each byte value about half as frequent as the one before, so that some codes are long.
pub(crate) fn skewed(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    let of_eight = 3 + random.below(4);
    let shuffle = random.byte() | 1;
    grow(length, |text| {
        let rank = (0..60).take_while(|_| random.below(8) < of_eight).count();
        text.push((rank as u8).wrapping_mul(shuffle));
    })
}

pub(crate) fn multi_byte_utf8(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    let scripts = [0x400, 0x600, 0x3040, 0x4e00, 0xac00, 0x1_f300];
    let first = scripts[random.below(scripts.len())];
    let n_characters = 1 + random.magnitude(500);
    grow(length, |text| {
        let code = first + random.below(n_characters) as u32;
        let character = char::from_u32(code).unwrap();
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        if random.below(5) == 0 {
            text.push(b' ');
        }
    })
}

pub(crate) fn runs(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    let text = vec![random.byte(); length];
    disturb(random, text, 5)
}

/// Matches so short and far that zlib refuses many of them.
pub(crate) fn far_short_matches(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    grow(length, |text| {
        if text.len() > 3000 && random.below(20) == 0 {
            let distance = text.len().min(3000 + random.magnitude(30_000));
            copy_back(text, distance, 3 + random.below(3));
        } else {
            text.push(random.byte());
        }
    })
}

/// The same start again and again, more often than zlib looks at it.
pub(crate) fn full_hash_chains(random: &mut Random, _: &[u8], length: usize) -> Vec<u8> {
    let start = [&b" the"[..], b"abc", b"   "][random.below(3)];
    let n_ends = 2 + random.below(30);
    let ends: Vec<_> = (0..n_ends)
        .map(|_| {
            let n_bytes = 1 + random.below(14);
            random.bytes(n_bytes)
        })
        .collect();
    grow(length, |text| {
        text.extend_from_slice(start);
        text.extend_from_slice(&ends[random.below(n_ends)]);
        if random.below(3) == 0 {
            text.push(random.byte());
        }
    })
}

/// Several of the others, one after the other and repeated.
pub(crate) fn concatenations(random: &mut Random, prose: &[u8], length: usize) -> Vec<u8> {
    let families = [
        text_cuts,
        random_bytes,
        periodic,
        skewed,
        multi_byte_utf8,
        runs,
    ];
    grow(length, |text| {
        let family = families[random.below(families.len())];
        let n_bytes = random.magnitude(5000);
        let piece = family(random, prose, n_bytes);
        for _ in 0..=random.below(3) {
            text.extend_from_slice(&piece);
        }
    })
}
