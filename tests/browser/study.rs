//! Studies that nobody ran, with all that a report has to cope with.

use fastrand::Rng;
use warmroute::sim::record::{Objective, RouterCost, Run, Served, Study};

/// A name, an error and a title that must stay text.
pub const HOSTILE: &str = "<script>console.error('ran')</script>";
/// The same, and a request to another host should it ever be taken for markup.
pub const HOSTILE_ERROR: &str =
    "503 \"><img src=http://127.0.0.1:9/x.png onerror=console.error(1)> & 'more'\u{1b}[31m";

const POLICIES: [(&str, &str); 20] = [
    ("envoy", "round_robin"),
    ("warmroute", "prefix_hash"),
    ("warmroute", "least_outstanding_tokens"),
    ("warmroute", "round_robin"),
    ("warmroute", "least_request"),
    ("warmroute", "power_of_two"),
    ("warmroute", "consistent_hash"),
    ("warmroute", "random"),
    ("warmroute", "weighted_round_robin"),
    ("envoy", "least_request"),
    ("envoy", "ring_hash"),
    ("envoy", "maglev"),
    ("vllm-router", "cache_aware"),
    ("vllm-router", "consistent_hash"),
    ("vllm-router", "power_of_two"),
    ("vllm-router", "round_robin"),
    ("production-stack", "prefixaware"),
    ("production-stack", "session"),
    ("production-stack", "roundrobin"),
    ("gateway-api-inference-extension", "default"),
];

/// The size of a study.
pub struct Size {
    /// Policies, at most 20.
    pub policies: usize,
    /// Seeds.
    pub seeds: u64,
    /// Requests of a run.
    pub requests: u32,
    /// Endpoints of the fleet.
    pub endpoints: usize,
}

/// Runs without any failure.
pub fn sound(size: &Size) -> Study {
    let policies = POLICIES.iter().enumerate().take(size.policies);
    let runs = policies.flat_map(|(rank, (router, policy))| {
        (1..=size.seeds).map(move |seed| run(router, policy, rank, seed, size))
    });
    Study {
        title: "Multi-turn chats on eight L4 replicas".to_owned(),
        command: "cargo run --release --example simulate -- --workload chat --chats 400 --policies all --seeds 1..3 --html report.html".to_owned(),
        workload: "400 chats of 2 to 12 turns with 24 shared system prompts, 5.0 requests a second (open loop).".to_owned(),
        fleet: "8 replicas of an 8B model in FP8, L4 with 24 GB, prefix cache of 96,000 tokens each.".to_owned(),
        baseline: "envoy/round_robin".to_owned(),
        objective: Objective { ttft_us: 1_000_000, tpot_us: 60_000 },
        notes: vec!["Times are those of the modelled hardware, not of this machine.".to_owned()],
        runs: runs.collect(),
    }
}

/// The same with a failed and an empty run, errors, unsent requests, notes, and text that is markup.
pub fn troubled(size: &Size) -> Study {
    let mut study = sound(size);
    study.title = format!("Chats & <b>markup</b> {HOSTILE}");
    study.command = format!("simulate --name '{HOSTILE}' --html \"a b.html\"");
    study.notes.push(format!("Not all is well: {HOSTILE}"));
    let mut odd = run(HOSTILE, "a\"b'c", 4, 1, size);
    for (index, served) in odd.served.iter_mut().enumerate() {
        match index % 7 {
            0 => served.error = Some(HOSTILE_ERROR.to_owned()),
            1 => served.error = Some(format!("reset {}", index % 5)),
            _ => {}
        }
    }
    odd.endpoints = vec![HOSTILE.to_owned(); size.endpoints];
    odd.unsent = 1_234;
    odd.notes = vec![format!("runs with {HOSTILE}")];
    study.runs.push(odd);
    study.runs.push(Run {
        router: "vllm-router".to_owned(),
        policy: "broken".to_owned(),
        seed: 1,
        failed: Some("it did not listen\nwithin 30 s".to_owned()),
        ..Run::default()
    });
    study.runs.push(Run {
        router: "vllm-router".to_owned(),
        policy: "empty".to_owned(),
        seed: 2,
        ..Run::default()
    });
    study
}

fn run(router: &str, policy: &str, rank: usize, seed: u64, size: &Size) -> Run {
    let mut random = Rng::with_seed(seed * 1_000 + rank as u64);
    // The second policy is good, the later ones are worse and worse.
    let warmth = [0.22, 0.81, 0.55]
        .get(rank)
        .copied()
        .unwrap_or(0.6 - 0.02 * rank as f64);
    let uneven = 1.0 + (rank % 5) as f64 * 0.35;
    let mut due_us = 0;
    let served = (0..size.requests).map(|request| {
        due_us += (-(1.0 - random.f64()).ln() * 200_000.0) as u64;
        served(request, due_us, warmth, uneven, size.endpoints, &mut random)
    });
    Run {
        router: router.to_owned(),
        policy: policy.to_owned(),
        seed,
        endpoints: (0..size.endpoints)
            .map(|index| format!("10.0.0.{}:8000", index + 1))
            .collect(),
        served: served.collect(),
        cost: (rank != 2).then(|| RouterCost {
            cpu_us: 900_000 + 70_000 * rank as u64 + seed * 10_000,
            peak_rss_bytes: (60 + 9 * rank as u64) << 20,
        }),
        extra_calls: Some(100 * rank as u64),
        ..Run::default()
    }
}

fn served(
    request: u32,
    due_us: u64,
    warmth: f64,
    uneven: f64,
    endpoints: usize,
    random: &mut Rng,
) -> Served {
    let prompt_tokens = random.u32(400..9_000);
    let share = (warmth + 0.4 * (random.f64() - 0.5)).clamp(0.0, 0.98);
    let cached_tokens = (f64::from(prompt_tokens) * share) as u32 / 16 * 16;
    let output_tokens = random.u32(1..400);
    let endpoint = (random.f64().powf(uneven) * endpoints as f64) as u32;
    let queue = 1.0 + 3.0 * (due_us as f64 / 9e6).sin().max(0.0) / f64::from(endpoint + 1);
    let prefill_us =
        f64::from(prompt_tokens - cached_tokens) * 140.0 * queue * (0.6 + random.f64());
    let first_us = due_us + 30_000 + prefill_us as u64;
    let step_us = 22_000.0 + 50_000.0 * random.f64().powi(3) * (1.2 - warmth);
    Served {
        request,
        endpoint: Some(endpoint),
        due_us,
        first_us: Some(first_us),
        end_us: Some(first_us + (f64::from(output_tokens - 1) * step_us) as u64),
        prompt_tokens,
        cached_tokens,
        output_tokens,
        error: None,
    }
}
