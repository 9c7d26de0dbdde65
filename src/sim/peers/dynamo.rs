//! The cost of Dynamo's KV router.
//!
//! Source: "KV Cache Routing" in ai-dynamo/dynamo (docs/router): the worker with the least
//! overlap weight × prefill blocks + decode blocks. Prefill blocks are the uncached tokens of this
//! request and of those there whose answer has not begun, over the block size; decode blocks are the
//! distinct blocks of all requests there, this one included. The weight is 1 and the temperature 0 as
//! it ships, and engines report by events what they cache: here it is known without delay. Output is
//! not counted, as it ships. Ties by chance.

use std::collections::HashMap;

use super::ledger::Ledger;
use super::{Ask, PeerRouter, least};

const OVERLAP_WEIGHT: u64 = 1;

/// The blocks of the requests at one worker.
#[derive(Default)]
struct Active {
    /// By name: how many requests have the block.
    shared: HashMap<u64, u32>,
    /// Last blocks of prompts, which are not full.
    partial: u64,
}

impl Active {
    fn blocks(&self) -> u64 {
        self.shared.len() as u64 + self.partial
    }

    /// Blocks of `chain` that are not there yet. Who has a block has all before it.
    fn new_blocks(&self, chain: &[u64]) -> u64 {
        let there = chain.iter().take_while(|id| self.shared.contains_key(id));
        (chain.len() - there.count()) as u64
    }

    fn add(&mut self, blocks: &Blocks) {
        for id in &blocks.chain {
            *self.shared.entry(*id).or_default() += 1;
        }
        self.partial += blocks.partial;
    }

    fn remove(&mut self, blocks: &Blocks) {
        for id in &blocks.chain {
            if let Some(count) = self.shared.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.shared.remove(id);
                }
            }
        }
        self.partial -= blocks.partial;
    }
}

/// The blocks of one request.
struct Blocks {
    chain: Vec<u64>,
    partial: u64,
}

pub(super) struct Dynamo {
    ledger: Ledger,
    active: Vec<Active>,
    blocks: HashMap<u32, Blocks>,
}

impl Dynamo {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            ledger: Ledger::new(endpoints),
            active: (0..endpoints).map(|_| Active::default()).collect(),
            blocks: HashMap::new(),
        }
    }
}

impl PeerRouter for Dynamo {
    fn hears_of_caches(&self) -> bool {
        true
    }

    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let block_tokens = u64::from(ask.block_tokens.max(1));
        let partial = u64::from(!ask.prompt_tokens().is_multiple_of(block_tokens));
        let uncached_tokens = |endpoint: usize| {
            let cached_tokens = ask.cached_tokens.get(endpoint).copied().unwrap_or(0);
            ask.prompt_tokens().saturating_sub(cached_tokens)
        };
        // In tokens rather than blocks, so that whole numbers are exact.
        let cost_tokens = |(endpoint, active): (usize, &Active)| {
            let prefill_tokens =
                self.ledger.of(endpoint).prefill_tokens + uncached_tokens(endpoint);
            let decode_blocks = active.blocks() + active.new_blocks(ask.chain) + partial;
            let cost = OVERLAP_WEIGHT * prefill_tokens + decode_blocks * block_tokens;
            (endpoint, cost)
        };
        let endpoint = least(self.active.iter().enumerate().map(cost_tokens), ask.random);
        self.ledger
            .begin(ask.id, endpoint, uncached_tokens(endpoint));
        let blocks = Blocks {
            chain: ask.chain.to_vec(),
            partial,
        };
        if let Some(active) = self.active.get_mut(endpoint) {
            active.add(&blocks);
            self.blocks.insert(ask.id, blocks);
        }
        endpoint
    }

    fn first_token(&mut self, id: u32) {
        self.ledger.first_token(id);
    }

    fn finished(&mut self, id: u32) {
        let endpoint = self.ledger.finish(id);
        let active = endpoint.and_then(|endpoint| self.active.get_mut(endpoint));
        if let (Some(active), Some(blocks)) = (active, self.blocks.remove(&id)) {
            active.remove(&blocks);
        }
    }

    fn in_flight(&self) -> usize {
        let blocks = self.active.iter().map(Active::blocks).sum::<u64>();
        self.ledger.in_flight().max(blocks as usize)
    }
}
