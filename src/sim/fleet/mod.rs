//! A fleet in virtual time: gateways with the real core, replicas that are models.
//!
//! What routes is what runs in Envoy: [`Session`](crate::session::Session), the balancer and a
//! shared store, one store a gateway and one balancer a worker, with ticks, polls and all. Modelled
//! are the replicas, and left out is what takes no part in the decision: bytes of bodies (the
//! request comes as the scanner would have read it), networks (nothing takes time on the way) and
//! Envoy's own work.
//!
//! In place of the gateways, another project's algorithm can route ([`crate::sim::peers`]).
//!
//! One thread, no clock but the events' own, and all randomness from one seed: the same arguments
//! give the same bytes.

mod check;
mod desk;
mod gateway;
mod options;
mod send;
mod stream;

pub use options::{FleetError, FleetOptions, POLICIES, Paces, Reading, policy};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use self::desk::Desk;
use self::gateway::{Gateway, TICK_US};
use self::stream::Stream;
use super::record::{Run, Served};
use super::replica::{Event, Gauges, Replica};
use super::workload::{Request, Start, Workload};
use crate::random::Random;

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The requests.
    pub run: Run,
    /// Each replica's counters at the end.
    pub replicas: Vec<Gauges>,
    /// Laws that the run broke (work that was lost or done twice, load that was left over). Anything
    /// here is a fault of this crate.
    pub faults: Vec<String>,
}

/// Something that is to happen at a set time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Request(u32),
    Tick {
        gateway: usize,
        worker: usize,
    },
    /// The peer asks for gauges.
    Scrape,
    /// A replica loses its cache.
    Restart(u32),
}

/// Runs all of `workload` through the fleet.
///
/// # Errors
/// Options or requests that make no sense.
pub fn run(options: &FleetOptions, workload: &Workload) -> Result<Outcome, FleetError> {
    let mut fleet = Fleet::new(options, workload)?;
    while fleet.left > 0 {
        fleet.step();
    }
    Ok(fleet.conclude(options))
}

struct Fleet<'a> {
    workload: &'a Workload,
    /// Requests that wait for the end of another, by that one.
    followers: BTreeMap<u32, Vec<u32>>,
    reading: Reading,
    random: Random,
    gateways: Vec<Gateway>,
    /// In place of the gateways.
    peer: Option<Desk>,
    endpoints: BTreeMap<String, u32>,
    replicas: Vec<Replica>,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    streams: Vec<Option<Box<Stream>>>,
    served: Vec<Served>,
    /// Requests that are not over.
    left: usize,
    events: Vec<Event>,
}

impl<'a> Fleet<'a> {
    fn new(options: &FleetOptions, workload: &'a Workload) -> Result<Self, FleetError> {
        let gateways = options.gateways()?;
        let endpoints = options.endpoints();
        let desk = |kind| Desk::new(kind, &options.replicas, &endpoints);
        let mut fleet = Self {
            workload,
            followers: BTreeMap::new(),
            reading: options.reading,
            random: Random::new(options.seed),
            gateways,
            peer: options.peer.map(desk),
            endpoints: endpoints.into_iter().zip(0..).collect(),
            replicas: options.replicas.iter().cloned().map(Replica::new).collect(),
            due: BinaryHeap::new(),
            streams: workload.requests.iter().map(|_| None).collect(),
            served: Vec::with_capacity(workload.requests.len()),
            left: workload.requests.len(),
            events: Vec::new(),
        };
        for (request, index) in workload.requests.iter().zip(0_u32..) {
            let due_us = fleet.plan(request, index)?;
            fleet.served.push(Served {
                request: index,
                due_us,
                ..Served::default()
            });
        }
        for gateway in 0..fleet.gateways.len() {
            for worker in 0..fleet.gateways.get(gateway).map_or(0, Gateway::workers) {
                // Envoy's workers start their timers at times of their own.
                let first_us = fleet.random.below(TICK_US);
                let tick = Due::Tick { gateway, worker };
                fleet.due.push(Reverse((first_us, tick)));
            }
        }
        for (replica, at_us) in &options.restarts {
            fleet.due.push(Reverse((*at_us, Due::Restart(*replica))));
        }
        if let Some(peer) = &fleet.peer {
            let first_us = fleet.random.below(peer.scrape_interval_us());
            fleet.due.push(Reverse((first_us, Due::Scrape)));
        }
        Ok(fleet)
    }

    /// Notes when a request is to be sent; its time if that is known by now.
    fn plan(&mut self, request: &Request, index: u32) -> Result<u64, FleetError> {
        match request.start {
            Start::At { us } => {
                self.due.push(Reverse((us, Due::Request(index))));
                Ok(us)
            }
            Start::After { request, .. } if request < index => {
                self.followers.entry(request).or_default().push(index);
                Ok(0)
            }
            Start::After { request, .. } => Err(FleetError::Order {
                request: index,
                after: request,
            }),
        }
    }

