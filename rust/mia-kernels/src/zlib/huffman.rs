//! Code lengths as zlib gives them.
//!
//! Among codes that are equally short, zlib's own is needed, because the code lengths are
//! part of the stream. So its heap is followed step by step: symbols of equal frequency are
//! told apart by the depth of their subtree, and then by where the heap happens to hold them.

#![expect(
    clippy::indexing_slicing,
    reason = "heap slots and nodes are indices that this module hands out"
)]

use std::hint::select_unpredictable;

use crate::limits::number;

/// The most symbols that an alphabet has: literals, the block's end and lengths.
const MAX_SYMBOLS: usize = 286;
const NO_NODE: Node = Node(u32::MAX);

/// A subtree: frequency, depth and number in one integer, so that one comparison does.
#[derive(Clone, Copy)]
struct Node(u32);

impl Node {
    const NUMBER_BITS: u32 = 10;
    const DEPTH_BITS: u32 = 5;
    const NUMBER: u32 = (1 << Self::NUMBER_BITS) - 1;

    fn leaf(frequency: u32, symbol: usize) -> Self {
        Self(frequency << (Self::NUMBER_BITS + Self::DEPTH_BITS) | number(symbol))
    }

    fn parent(self, other: Self, node: usize) -> Self {
        let frequency = self.frequency() + other.frequency();
        let depth = self.depth().max(other.depth()) + 1;
        Self((frequency << Self::DEPTH_BITS | depth) << Self::NUMBER_BITS | number(node))
    }

    fn frequency(self) -> u32 {
        self.0 >> (Self::NUMBER_BITS + Self::DEPTH_BITS)
    }

    fn depth(self) -> u32 {
        self.0 >> Self::NUMBER_BITS & ((1 << Self::DEPTH_BITS) - 1)
    }

    fn number(self) -> usize {
        (self.0 & Self::NUMBER) as usize
    }

    /// Whether zlib prefers this one to the other. Both may prefer themselves.
    fn is_before(self, other: Self) -> bool {
        self.0 <= other.0 | Self::NUMBER
    }
}

/// Builds one code after the other in the same memory.
pub(super) struct Huffman {
    /// Slot 0 is not used, and the slot after the last node holds [`NO_NODE`].
    heap: [Node; 512],
    n_nodes: usize,
    /// Nodes in the order in which they got a parent: two by two, seldom ones first.
    order: Vec<u16>,
    parents: [u16; 2 * MAX_SYMBOLS],
    lengths: [u8; 2 * MAX_SYMBOLS],
}

impl Default for Huffman {
    fn default() -> Self {
        Self {
            heap: [NO_NODE; 512],
            n_nodes: 0,
            order: Vec::with_capacity(2 * MAX_SYMBOLS),
            parents: [0; 2 * MAX_SYMBOLS],
            lengths: [0; 2 * MAX_SYMBOLS],
        }
    }
}

impl Huffman {
    /// The code length of every symbol up to the last one that has a code. There are at least
    /// two codes, even if fewer symbols occur.
    pub(super) fn lengths(&mut self, frequencies: &[u32], max_length: u8) -> &[u8] {
        let n_symbols = frequencies.len();
        let n_codes = self.fill_heap(frequencies);
        let root = self.merge(n_symbols);
        self.lengths[..n_symbols].fill(0);
        self.lengths[root] = 0;
        let mut too_long = 0;
        for &node in self.order.iter().rev() {
            let node = usize::from(node);
            let length = self.lengths[usize::from(self.parents[node])] + 1;
            too_long += i32::from(length > max_length);
            self.lengths[node] = length.min(max_length);
        }
        if too_long > 0 {
            self.shorten(n_symbols, too_long, max_length);
        }
        &self.lengths[..n_codes]
    }

    /// Puts a leaf for each symbol on the heap, and gives the last symbol plus one.
    fn fill_heap(&mut self, frequencies: &[u32]) -> usize {
        let (mut n_nodes, mut n_codes) = (0, 0);
        for (symbol, &frequency) in frequencies.iter().enumerate() {
            let is_used = frequency > 0;
            self.heap[n_nodes + 1] = Node::leaf(frequency, symbol);
            n_nodes += usize::from(is_used);
            n_codes = select_unpredictable(is_used, symbol + 1, n_codes);
        }
        while n_nodes < 2 {
            let symbol = if n_codes < 3 { n_codes } else { 0 };
            n_nodes += 1;
            self.heap[n_nodes] = Node::leaf(1, symbol);
            n_codes = n_codes.max(symbol + 1);
        }
        self.n_nodes = n_nodes;
        self.heap[n_nodes + 1] = NO_NODE;
        for slot in (1..=self.n_nodes / 2).rev() {
            self.sift_down(slot, self.heap[slot]);
        }
        n_codes
    }

    /// Merges the two least frequent nodes until one is left, the root.
    fn merge(&mut self, n_symbols: usize) -> usize {
        self.order.clear();
        let mut number = n_symbols;
        loop {
            let least = self.heap[1];
            let last = std::mem::replace(&mut self.heap[self.n_nodes], NO_NODE);
            self.n_nodes -= 1;
            self.sift_down(1, last);
            let next = self.heap[1];
            for child in [least.number(), next.number()] {
                self.order.push(index(child));
                self.parents[child] = index(number);
            }
            self.sift_down(1, least.parent(next, number));
            if self.n_nodes < 2 {
                return number;
            }
            number += 1;
        }
    }

    /// Puts a node in this slot, or below it and its children up. The way down goes on after
    /// that, without a change, because nobody can predict where it might end.
    #[inline]
    fn sift_down(&mut self, mut slot: usize, mut node: Node) {
        while 2 * slot <= self.n_nodes {
            let [left, right] = [self.heap[2 * slot], self.heap[2 * slot + 1]];
            let is_right = right.is_before(left);
            let child = select_unpredictable(is_right, right, left);
            let is_placed = node.is_before(child);
            self.heap[slot] = select_unpredictable(is_placed, node, child);
            node = select_unpredictable(is_placed, child, node);
            slot = 2 * slot + usize::from(is_right);
        }
        self.heap[slot] = node;
    }

    /// Shortens the codes that are too long, and lengthens others instead.
    #[cold]
    fn shorten(&mut self, n_symbols: usize, mut too_long: i32, max_length: u8) {
        let longest = usize::from(max_length);
        let leaves = self.order.iter().map(|node| usize::from(*node));
        let leaves = leaves.filter(|node| *node < n_symbols);
        let mut counts = [0; 16];
        for leaf in leaves.clone() {
            counts[usize::from(self.lengths[leaf])] += 1;
        }
        while too_long > 0 {
            let shorter = (1..longest).rev().find(|length| counts[*length] > 0);
            let shorter = shorter.unwrap_or(1); // a code of one bit at least
            counts[shorter] -= 1;
            counts[shorter + 1] += 2;
            counts[longest] -= 1;
            too_long -= 2;
        }
        let lengths = (1..=max_length).rev();
        let lengths =
            lengths.flat_map(|length| std::iter::repeat_n(length, counts[usize::from(length)]));
        for (leaf, length) in leaves.zip(lengths) {
            self.lengths[leaf] = length;
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "there are less than 2^10 nodes"
)]
fn index(node: usize) -> u16 {
    node as u16
}
