//! What a router knows of its own requests: how many are where, and what is left to compute.

use std::collections::HashMap;

/// What is under way at one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) requests: u32,
    /// Tokens to compute of requests whose answer has not begun.
    pub(super) prefill_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    endpoint: usize,
    prefill_tokens: u64,
}

/// All requests under way.
#[derive(Debug)]
pub(super) struct Ledger {
    loads: Vec<Load>,
    open: HashMap<u32, Open>,
}

impl Ledger {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            loads: vec![Load::default(); endpoints],
            open: HashMap::new(),
        }
    }

    pub(super) fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Requests by endpoint, with the endpoint's index.
    pub(super) fn requests(&self) -> impl Iterator<Item = (usize, u32)> {
        self.loads.iter().map(|load| load.requests).enumerate()
    }

    pub(super) fn of(&self, endpoint: usize) -> Load {
        self.loads.get(endpoint).copied().unwrap_or_default()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.open.len()
    }

    pub(super) fn begin(&mut self, id: u32, endpoint: usize, prefill_tokens: u64) {
        if let Some(load) = self.loads.get_mut(endpoint) {
            load.requests += 1;
            load.prefill_tokens += prefill_tokens;
            let open = Open {
                endpoint,
                prefill_tokens,
            };
            self.open.insert(id, open);
        }
    }

    pub(super) fn first_token(&mut self, id: u32) {
        if let Some(open) = self.open.get_mut(&id)
            && let Some(load) = self.loads.get_mut(open.endpoint)
        {
            load.prefill_tokens -= std::mem::take(&mut open.prefill_tokens);
        }
    }

    /// Ends a request; where it was.
    pub(super) fn finish(&mut self, id: u32) -> Option<usize> {
        self.first_token(id);
        let open = self.open.remove(&id)?;
        let load = self.loads.get_mut(open.endpoint)?;
        load.requests -= 1;
        Some(open.endpoint)
    }
}
