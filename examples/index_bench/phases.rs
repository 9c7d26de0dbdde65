//! What is measured, phase by phase, in slices.

use crate::store::{Nowhere, SharedData, count, counted, make_counter, now_ns};
use core::arch::wasm32::memory_size;
use std::hint::black_box;
use warmroute::endpoint::EndpointId;
use warmroute::index::{MAX_BLOCKS, SharedIndex};
use warmroute::prefix::block_keys;
use warmroute::random::Random;
use warmroute::state::unique_id;

/// Blocks that a table has room for: 16 MiB a worker.
const TABLE_BLOCKS: u32 = 1 << 20;
/// Blocks in it before anything is measured.
const FILLED_BLOCKS: u64 = 1_000_000;
const ENDPOINTS: u64 = 8;
const LOOKUPS: usize = 20_000;
const PICKS: usize = 1_000;
const KEYS: usize = 500;
const GROWTH_BLOCKS: u64 = 10_000_000;
const SLICE_NS: u64 = 100_000_000;
const PAGE_BYTES: usize = 65_536;
/// Name of the log; any will do.
const GROUP: u64 = 0x000b_e4c4;

/// In their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fill,
    LookUp,
    Pick,
    Grow,
}

impl Phase {
    fn next(self) -> Option<Self> {
        match self {
            Self::Fill => Some(Self::LookUp),
            Self::LookUp => Some(Self::Pick),
            Self::Pick => Some(Self::Grow),
            Self::Grow => None,
        }
    }

    /// Counts the VMs that have come to it.
    fn key(self) -> String {
        format!("index_bench/{self:?}")
    }
}

/// Measured times.
struct Times(Vec<u64>);

impl Times {
    fn new(most: usize) -> Self {
        Self(Vec::with_capacity(most))
    }

    fn add(&mut self, since_ns: u64) {
        self.0.push(now_ns().saturating_sub(since_ns));
    }

    /// The median, and what one in a hundred takes longer than; 0 without any.
    fn figures(&mut self) -> (u64, u64) {
        self.0.sort_unstable();
        let at = |permille: usize| self.0.get(self.0.len() * permille / 1_000);
        let of = |permille| at(permille).copied().unwrap_or(0);
        (of(500), of(990))
    }
}

/// The bench of one VM.
pub struct Bench {
    vms: u64,
    index: SharedIndex,
    phase: Phase,
    waiting: bool,
    /// Prompts that the table was filled with.
    roots: u64,
    filled: u64,
    /// Prompts that are sent meanwhile, in any VM, differ.
    random: Random,
    lookups: Times,
    keys: Times,
    pick_lookups: Times,
    inserts: Times,
    expected_blocks: u64,
    matched_blocks: u64,
    grown: u64,
    memory_before: usize,
}

impl Bench {
    /// One of so many VMs that tick.
    pub fn new(vms: u64) -> Self {
        for phase in [Phase::LookUp, Phase::Pick, Phase::Grow] {
            make_counter(&phase.key());
        }
        let seed = now_ns();
        let vm = unique_id(&SharedData, seed);
        Self {
            vms,
            index: SharedIndex::new(TABLE_BLOCKS, vm, GROUP),
            phase: Phase::Fill,
            waiting: false,
            roots: 0,
            filled: 0,
            random: Random::new(vm ^ seed),
            lookups: Times::new(LOOKUPS),
            keys: Times::new(KEYS),
            pick_lookups: Times::new(PICKS),
            inserts: Times::new(PICKS),
            expected_blocks: 0,
            matched_blocks: 0,
            grown: 0,
            memory_before: 0,
        }
    }

    /// Works for a while; the result, as JSON, when all is done.
    pub fn slice(&mut self) -> Option<String> {
        if self.waiting && counted(&self.phase.key()) < self.vms {
            return None;
        }
        self.waiting = false;
        let begun_ns = now_ns();
        while now_ns().saturating_sub(begun_ns) < SLICE_NS {
            if self.step() {
                continue;
            }
            let Some(next) = self.phase.next() else {
                return Some(self.result());
            };
            self.phase = next;
            if next == Phase::Grow {
                self.memory_before = memory_size(0) * PAGE_BYTES;
            }
            count(&next.key());
            self.waiting = true;
            return None;
        }
        None
    }

