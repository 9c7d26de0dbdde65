//! Where another project's router sits in place of the gateways.

use crate::sim::peers::{Ask, PeerKind, PeerRouter};
use crate::sim::replica::{Profile, Replica};
use crate::sim::workload::Request;

pub(super) struct Desk {
    router: Box<dyn PeerRouter>,
    block_tokens: u32,
}

impl Desk {
    pub(super) fn new(kind: PeerKind, replicas: &[Profile], names: &[String]) -> Self {
        let first = replicas.first();
        Self {
            router: kind.router(replicas, names),
            block_tokens: first.map_or(16, |profile| profile.block_tokens.max(1)),
        }
    }

    pub(super) fn scrape_interval_us(&self) -> u64 {
        self.router.scrape_interval_us().max(1)
    }

    pub(super) fn scrape(&mut self, replicas: &[Replica]) {
        for (endpoint, replica) in replicas.iter().enumerate() {
            self.router.scraped(endpoint, &replica.gauges());
        }
    }

    /// The index of the endpoint that request `id` is sent to.
    pub(super) fn pick(
        &mut self,
        now_us: u64,
        id: u32,
        request: &Request,
        random: u64,
        replicas: &[Replica],
    ) -> usize {
        let chain = request.chain(self.block_tokens);
        let cached_tokens: Vec<u64> = if self.router.hears_of_caches() {
            let replicas = replicas.iter();
            replicas.map(|r| r.matched_tokens(&chain)).collect()
        } else {
            Vec::new()
        };
        self.router.pick(&Ask {
            now_us,
            id,
            request,
            chain: &chain,
            block_tokens: self.block_tokens,
            cached_tokens: &cached_tokens,
            replicas,
            random,
        })
    }

    pub(super) fn first_token(&mut self, id: u32) {
        self.router.first_token(id);
    }

    pub(super) fn finished(&mut self, id: u32) {
        self.router.finished(id);
    }

    /// What it believes to be under way, which must be nothing once all requests are over.
    pub(super) fn left_over(&self) -> Option<String> {
        let left = self.router.in_flight();
        (left > 0).then(|| format!("the peer still counts {left} requests"))
    }
}
