//! The prefix tree of routers that remember what they sent where, whole texts and no blocks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::sim::workload::{Request, mix};

/// A stretch of text after all that comes before it.
#[derive(Debug)]
struct Node {
    parent: u64,
    tokens: u32,
    /// Who was sent it first.
    owner: usize,
    /// When each endpoint was last sent it, if ever.
    sent_us: Vec<Option<u64>>,
}

/// The longest known beginning of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) tokens: u64,
    /// Who was sent it first, if they still count as having it; else any that has it.
    pub(super) owner: Option<usize>,
    /// Everybody who was sent it.
    pub(super) holders: Vec<usize>,
}

/// A tree for all endpoints together.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    /// Tokens of the nodes that each endpoint has.
    sizes_tokens: Vec<u64>,
}

impl Tree {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            nodes: HashMap::new(),
            sizes_tokens: vec![0; endpoints],
        }
    }

    /// How much each endpoint was sent, by its index.
    pub(super) fn sizes_tokens(&self) -> impl Iterator<Item = (usize, u64)> {
        self.sizes_tokens.iter().copied().enumerate()
    }

    pub(super) fn matched(&self, request: &Request) -> Match {
        let mut matched = Match::default();
        let mut deepest = None;
        for (key, tokens) in path(request) {
            let Some(node) = self.nodes.get(&key) else {
                break;
            };
            matched.tokens += u64::from(tokens);
            deepest = Some(node);
        }
        if let Some(node) = deepest {
            let sent = node.sent_us.iter().enumerate();
            let holders = sent.filter_map(|(endpoint, sent)| sent.map(|_| endpoint));
            matched.holders = holders.collect();
            matched.owner = if matched.holders.contains(&node.owner) {
                Some(node.owner)
            } else {
                matched.holders.first().copied()
            };
        }
        matched
    }

    pub(super) fn insert(&mut self, request: &Request, endpoint: usize, now_us: u64) {
        let endpoints = self.sizes_tokens.len();
        let Some(size_tokens) = self.sizes_tokens.get_mut(endpoint) else {
            return;
        };
        let mut parent = ROOT;
        for (key, tokens) in path(request) {
            let node = self.nodes.entry(key).or_insert_with(|| Node {
                parent,
                tokens,
                owner: endpoint,
                sent_us: vec![None; endpoints],
            });
            if let Some(sent) = node.sent_us.get_mut(endpoint)
                && sent.replace(now_us).is_none()
            {
                *size_tokens += u64::from(tokens);
            }
            parent = key;
        }
    }

    /// Lets every endpoint forget its least recently used leaves until it has at most `most_tokens`.
    pub(super) fn evict(&mut self, most_tokens: u64) {
        for endpoint in 0..self.sizes_tokens.len() {
            let size_tokens = self.sizes_tokens.get(endpoint).copied().unwrap_or(0);
            if size_tokens > most_tokens {
                let left = self.shrink(endpoint, size_tokens, most_tokens);
                if let Some(size) = self.sizes_tokens.get_mut(endpoint) {
                    *size = left;
                }
            }
        }
        self.nodes
            .retain(|_, node| node.sent_us.iter().any(Option::is_some));
    }

    fn shrink(&mut self, endpoint: usize, mut size_tokens: u64, most_tokens: u64) -> u64 {
        let sent = |node: &Node| node.sent_us.get(endpoint).copied().flatten();
        let mut children: HashMap<u64, u32> = HashMap::new();
        for node in self.nodes.values().filter(|node| sent(node).is_some()) {
            *children.entry(node.parent).or_default() += 1;
        }
        let leaves = self.nodes.iter().filter_map(|(key, node)| {
            let is_leaf = !children.contains_key(key);
            sent(node).filter(|_| is_leaf).map(|us| Reverse((us, *key)))
        });
        let mut leaves: BinaryHeap<Reverse<(u64, u64)>> = leaves.collect();
        while size_tokens > most_tokens {
            let Some(Reverse((_, key))) = leaves.pop() else {
                break;
            };
            let Some(node) = self.nodes.get_mut(&key) else {
                continue;
            };
            size_tokens = size_tokens.saturating_sub(u64::from(node.tokens));
            if let Some(sent) = node.sent_us.get_mut(endpoint) {
                *sent = None;
            }
            let parent = node.parent;
            let left = children.get_mut(&parent);
            let is_leaf_now = left.is_some_and(|count| {
                *count -= 1;
                *count == 0
            });
            if is_leaf_now && let Some(us) = self.nodes.get(&parent).and_then(sent) {
                leaves.push(Reverse((us, parent)));
            }
        }
        size_tokens
    }
}

const ROOT: u64 = 0;

/// The prompt's segments, each with a name for itself and all before it, and its length.
fn path(request: &Request) -> impl Iterator<Item = (u64, u32)> {
    let adapter = request.adapter.map_or(0, |adapter| u64::from(adapter) + 1);
    let segments = request.prompt.iter();
    segments.scan(mix(ROOT, adapter), |key, segment| {
        *key = mix(mix(*key, segment.id), u64::from(segment.tokens));
        Some((*key, segment.tokens))
    })
}
