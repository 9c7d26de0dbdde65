//! Three replicas and one request: what each policy does and what it costs, as the page
//! `docs/three-replicas.md` shows it.
//!
//! The picks are those of the real balancer with the loads in its ledger, the times those of the
//! replica model with the same requests in its queues. A test holds the page against this.

use std::fmt::Write;
use std::rc::Rc;

use serde_json::{Value, json};
use warmroute::balancer::{Ask, Balancer};
use warmroute::config::Config;
use warmroute::endpoint::{Endpoint, EndpointId};
use warmroute::index::BLOCK_BYTES;
use warmroute::policy::Load;
use warmroute::random::Random;
use warmroute::session::reason_name;
use warmroute::sim::fleet::policy;
use warmroute::sim::replica::{Detail, Event, Job, Profile, Replica};
use warmroute::sim::workload::{Request, Role, Segment, Start};
use warmroute::state::ledger::Ledger;
use warmroute::state::memory::MemoryStore;

const NAMES: [&str; 3] = ["A", "B", "C"];
const SYSTEM_TOKENS: u32 = 2_000;
const QUESTION_TOKENS: u32 = 100;
const SHORT_OUTPUT_TOKENS: u32 = 100;
const LONG_PROMPT_TOKENS: u32 = 15_000;
const LONG_OUTPUT_TOKENS: u32 = 500;
/// Requests in A's queue, in the example and in the table that varies them.
const SHORT: u32 = 6;
const VARIED: [u32; 8] = [0, 2, 3, 6, 12, 18, 24, 48];
/// Picks that a policy's habit is read from.
const TRIALS: u64 = 3_000;
/// Answers that a policy has seen of every replica before.
const LESSONS: u64 = 300;
/// What the balancer takes a token for unless answers show more.
const BYTES_PER_TOKEN: u32 = 4;
/// Before that all is quiet; long enough for the warming request to end.
const START_US: u64 = 3_600_000_000;

/// A policy as the page calls it.
struct Contender {
    name: &'static str,
    policy: Value,
}

fn contenders() -> Vec<Contender> {
    let plain = |name: &'static str| Contender {
        name,
        policy: policy(name),
    };
    let two = |name: &'static str, load: &str| Contender {
        name,
        policy: json!({"name": "power_of_two", "load": load}),
    };
    let hash = |name: &'static str, load_factor: f64, bound: &str| Contender {
        name,
        policy: json!({"name": "prefix_hash", "load_factor": load_factor, "bound": bound}),
    };
    vec![
        plain("round_robin"),
        plain("least_request"),
        plain("least_outstanding_tokens"),
        two("power_of_two, by requests", "requests"),
        two("power_of_two, by tokens", "tokens"),
        plain("consistent_hash"),
        hash("prefix_hash, no bound", 100.0, "tokens"),
        hash("prefix_hash, bound in requests", 1.25, "requests"),
        hash("prefix_hash, bound in tokens", 1.25, "tokens"),
        plain("cache_aware"),
        plain("expected_latency"),
    ]
}

/// How often a policy picks each endpoint, and why it picks the one it picks most.
struct Habit {
    shares: [f64; 3],
    reason: &'static str,
}

impl Habit {
    fn mean_ttft_ms(&self, ttft_ms: [f64; 3]) -> f64 {
        let pairs = self.shares.iter().zip(ttft_ms);
        pairs.map(|(share, ttft_ms)| share * ttft_ms).sum()
    }

    fn shares(&self) -> String {
        let named = NAMES.iter().zip(self.shares);
        let picked = named.filter(|(_, share)| *share > 0.0);
        let parts: Vec<String> = picked
            .map(|(name, share)| format!("{name} {:.0} %", share * 100.0))
            .collect();
        match parts.as_slice() {
            [only] => only.split(' ').next().unwrap_or_default().to_owned(),
            _ => parts.join(", "),
        }
    }
}