    /// Does what comes next: what a replica has done by then comes before what is sent to it.
    fn step(&mut self) {
        let next = self
            .replicas
            .iter()
            .zip(0_u32..)
            .filter_map(|(replica, index)| Some((replica.next_event_us()?, index)))
            .min();
        let due_us = self.due.peek().map_or(u64::MAX, |Reverse((us, _))| *us);
        match next {
            Some((at_us, replica)) if at_us <= due_us => self.advance(replica, at_us),
            _ => self.next_due(),
        }
    }

    fn next_due(&mut self) {
        let Some(Reverse((now_us, due))) = self.due.pop() else {
            return;
        };
        match due {
            Due::Request(request) => self.send(request, now_us),
            Due::Tick { gateway, worker } => {
                if let Some(gateway) = self.gateways.get_mut(gateway) {
                    gateway.tick(worker, now_us, &self.replicas);
                }
                self.due.push(Reverse((now_us + TICK_US, due)));
            }
            Due::Restart(replica) => {
                if let Some(replica) = self.replicas.get_mut(replica as usize) {
                    replica.restart(now_us);
                }
            }
            Due::Scrape => {
                if let Some(peer) = &mut self.peer {
                    peer.scrape(&self.replicas);
                    let next_us = now_us + peer.scrape_interval_us();
                    self.due.push(Reverse((next_us, due)));
                }
            }
        }
    }

    fn advance(&mut self, replica: u32, now_us: u64) {
        let mut events = std::mem::take(&mut self.events);
        if let Some(replica) = self.replicas.get_mut(replica as usize) {
            replica.advance(now_us, &mut events);
        }
        for event in events.drain(..) {
            match event {
                Event::FirstToken {
                    id, cached_tokens, ..
                } => self.first_token(id as u32, now_us, cached_tokens),
                Event::Finished { id, .. } => self.finished(id as u32, now_us),
                Event::Token { .. } => {}
            }
        }
        self.events = events;
    }

    fn first_token(&mut self, index: u32, now_us: u64, cached_tokens: u32) {
        if let Some(served) = self.served.get_mut(index as usize) {
            served.first_us = Some(now_us);
            served.cached_tokens = cached_tokens;
        }
        if let Some(peer) = &mut self.peer {
            peer.first_token(index);
        }
        let stream = self.streams.get_mut(index as usize);
        if let Some(stream) = stream.and_then(Option::as_mut)
            && let Some(gateway) = self.gateways.get_mut(stream.gateway)
        {
            stream.first_token(gateway, now_us);
        }
    }

    fn finished(&mut self, index: u32, now_us: u64) {
        let stream = self.streams.get_mut(index as usize).and_then(Option::take);
        let served = self.served.get_mut(index as usize);
        let request = self.workload.requests.get(index as usize);
        let (Some(served), Some(request)) = (served, request) else {
            return;
        };
        served.output_tokens = request.output_tokens.max(1);
        if let Some(peer) = &mut self.peer {
            peer.finished(index);
        }
        if let Some(mut stream) = stream
            && let Some(gateway) = self.gateways.get_mut(stream.gateway)
        {
            stream.finish(gateway, now_us, served);
        }
        self.end(index, now_us, None);
    }

    /// A request is over; those that wait for it get their time.
    fn end(&mut self, index: u32, now_us: u64, error: Option<&str>) {
        self.left -= 1;
        if let Some(served) = self.served.get_mut(index as usize) {
            served.end_us = Some(now_us);
            served.error = error.map(str::to_owned);
        }
        for follower in self.followers.remove(&index).unwrap_or_default() {
            let start = self.workload.requests.get(follower as usize);
            let pause_us = match start.map(|request| request.start) {
                Some(Start::After { pause_us, .. }) => pause_us,
                _ => 0,
            };
            let due_us = now_us.saturating_add(pause_us);
            if let Some(served) = self.served.get_mut(follower as usize) {
                served.due_us = due_us;
            }
            self.due.push(Reverse((due_us, Due::Request(follower))));
        }
    }

    fn conclude(self, options: &FleetOptions) -> Outcome {
        let replicas: Vec<Gauges> = self.replicas.iter().map(Replica::gauges).collect();
        let mut faults = check::replicas(&self.served, &replicas, &options.replicas);
        for gateway in &self.gateways {
            faults.extend(gateway.left_over());
        }
        faults.extend(self.peer.as_ref().and_then(Desk::left_over));
        let router = match options.peer {
            Some(_) => "peer",
            None => "warmroute",
        };
        let run = Run {
            router: router.to_owned(),
            policy: options.label(),
            seed: options.seed,
            endpoints: options.endpoints(),
            served: self.served,
            ..Run::default()
        };
        Outcome {
            run,
            replicas,
            faults,
        }
    }
}

#[cfg(test)]
mod tests;