    /// One piece of the phase's work; whether there is more.
    fn step(&mut self) -> bool {
        match self.phase {
            Phase::Fill => self.fill(),
            Phase::LookUp => self.look_up(),
            Phase::Pick => self.pick(),
            Phase::Grow => self.grow(),
        }
    }

    /// Each VM by itself, all with the same prompts. Each endpoint holds another part of them.
    fn fill(&mut self) -> bool {
        let chain = chain(self.roots);
        for endpoint in 0..ENDPOINTS {
            let held = chain.get(..depth(endpoint)).unwrap_or_default();
            self.index.insert(&Nowhere, EndpointId(endpoint), held);
            self.filled += held.len() as u64;
        }
        self.roots += 1;
        self.filled < FILLED_BLOCKS
    }

    fn look_up(&mut self) -> bool {
        let root = self.lookups.0.len() as u64 % self.roots;
        let chain = chain(root);
        let begun_ns = now_ns();
        let matched = self.matched(&chain);
        self.lookups.add(begun_ns);
        self.matched_blocks += matched;
        self.expected_blocks += (0..ENDPOINTS).map(|one| depth(one) as u64).sum::<u64>();
        if self.keys.0.len() < KEYS {
            let begun_ns = now_ns();
            black_box(block_keys(Some("meta-llama/Llama-3.1-8B-Instruct"), &chain));
            self.keys.add(begun_ns);
        }
        self.lookups.0.len() < LOOKUPS
    }

    /// What the index is asked before a pick, with what others have sent since the last time.
    fn matched(&mut self, chain: &[u64]) -> u64 {
        let index = self.index.latest(&SharedData);
        (0..ENDPOINTS)
            .map(|endpoint| u64::from(index.matched_blocks(EndpointId(endpoint), chain)))
            .sum()
    }

    /// A look-up, and then the prompt is sent somewhere, as all other VMs do.
    fn pick(&mut self) -> bool {
        let (chain, endpoint) = self.fresh();
        let begun_ns = now_ns();
        black_box(self.matched(&chain));
        self.pick_lookups.add(begun_ns);
        let begun_ns = now_ns();
        black_box(self.index.insert(&SharedData, endpoint, &chain));
        self.inserts.add(begun_ns);
        self.inserts.0.len() < PICKS
    }

    fn grow(&mut self) -> bool {
        let (chain, endpoint) = self.fresh();
        black_box(self.matched(&chain));
        black_box(self.index.insert(&SharedData, endpoint, &chain));
        self.grown += chain.len() as u64;
        self.grown < GROWTH_BLOCKS
    }

    fn fresh(&mut self) -> (Vec<u64>, EndpointId) {
        let endpoint = EndpointId(self.random.below(ENDPOINTS));
        (chain(self.random.bits()), endpoint)
    }

    fn result(&mut self) -> String {
        let memory = memory_size(0) * PAGE_BYTES;
        let table = self.index.latest(&Nowhere).bytes();
        let (lookup_ns, lookup_p99_ns) = self.lookups.figures();
        let (pick_lookup_ns, _) = self.pick_lookups.figures();
        let (insert_ns, _) = self.inserts.figures();
        let (keys_ns, _) = self.keys.figures();
        let found_permille = self.matched_blocks * 1_000 / self.expected_blocks.max(1);
        format!(
            "{{\"lookup_ns\":{lookup_ns},\"lookup_p99_ns\":{lookup_p99_ns},\
             \"pick_lookup_ns\":{pick_lookup_ns},\"insert_ns\":{insert_ns},\"keys_ns\":{keys_ns},\
             \"filled_blocks\":{},\"found_permille\":{found_permille},\"table_bytes\":{table},\
             \"grown_blocks\":{},\"memory_bytes\":{memory},\"memory_growth_bytes\":{}}}",
            self.filled,
            self.grown,
            memory - self.memory_before,
        )
    }
}

/// The blocks of prompt `root`: 131,072 tokens.
fn chain(root: u64) -> Vec<u64> {
    let mut random = Random::new(root);
    (0..MAX_BLOCKS).map(|_| random.bits()).collect()
}

/// How much of each prompt an endpoint holds.
fn depth(endpoint: u64) -> usize {
    let part = u64::from(MAX_BLOCKS) / ENDPOINTS * (endpoint + 1);
    usize::try_from(part).unwrap_or(usize::MAX)
}
