//! What the simulation says of the same workload.

use crate::Args;
use crate::drive::prefix_bytes;
use std::net::SocketAddr;
use warmroute::sim::fleet::{self, FleetOptions, Reading};
use warmroute::sim::record::{Run, Served};
use warmroute::sim::replica::{Detail, Event, Job, Profile, Replica};
use warmroute::sim::workload::{Start, Workload};

/// Blocks of a cache that never evicts.
const ENDLESS_BLOCKS: u32 = 1 << 20;

/// The prediction: the fleet in virtual time, with nothing from the real run but the hardware.
///
/// # Errors
/// Options that make no sense, and laws that the run broke.
pub fn fleet(
    args: &Args,
    policy: &str,
    profile: &Profile,
    workload: &Workload,
) -> Result<Run, String> {
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let options = FleetOptions {
        addresses: vec![at(args.port), at(args.port + 1)],
        prefix_bytes: Some(prefix_bytes(args)),
        reading: Reading::Bodies,
        workers: args.workers,
        ..FleetOptions::new(vec![profile.clone(); 2], fleet::policy(policy))
    };
    let outcome = fleet::run(&options, workload).map_err(|e| e.to_string())?;
    match outcome.faults.first() {
        None => Ok(outcome.run),
        Some(fault) => Err(format!("the simulation broke a law: {fault}")),
    }
}

/// The same with caches that never evict, which shows what eviction costs.
///
/// # Errors
/// As [`fleet`].
pub fn endless(
    args: &Args,
    policy: &str,
    profile: &Profile,
    workload: &Workload,
) -> Result<Run, String> {
    let profile = Profile {
        blocks: ENDLESS_BLOCKS,
        ..profile.clone()
    };
    fleet(args, policy, &profile, workload)
}

/// The replicas of the model, given the requests that the real ones got: what is left of the error is
/// the replica's, not the routing's.
///
/// # Errors
/// A request that no replica can hold.
pub fn with_picks_of(real: &Run, profile: &Profile, workload: &Workload) -> Result<Run, String> {
    let mut run = Run {
        policy: real.policy.clone(),
        served: vec![Served::default(); real.served.len()],
        ..Run::default()
    };
    for endpoint in 0_u32..2 {
        let mut replica = Replica::new(profile.clone());
        let mut events = Vec::new();
        for (request, (served, index)) in workload
            .requests
            .iter()
            .zip(real.served.iter().zip(0_u64..))
        {
            let (Some(by), Start::At { us }) = (served.endpoint, request.start) else {
                continue;
            };
            if by != endpoint {
                continue;
            }
            replica.advance(us, &mut events);
            let job = Job {
                id: index,
                chain: request.chain(profile.block_tokens),
                prompt_tokens: request.prompt_tokens(),
                output_tokens: request.output_tokens,
                detail: Detail::Ends,
            };
            let taken = replica.submit(us, job);
            taken.map_err(|_| format!("request {index} is too long for a replica"))?;
        }
        replica.advance(u64::MAX, &mut events);
        for event in events {
            note(&mut run, real, event);
        }
    }
    Ok(run)
}

fn note(run: &mut Run, real: &Run, event: Event) {
    if let Event::FirstToken {
        id,
        at_us,
        cached_tokens,
        ..
    } = event
        && let Some(place) = run.served.get_mut(id as usize)
        && let Some(served) = real.served.get(id as usize)
    {
        *place = Served {
            first_us: Some(at_us),
            cached_tokens,
            ..served.clone()
        };
    }
}