fn short_cost() -> Load {
    Load {
        requests: 1,
        waiting: 1,
        prefill_tokens: u64::from(SYSTEM_TOKENS + QUESTION_TOKENS),
        decode_tokens: u64::from(SHORT_OUTPUT_TOKENS),
        context_tokens: u64::from(SYSTEM_TOKENS + QUESTION_TOKENS + SHORT_OUTPUT_TOKENS),
    }
}

fn long_cost() -> Load {
    Load {
        requests: 1,
        waiting: 1,
        prefill_tokens: u64::from(LONG_PROMPT_TOKENS),
        decode_tokens: u64::from(LONG_OUTPUT_TOKENS),
        context_tokens: u64::from(LONG_PROMPT_TOKENS + LONG_OUTPUT_TOKENS),
    }
}

/// Prefix blocks of a prompt: some of a text that others have too, and the rest its own.
fn blocks(shared: u64, shared_tokens: u32, id: u64, own_tokens: u32) -> Vec<u64> {
    const BLOCK_TOKENS: u32 = BLOCK_BYTES / BYTES_PER_TOKEN;
    let shared_blocks = shared_tokens / BLOCK_TOKENS;
    (0..(shared_tokens + own_tokens) / BLOCK_TOKENS)
        .map(|block| {
            let text = if block < shared_blocks { shared } else { id };
            (text << 32) | u64::from(block)
        })
        .collect()
}

fn short_blocks(id: u64) -> Vec<u64> {
    blocks(1, SYSTEM_TOKENS, id, QUESTION_TOKENS)
}

/// The store of a gateway that has sent `short` requests to A and two long ones to B, and what its
/// balancer has learned by then.
fn loaded(balancer: &mut Balancer, ids: &[EndpointId], short: u32) -> MemoryStore {
    let store = MemoryStore::new();
    let mut ledger = Ledger::new(99);
    let mut reserve = |endpoint: usize, cost: Load| {
        // The reservation is never released: these requests outlive the page.
        let _ = ledger.reserve(&store, 1_000, 0, ids, |_, _| Some((endpoint, cost)));
    };
    let mut queued = short_cost();
    if balancer.reads_index(0) {
        // Who knows that it is cached does not reserve it.
        queued.prefill_tokens = u64::from(QUESTION_TOKENS);
    }
    for _ in 0..short {
        reserve(0, queued);
    }
    reserve(1, long_cost());
    reserve(1, long_cost());
    if let [a, b, _] = ids {
        // One has warmed A, and has gone.
        for id in 0..=u64::from(short) {
            balancer.sent(&store, *a, &short_blocks(10 + id));
        }
        for id in [2, 3] {
            balancer.sent(&store, *b, &blocks(id, LONG_PROMPT_TOKENS, id, 0));
        }
    }
    learn_paces(balancer, ids);
    store
}

/// Lets the balancer see what replicas of this profile answer, if its policy looks at it.
fn learn_paces(balancer: &mut Balancer, ids: &[EndpointId]) {
    let profile = Profile::default();
    let Some(rates) = balancer.rates(0) else {
        return;
    };
    let step_us = u64::from(profile.step_base_us) + u64::from(profile.decode_us_per_seq);
    for turn in 0..LESSONS {
        let tokens = 500 + turn * 977 % 15_500;
        let prefill_us = tokens * 1_000_000 / u64::from(profile.prefill_tokens_per_s.max(1));
        let context_tokens = turn * 9_973 % 40_000;
        let read_us = context_tokens * u64::from(profile.context_us_per_1k_tokens) / 1_000;
        for id in ids {
            rates.first_token(*id, tokens, step_us + prefill_us);
            rates.output(*id, context_tokens, step_us + read_us);
        }
    }
}

