//! Code lengths as zlib gives them.
//!
//! Among codes that are equally short, zlib's own is needed, because the code lengths are
//! part of the stream. So its heap is followed step by step: symbols of equal frequency are
//! distinguished by the depth of their subtree, and then by where the heap happens to hold them.

#![expect(
    clippy::indexing_slicing,
    reason = "heap slots and nodes are indices that this module hands out"
)]

use std::hint::select_unpredictable;
use std::mem::replace;

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

    fn index(self) -> u16 {
        (self.0 & Self::NUMBER) as u16
    }

    /// Whether zlib prefers this one to the other. Both may prefer themselves.
    fn is_before(self, other: Self) -> bool {
        self.0 <= other.0 | Self::NUMBER
    }
}

/// A node on its way down the heap, from a slot that is empty.
struct Sinking {
    node: Node,
    slot: usize,
}

impl Sinking {
    /// Goes down one level, given what stands there, and tells what comes to the slot it leaves.
    ///
    /// Once it has found its slot, the node below it goes on instead, and nothing changes any
    /// more: nobody can predict where the way might end, so it always ends at the bottom.
    #[inline]
    fn pass(&mut self, [left, right]: [Node; 2]) -> Node {
        let is_right = right.is_before(left);
        let child = select_unpredictable(is_right, right, left);
        let is_placed = self.node.is_before(child);
        let stays = select_unpredictable(is_placed, self.node, child);
        self.node = select_unpredictable(is_placed, child, self.node);
        self.slot = 2 * self.slot + usize::from(is_right);
        stays
    }
}

/// Builds one code after the other in the same memory.
pub(super) struct Huffman {
    /// Slots 2n and 2n + 1, which are below slot n, make row n. The slots after the last node
    /// hold [`NO_NODE`], and slot 0 is not used.
    heap: [[Node; 2]; 256],
    n_nodes: usize,
    /// The children of each parent, seldom ones first.
    merged: [[u16; 2]; MAX_SYMBOLS],
    lengths: [u8; 2 * MAX_SYMBOLS],
}

impl Default for Huffman {
    fn default() -> Self {
        Self {
            heap: [[NO_NODE; 2]; 256],
            n_nodes: 0,
            merged: [[0; 2]; MAX_SYMBOLS],
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
        let n_parents = self.merge(n_symbols);
        self.lengths[..n_symbols].fill(0);
        self.lengths[n_symbols + n_parents - 1] = 0;
        let mut too_long = 0;
        for parent in (0..n_parents).rev() {
            let length = self.lengths[n_symbols + parent] + 1;
            for child in self.merged[parent] {
                too_long += i32::from(length > max_length);
                self.lengths[usize::from(child)] = length.min(max_length);
            }
        }
        if too_long > 0 {
            self.shorten(n_symbols, n_parents, too_long, max_length);
        }
        &self.lengths[..n_codes]
    }

    /// Puts a leaf for each symbol on the heap, and gives the last symbol plus one.
    fn fill_heap(&mut self, frequencies: &[u32]) -> usize {
        let (mut n_nodes, mut n_codes) = (0, 0);
        for (symbol, &frequency) in frequencies.iter().enumerate() {
            let is_used = frequency > 0;
            self.put(n_nodes + 1, Node::leaf(frequency, symbol));
            n_nodes += usize::from(is_used);
            n_codes = select_unpredictable(is_used, symbol + 1, n_codes);
        }
        while n_nodes < 2 {
            let symbol = if n_codes < 3 { n_codes } else { 0 };
            n_nodes += 1;
            self.put(n_nodes, Node::leaf(1, symbol));
            n_codes = n_codes.max(symbol + 1);
        }
        self.n_nodes = n_nodes;
        self.put(n_nodes + 1, NO_NODE);
        for slot in (1..=n_nodes / 2).rev() {
            let node = self.heap[slot / 2][slot % 2];
            let mut sinking = Sinking { node, slot };
            while 2 * sinking.slot <= n_nodes {
                self.pass(&mut sinking);
            }
            self.put(sinking.slot, sinking.node);
        }
        n_codes
    }

    /// Merges the two least frequent nodes until one is left, and tells how many times.
    ///
    /// zlib takes the least one off the top of the heap, where it puts the last one, which
    /// sinks; then it puts the parent in place of the next one, which has come to the top, and
    /// the parent sinks. Here both sink together, the parent one level behind.
    fn merge(&mut self, n_symbols: usize) -> usize {
        let mut n_parents = 0;
        loop {
            let least = self.heap[0][1];
            let [row, side] = [self.n_nodes / 2, self.n_nodes % 2];
            let node = replace(&mut self.heap[row][side], NO_NODE);
            let mut last = Sinking { node, slot: 1 };
            self.n_nodes -= 1;
            if self.n_nodes == 1 {
                self.merged[n_parents] = [least, last.node].map(Node::index);
                return n_parents + 1;
            }
            let next = last.pass(self.heap[1]);
            self.merged[n_parents] = [least, next].map(Node::index);
            let node = least.parent(next, n_symbols + n_parents);
            n_parents += 1;
            let mut parent = Sinking { node, slot: 1 };
            for _ in 1..self.n_nodes.ilog2() {
                let (slot, [left, right]) = (last.slot, self.heap[parent.slot]);
                let comes = self.pass(&mut last);
                let children = [
                    select_unpredictable(slot == 2 * parent.slot, comes, left),
                    select_unpredictable(slot == 2 * parent.slot + 1, comes, right),
                ];
                let slot = parent.slot;
                let comes = parent.pass(children);
                self.put(slot, comes);
            }
            self.put(last.slot, last.node);
            self.pass(&mut parent);
            self.put(parent.slot, parent.node);
        }
    }

    /// Takes a node down one level.
    #[inline]
    fn pass(&mut self, sinking: &mut Sinking) -> Node {
        let slot = sinking.slot;
        let comes = sinking.pass(self.heap[slot]);
        self.put(slot, comes);
        comes
    }

    #[inline]
    fn put(&mut self, slot: usize, node: Node) {
        self.heap.as_flattened_mut()[slot] = node;
    }

    /// Shortens the codes that are too long, and lengthens others instead.
    #[cold]
    fn shorten(&mut self, n_symbols: usize, n_parents: usize, mut too_long: i32, max_length: u8) {
        let longest = usize::from(max_length);
        let leaves = self.merged[..n_parents].as_flattened().iter();
        let leaves = leaves.map(|node| usize::from(*node));
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

#[cfg(test)]
mod tests;
