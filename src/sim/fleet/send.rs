//! The way of a request to its replica: whoever routes is asked, and the engine takes it or not.

use super::Fleet;
use super::stream::Stream;
use crate::sim::replica::{Detail, Job};
use crate::sim::workload::Request;

impl Fleet<'_> {
    pub(super) fn send(&mut self, index: u32, now_us: u64) {
        let Some(request) = self.workload.requests.get(index as usize) else {
            return;
        };
        let endpoint = match self.peer {
            Some(_) => self.ask_peer(index, now_us, request),
            None => self.ask_gateway(index, now_us, request),
        };
        if let Some(served) = self.served.get_mut(index as usize) {
            served.endpoint = endpoint;
            served.prompt_tokens = request.prompt_tokens();
        }
        let replica = endpoint.and_then(|endpoint| self.replicas.get_mut(endpoint as usize));
        let Some(replica) = replica else {
            self.streams.get_mut(index as usize).and_then(Option::take);
            self.end(index, now_us, Some("no endpoint was picked"));
            return;
        };
        let job = Job {
            id: u64::from(index),
            chain: request.chain(replica.profile().block_tokens),
            prompt_tokens: request.prompt_tokens(),
            output_tokens: request.output_tokens,
            detail: Detail::Ends,
        };
        if replica.submit(now_us, job).is_err() {
            self.refuse(index, now_us);
            self.end(index, now_us, Some("400: longer than the replica's cache"));
        }
    }

    fn ask_peer(&mut self, index: u32, now_us: u64, request: &Request) -> Option<u32> {
        let random = self.random.bits();
        let peer = self.peer.as_mut()?;
        let endpoint = peer.pick(now_us, index, request, random, &self.replicas);
        u32::try_from(endpoint).ok()
    }

    fn ask_gateway(&mut self, index: u32, now_us: u64, request: &Request) -> Option<u32> {
        let gateway = self.random.below(self.gateways.len() as u64) as usize;
        let random = (self.random.bits(), self.random.bits());
        let gateway_state = self.gateways.get_mut(gateway)?;
        let mut stream = Stream::new(request, gateway, gateway_state.worker_of(random.0));
        let picked = stream.ask(gateway_state, now_us, random.1, request, self.reading);
        if let Some(place) = self.streams.get_mut(index as usize) {
            *place = Some(Box::new(stream));
        }
        self.endpoints.get(&picked?).copied()
    }

    /// The engine does not take the request.
    fn refuse(&mut self, index: u32, now_us: u64) {
        if let Some(peer) = &mut self.peer {
            peer.finished(index);
        }
        let stream = self.streams.get_mut(index as usize).and_then(Option::take);
        if let Some(mut stream) = stream
            && let Some(gateway) = self.gateways.get_mut(stream.gateway)
        {
            stream.refuse(gateway, now_us);
        }
    }
}
