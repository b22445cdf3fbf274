//! Code lengths against the steps of zlib, one after the other.

use super::Huffman;

/// Code lengths by the steps of zlib's trees.c, one after the other: `build_tree`, with
/// `pqdownheap` and `smaller`, then `gen_bitlen`.
struct Trees {
    frequencies: Vec<u32>,
    depths: Vec<u32>,
    parents: Vec<usize>,
    heap: Vec<usize>,
}

impl Trees {
    fn is_smaller(&self, one: usize, other: usize) -> bool {
        let key = |node: usize| (self.frequencies[node], self.depths[node]);
        key(one) <= key(other)
    }

    /// Takes the node of a slot down; the top is slot 1.
    fn sink(&mut self, mut slot: usize) {
        let node = self.heap[slot];
        loop {
            let mut child = 2 * slot;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len()
                && self.is_smaller(self.heap[child + 1], self.heap[child])
            {
                child += 1;
            }
            if self.is_smaller(node, self.heap[child]) {
                break;
            }
            self.heap[slot] = self.heap[child];
            slot = child;
        }
        self.heap[slot] = node;
    }

    fn lengths(frequencies: &[u32], max_length: usize) -> Vec<u8> {
        let n_symbols = frequencies.len();
        let mut trees = Self {
            frequencies: [frequencies, &vec![0; n_symbols]].concat(),
            depths: vec![0; 2 * n_symbols],
            parents: vec![0; 2 * n_symbols],
            heap: vec![usize::MAX],
        };
        trees
            .heap
            .extend((0..n_symbols).filter(|symbol| frequencies[*symbol] > 0));
        let mut last = trees.heap[1..].last().copied();
        while trees.heap.len() < 3 {
            let forced = last.map_or(0, |last| if last < 2 { last + 1 } else { 0 });
            last = last.max(Some(forced));
            trees.frequencies[forced] = 1;
            trees.heap.push(forced);
        }
        for slot in (1..=(trees.heap.len() - 1) / 2).rev() {
            trees.sink(slot);
        }
        let mut order = Vec::new(); // as they leave the heap
        for node in n_symbols.. {
            let one = trees.heap.swap_remove(1);
            trees.sink(1);
            let other = trees.heap[1];
            order.extend([one, other]);
            trees.frequencies[node] = trees.frequencies[one] + trees.frequencies[other];
            trees.depths[node] = trees.depths[one].max(trees.depths[other]) + 1;
            trees.parents[one] = node;
            trees.parents[other] = node;
            trees.heap[1] = node;
            trees.sink(1);
            if trees.heap.len() == 2 {
                break;
            }
        }
        let n_codes = last.map_or(0, |last| last + 1);
        trees.limit(&order, n_symbols, max_length)[..n_codes].to_vec()
    }

    fn limit(&self, order: &[usize], n_symbols: usize, max_length: usize) -> Vec<u8> {
        let mut lengths = vec![0; 2 * n_symbols];
        let mut counts = vec![0; max_length + 1];
        let mut n_over = 0;
        for &node in order.iter().rev() {
            let length = lengths[self.parents[node]] + 1;
            n_over += i32::from(length > max_length);
            lengths[node] = length.min(max_length);
            if node < n_symbols {
                counts[lengths[node]] += 1;
            }
        }
        let is_over = n_over > 0;
        while n_over > 0 {
            let shorter = (1..max_length).rev().find(|length| counts[*length] > 0);
            let shorter = shorter.expect("a shorter code");
            counts[shorter] -= 1;
            counts[shorter + 1] += 2;
            counts[max_length] -= 1;
            n_over -= 2;
        }
        let mut leaves = order.iter().filter(|node| **node < n_symbols);
        for length in (1..=max_length).rev().filter(|_| is_over) {
            for leaf in leaves.by_ref().take(counts[length]) {
                lengths[*leaf] = length;
            }
        }
        lengths
            .iter()
            .map(|length| u8::try_from(*length).unwrap())
            .collect()
    }
}

/// Knuth's generator MMIX.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(limit)).unwrap()
    }
}

/// Frequencies of which all are less than 2^17 together, as in a block.
fn frequencies(random: &mut Random, n_symbols: usize, kind: u32) -> Vec<u32> {
    let mut series = [1, 1];
    let mut all: Vec<u32> = (0..n_symbols)
        .map(|symbol| match kind {
            0 => random.below(2),
            1 => random.below(400),
            2 => 1 << random.below(8),
            3 => u32::from(random.below(40) == 0),
            4 => 1 + random.below(2),
            _ if symbol < 22 => {
                series = [series[1], series[0] + series[1]]; // Fibonacci's make the deepest tree
                series[0] + random.below(2) * random.below(3)
            }
            _ => 0,
        })
        .collect();
    for at in (1..all.len()).rev() {
        let other = random.below(u32::try_from(at + 1).unwrap()) as usize;
        all.swap(at, other);
    }
    all
}

#[test]
fn lengths_are_those_of_zlib() {
    let (mut random, mut huffman) = (Random(1), Huffman::default());
    let mut n_limited = [0; 2];
    for round in 0..6000 {
        for (at, (n_symbols, max_length)) in [(286, 15), (30, 15), (19, 7)].into_iter().enumerate()
        {
            let frequencies = frequencies(&mut random, n_symbols, round % 6);
            let expected = Trees::lengths(&frequencies, max_length.into());
            assert_eq!(huffman.lengths(&frequencies, max_length), expected);
            let unlimited = Trees::lengths(&frequencies, 31);
            n_limited[usize::from(at == 2)] += u32::from(unlimited != expected);
        }
    }
    assert!(n_limited.iter().all(|n| *n > 200), "{n_limited:?}");
}