/// Asks the real balancer, over many prompts whose home is A and many chances.
fn habit(contender: &Contender, short: u32) -> Result<Habit, String> {
    let mut balancer = balancer(&contender.policy)?;
    let ids: Vec<EndpointId> = balancer
        .pool(0)
        .map(|pool| pool.pool.endpoints().iter().map(Endpoint::id).collect())
        .unwrap_or_default();
    let store = loaded(&mut balancer, &ids, short);
    let homes = prompts_at_home_on_a()?;
    let mut random = Random::new(7);
    let mut counts = [0_u64; 3];
    let mut reason = (0, "");
    for trial in 0..TRIALS {
        let key = match contender.name {
            // A session says nothing about the system prompt.
            "consistent_hash" => random.bits(),
            _ => *homes.get(trial as usize % homes.len()).unwrap_or(&0),
        };
        let ask = Ask {
            pool: 0,
            model: None,
            key: Some(key),
            blocks: &short_blocks(1_000_000 + trial),
            cost: short_cost(),
            share_permille: 1_000,
        };
        let picked = balancer.pick(&store, 1_000, random.bits(), ask);
        let (decision, reservation) = picked.map_err(|refusal| refusal.to_string())?;
        let index = *decision.endpoints.first().ok_or("no endpoint")? as usize;
        if let Some(count) = counts.get_mut(index) {
            *count += 1;
            if *count > reason.0 {
                reason = (*count, reason_name(decision.reason));
            }
        }
        balancer.complete(&store, 1_000, reservation);
    }
    Ok(Habit {
        shares: counts.map(|count| count as f64 / TRIALS as f64),
        reason: reason.1,
    })
}

fn balancer(policy: &Value) -> Result<Balancer, String> {
    let endpoints = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"];
    let endpoints = endpoints.map(|address| json!({ "address": address }));
    let config = json!({"endpoints": endpoints, "policy": policy});
    let config = Config::parse(config.to_string().as_bytes()).map_err(|e| e.to_string())?;
    Ok(Balancer::new(Rc::new(config), 1))
}

/// Routing keys of prompts that an idle fleet sends to A. Where they go next differs.
fn prompts_at_home_on_a() -> Result<Vec<u64>, String> {
    let mut idle = balancer(&policy("prefix_hash"))?;
    let store = MemoryStore::new();
    let mut random = Random::new(3);
    let mut homes = Vec::new();
    while homes.len() < 300 {
        let key = random.bits();
        let ask = Ask {
            pool: 0,
            model: None,
            key: Some(key),
            blocks: &[],
            cost: short_cost(),
            share_permille: 1_000,
        };
        let picked = idle.pick(&store, 1_000, 0, ask);
        let (decision, reservation) = picked.map_err(|refusal| refusal.to_string())?;
        if decision.endpoints.first() == Some(&0) {
            homes.push(key);
        }
        idle.complete(&store, 1_000, reservation);
    }
    Ok(homes)
}

fn job(id: u64, system: u32, question: u32, output_tokens: u32) -> Job {
    let segment = |id, tokens, role| Segment { id, tokens, role };
    let request = Request {
        start: Start::At { us: 0 },
        session: 0,
        adapter: None,
        prompt: vec![
            segment(if system > 0 { 1 } else { 2 }, system, Role::System),
            segment(1_000 + id, question, Role::User),
        ],
        output_tokens,
    };
    Job {
        id,
        chain: request.chain(Profile::default().block_tokens),
        prompt_tokens: request.prompt_tokens(),
        output_tokens,
        detail: Detail::Ends,
    }
}

/// Time to first token of the new request on each replica, in milliseconds, and its cached tokens.
fn outcomes(short: u32) -> Result<([f64; 3], [u32; 3]), String> {
    let (mut ttft_ms, mut cached_tokens) = ([0.0; 3], [0; 3]);
    for (index, (ttft, cached)) in ttft_ms.iter_mut().zip(&mut cached_tokens).enumerate() {
        let mut replica = Replica::new(Profile::default());
        let mut submit = |now_us, job| {
            let submitted = replica.submit(now_us, job);
            submitted.map_err(|e| format!("{e:?}"))
        };
        if index == 0 {
            submit(0, job(1, SYSTEM_TOKENS, QUESTION_TOKENS, 1))?;
        }
        let mut events = Vec::new();
        replica.advance(START_US - 1, &mut events);
        let mut submit = |job| {
            let submitted = replica.submit(START_US, job);
            submitted.map_err(|e| format!("{e:?}"))
        };
        match index {
            0 => {
                for id in 0..short {
                    let id = u64::from(id) + 10;
                    submit(job(id, SYSTEM_TOKENS, QUESTION_TOKENS, SHORT_OUTPUT_TOKENS))?;
                }
            }
            1 => {
                submit(job(10, 0, LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS))?;
                submit(job(11, 0, LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS))?;
            }
            _ => {}
        }
        submit(job(2, SYSTEM_TOKENS, QUESTION_TOKENS, SHORT_OUTPUT_TOKENS))?;
        (*ttft, *cached) = first_token(&mut replica)?;
    }
    Ok((ttft_ms, cached_tokens))
}

