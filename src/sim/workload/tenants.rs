//! Tenants with an adapter and a system prompt each, who come and go by the hour of the day.
//!
//! Popularity goes by Zipf's law. Each tenant's rate follows a sine over the day, at a phase of its
//! own (offices in other time zones). At half of the time the most popular tenant puts another
//! system prompt in force, from one request to the next, as a deployment does. The shape and the
//! lengths are assumptions. The session is the tenant.

use super::draw::{Draw, Poisson, Zipf};
use super::{Request, Role, Segment, Start, Workload};

/// How many tenants, how popular, how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second.
    pub rate_per_s: f64,
    /// Number of tenants, the most popular one first; adapters are numbered alike.
    pub tenants: u32,
    /// Exponent of Zipf's law; 0 for all alike.
    pub zipf: f64,
    /// Days that the requests are spread over.
    pub days: u32,
    /// How far a tenant's rate is above and below its mean, in percent.
    pub swing_percent: u32,
    /// Length of a tenant's system prompt; uniform within a half of it.
    pub system_tokens: u32,
    /// Length of what a user says; uniform within a half of it.
    pub prompt_tokens: u32,
    /// Length of an output; uniform within a half of it.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 6_000,
            rate_per_s: 20.0,
            tenants: 80,
            zipf: 1.0,
            days: 2,
            swing_percent: 80,
            system_tokens: 4_000,
            prompt_tokens: 300,
            output_tokens: 150,
        }
    }
}

struct Tenant {
    /// In days.
    phase: f64,
    system: Segment,
}

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "tenants");
    let tenant = |_| Tenant {
        phase: draw.unit(),
        system: system(&mut draw, options.system_tokens),
    };
    let mut tenants: Vec<Tenant> = (0..options.tenants.max(1)).map(tenant).collect();
    let mut replacement = Some(system(&mut draw, options.system_tokens));
    let popularity = Zipf::new(options.tenants.max(1), options.zipf);
    let swing = f64::from(options.swing_percent.min(100)) / 100.0;
    // Drawn at the rate of a tenant's best hour; what is above its rate of the moment is dropped.
    let mut arrivals = Poisson::new(options.rate_per_s * (1.0 + swing));
    let span_us = f64::from(options.requests.max(1)) / options.rate_per_s.max(1e-6) * 1e6;
    let mut requests = Vec::with_capacity(options.requests as usize);
    while requests.len() < options.requests as usize {
        let at_us = arrivals.next_us(&mut draw);
        let run_share = at_us as f64 / span_us;
        if run_share >= 0.5
            && let (Some(first), Some(new)) = (tenants.first_mut(), replacement.take())
        {
            first.system = new;
        }
        let rank = popularity.rank(&mut draw);
        let Some(tenant) = tenants.get(rank) else {
            break;
        };
        let days = run_share * f64::from(options.days) + tenant.phase;
        let rate = 1.0 + swing * (days * std::f64::consts::TAU).sin();
        if draw.chance(rate / (1.0 + swing)) {
            let adapter = u32::try_from(rank).ok();
            requests.push((at_us, request(options, &mut draw, adapter, tenant.system)));
        }
    }
    let about = format!(
        "{} tenants with an adapter each, popular by Zipf's law with exponent {}, over {} days, {} requests/s; the first changes its system prompt",
        options.tenants, options.zipf, options.days, options.rate_per_s
    );
    Workload::of_arrivals("tenants".to_owned(), about, requests)
}

fn system(draw: &mut Draw, tokens: u32) -> Segment {
    Segment {
        id: draw.id(),
        tokens: draw.around(tokens),
        role: Role::System,
    }
}

fn request(options: &Options, draw: &mut Draw, adapter: Option<u32>, system: Segment) -> Request {
    let said = Segment {
        id: draw.id(),
        tokens: draw.around(options.prompt_tokens),
        role: Role::User,
    };
    Request {
        start: Start::At { us: 0 },
        session: system.id,
        adapter,
        prompt: vec![system, said],
        output_tokens: draw.around(options.output_tokens),
    }
}