fn first_token(replica: &mut Replica) -> Result<(f64, u32), String> {
    let mut events = Vec::new();
    while let Some(at_us) = replica.next_event_us() {
        replica.advance(at_us, &mut events);
        let first = events.iter().find_map(|event| match event {
            Event::FirstToken {
                id: 2,
                at_us,
                cached_tokens,
                ..
            } => Some((*at_us, *cached_tokens)),
            _ => None,
        });
        if let Some((at_us, cached_tokens)) = first {
            return Ok(((at_us - START_US) as f64 / 1_000.0, cached_tokens));
        }
    }
    Err("the request was never answered".to_owned())
}

/// The computed part of the page, in Markdown.
///
/// # Errors
/// A policy that the balancer refuses, or a request that a replica refuses.
pub fn tables() -> Result<String, String> {
    let (ttft_ms, cached_tokens) = outcomes(SHORT)?;
    let mut page = String::new();
    situation(&mut page, ttft_ms, cached_tokens);
    page.push_str("\n| policy | goes to | reason | mean TTFT |\n|---|---|---|---:|\n");
    for contender in contenders() {
        let habit = habit(&contender, SHORT)?;
        let mean_ms = habit.mean_ttft_ms(ttft_ms);
        // Writing into a String cannot fail.
        let _ = writeln!(
            page,
            "| {} | {} | `{}` | {mean_ms:.0} ms |",
            contender.name,
            habit.shares(),
            habit.reason
        );
    }
    varied(&mut page)?;
    Ok(page)
}

fn situation(page: &mut String, ttft_ms: [f64; 3], cached_tokens: [u32; 3]) {
    page.push_str(
        "| replica | in flight | outstanding tokens | of the prompt cached | TTFT of the new request |\n\
         |---|---:|---:|---:|---:|\n",
    );
    let shorts = short_cost().tokens() * u64::from(SHORT);
    let loads = [(SHORT, shorts), (2, long_cost().tokens() * 2), (0, 0)];
    let prompt_tokens = SYSTEM_TOKENS + QUESTION_TOKENS;
    for (((name, (requests, tokens)), ttft_ms), cached) in
        NAMES.iter().zip(loads).zip(ttft_ms).zip(cached_tokens)
    {
        let _ = writeln!(
            page,
            "| {name} | {requests} | {tokens} | {cached} of {prompt_tokens} | {ttft_ms:.0} ms |"
        );
    }
}

fn varied(page: &mut String) -> Result<(), String> {
    page.push_str(
        "\n| short requests at A | TTFT at A | TTFT at C | bound in requests | bound in tokens | expected_latency |\n\
         |---:|---:|---:|---|---|---|\n",
    );
    let all = contenders();
    let named = |name: &str| {
        let found = all.iter().find(|contender| contender.name == name);
        found.ok_or("no such policy")
    };
    for short in VARIED {
        let ([a_ms, _, c_ms], _) = outcomes(short)?;
        let by_requests = habit(named("prefix_hash, bound in requests")?, short)?;
        let by_tokens = habit(named("prefix_hash, bound in tokens")?, short)?;
        let by_time = habit(named("expected_latency")?, short)?;
        let _ = writeln!(
            page,
            "| {short} | {a_ms:.0} ms | {c_ms:.0} ms | {} | {} | {} |",
            by_requests.shares(),
            by_tokens.shares(),
            by_time.shares()
        );
    }
    Ok(())
}
