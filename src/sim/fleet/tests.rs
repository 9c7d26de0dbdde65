use super::*;
use crate::sim::peers::PeerKind;
use crate::sim::profiles::h100x2;
use crate::sim::replica::Profile;
use crate::sim::workload::{Role, Segment, chat, lora, rag, uniform};
use serde_json::Value;

/// Every request has the system prompt 1, a first message of its session, and an ending of its own.
fn chats(count: u32, sessions: u64, gap_us: u64) -> Workload {
    let request = |index: u32| {
        let session = u64::from(index) % sessions;
        let segment = |id, tokens, role| Segment { id, tokens, role };
        Request {
            start: Start::At {
                us: u64::from(index) * gap_us,
            },
            session,
            adapter: None,
            prompt: vec![
                segment(1, 64, Role::System),
                segment(1_000 + session, 640, Role::User),
                segment(1_000_000 + u64::from(index), 50, Role::User),
            ],
            output_tokens: 8,
        }
    };
    Workload {
        requests: (0..count).map(request).collect(),
        ..Workload::default()
    }
}

fn fleet(replicas: usize, name: &str) -> FleetOptions {
    FleetOptions::new(vec![Profile::default(); replicas], policy(name))
}

fn run_whole(options: &FleetOptions, workload: &Workload) -> Outcome {
    let outcome = run(options, workload).unwrap();
    assert_eq!(outcome.faults, Vec::<String>::new());
    assert!(outcome.run.served.iter().all(|one| one.error.is_none()));
    outcome
}

fn hit_rate(outcome: &Outcome) -> f64 {
    let sum = |of: fn(&Served) -> u32| outcome.run.served.iter().map(|s| u64::from(of(s))).sum();
    let (cached, prompt): (u64, u64) = (sum(|s| s.cached_tokens), sum(|s| s.prompt_tokens));
    cached as f64 / prompt as f64
}

fn per_endpoint(outcome: &Outcome) -> Vec<usize> {
    let mut counts = vec![0; outcome.run.endpoints.len()];
    for served in &outcome.run.served {
        counts[served.endpoint.unwrap() as usize] += 1;
    }
    counts
}

#[test]
fn every_policy_conserves_work_with_any_number_of_gateways_and_workers() {
    let workload = chats(300, 20, 60_000);
    for name in POLICIES {
        for (gateways, workers) in [(1, 1), (3, 2)] {
            let options = FleetOptions {
                gateways,
                workers,
                ..fleet(4, name)
            };
            let outcome = run_whole(&options, &workload);
            assert!(hit_rate(&outcome) > 0.05, "{name}");
            assert_eq!(outcome.run.policy, name);
        }
    }
}

#[test]
fn every_peer_conserves_work_and_does_the_same_twice() {
    let mut workload = chats(300, 20, 30_000);
    // One that no cache holds, which every router has to get over.
    workload.requests[7].prompt[1].tokens = 1_000_000;
    for kind in PeerKind::ALL {
        let options = FleetOptions {
            peer: Some(kind),
            ..fleet(4, "round_robin")
        };
        let outcome = run(&options, &workload).unwrap();
        assert_eq!(outcome.faults, Vec::<String>::new(), "{}", kind.name());
        assert_eq!(outcome.run.policy, kind.name());
        assert_eq!(outcome.run.router, "peer");
        let served = &outcome.run.served;
        assert_eq!(served.iter().filter(|one| one.error.is_some()).count(), 1);
        assert!(hit_rate(&outcome) > 0.05, "{}", kind.name());
        assert_eq!(
            run(&options, &workload).unwrap(),
            outcome,
            "{}",
            kind.name()
        );
    }
}

#[test]
fn peers_that_look_for_prefixes_find_more_than_turns_do() {
    let workload = chats(310, 31, 100_000);
    let turns = hit_rate(&run_whole(&fleet(4, "round_robin"), &workload));
    for kind in PeerKind::ALL {
        let options = FleetOptions {
            peer: Some(kind),
            ..fleet(4, "round_robin")
        };
        let found = hit_rate(&run_whole(&options, &workload));
        assert!(found > turns + 0.05, "{}: {found} to {turns}", kind.name());
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let workload = chats(200, 20, 40_000);
    let options = fleet(4, "power_of_two");
    let first = run(&options, &workload).unwrap();
    assert_eq!(run(&options, &workload).unwrap(), first);
    let other = FleetOptions { seed: 2, ..options };
    assert_ne!(run(&other, &workload).unwrap().run.served, first.run.served);
}

#[test]
fn turns_are_exact_within_a_gateway_whatever_the_number_of_workers() {
    let options = FleetOptions {
        workers: 4,
        ..fleet(4, "round_robin")
    };
    let outcome = run_whole(&options, &chats(400, 20, 20_000));
    assert_eq!(per_endpoint(&outcome), [100; 4]);
}

#[test]
fn prefix_hash_keeps_sessions_together_and_round_robin_does_not() {
    // Each request alone in the fleet: no bound is ever in the way.
    let workload = chats(310, 31, 2_000_000);
    let hashed = run_whole(&fleet(4, "prefix_hash"), &workload);
    let turns = run_whole(&fleet(4, "round_robin"), &workload);
    assert!(hit_rate(&hashed) > 0.8, "{}", hit_rate(&hashed));
    assert!(hit_rate(&turns) < hit_rate(&hashed) - 0.1);
}

#[test]
fn weights_are_obeyed() {
    let options = FleetOptions {
        weights: vec![3, 1],
        ..fleet(2, "weighted_round_robin")
    };
    let outcome = run_whole(&options, &chats(400, 20, 100_000));
    assert_eq!(per_endpoint(&outcome), [300, 100]);
}

#[test]
fn a_request_waits_for_the_one_before_it_and_the_pause() {
    let mut workload = chats(2, 1, 0);
    workload.requests[1].start = Start::After {
        request: 0,
        pause_us: 500,
    };
    let outcome = run_whole(&fleet(1, "round_robin"), &workload);
    let served = &outcome.run.served;
    assert_eq!(served[1].due_us, served[0].end_us.unwrap() + 500);
    workload.requests[0].start = Start::After {
        request: 1,
        pause_us: 0,
    };
    let error = run(&fleet(1, "round_robin"), &workload).unwrap_err();
    assert_eq!(error.to_string(), "request 0 cannot wait for request 1");
}

#[test]
fn a_request_that_no_cache_holds_is_an_error_and_leaves_nothing_behind() {
    let mut workload = chats(3, 1, 1_000);
    workload.requests[1].prompt[1].tokens = 1_000_000;
    let outcome = run(&fleet(2, "least_outstanding_tokens"), &workload).unwrap();
    assert_eq!(outcome.faults, Vec::<String>::new());
    let errors: Vec<_> = outcome.run.served.iter().map(|s| &s.error).collect();
    assert!(errors[0].is_none() && errors[2].is_none());
    assert_eq!(
        errors[1].as_deref(),
        Some("400: longer than the replica's cache")
    );
}

#[test]
fn bad_options_are_refused() {
    let workload = chats(1, 1, 0);
    let none = fleet(0, "random");
    let error = run(&none, &workload).unwrap_err();
    assert_eq!(error.to_string(), "0 replicas: 1 to 1,000 are possible");
    let unknown = run(&fleet(1, "no_such_policy"), &workload).unwrap_err();
    assert!(unknown.to_string().contains("policy"), "{unknown}");
}

/// One server, service time D, Poisson arrivals at utilization ρ: the mean wait is
/// ρ D / (2 (1 − ρ)) (Pollaczek and Khinchine, for M/D/1).
#[test]
fn one_replica_waits_as_queueing_theory_says() {
    let service_us = 100_000.0;
    let profile = Profile {
        prefill_tokens_per_s: 1_000,
        step_base_us: 50_000,
        max_running: 1,
        token_budget: 64,
        ..Profile::fast()
    };
    for load in [0.5, 0.8] {
        let mut random = Random::new(11);
        let mut us = 0.0;
        let mut workload = chats(200_000, u64::MAX, 0);
        for (request, id) in workload.requests.iter_mut().zip(10..) {
            let uniform = (random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
            us -= (1.0 - uniform).ln() * service_us / load;
            request.start = Start::At { us: us as u64 };
            // 50 ms for the step and 50 for as many tokens; the only output token comes with it.
            request.prompt = vec![Segment {
                id,
                tokens: 50,
                role: Role::User,
            }];
            request.output_tokens = 1;
        }
        let options = FleetOptions::new(vec![profile.clone()], policy("round_robin"));
        let outcome = run_whole(&options, &workload);
        let wait_us = outcome.run.served.iter().map(|one| {
            let taken_us = one.end_us.unwrap() - one.due_us;
            taken_us as f64 - service_us
        });
        let mean_us = wait_us.sum::<f64>() / 200_000.0;
        let theory_us = load * service_us / (2.0 * (1.0 - load));
        let error = (mean_us / theory_us - 1.0).abs();
        assert!(error < 0.03, "at {load}: {mean_us} us, not {theory_us}");
    }
}

/// A document that both replicas hold, and questions about it long after; none is under way when a
/// replica loses its cache 200 s after the beginning.
fn document() -> Workload {
    let segment = |id, tokens, role| Segment { id, tokens, role };
    let request = |index: u32| Request {
        start: Start::At {
            us: match index {
                0..60 => 0,
                _ => u64::from(index) * 2_000_000,
            },
        },
        session: u64::from(index),
        adapter: None,
        prompt: vec![
            segment(1, 8_000, Role::System),
            segment(1_000 + u64::from(index), 200, Role::User),
        ],
        output_tokens: 8,
    };
    Workload {
        requests: (0..80).chain(102..120).map(request).collect(),
        ..Workload::default()
    }
}

#[test]
fn a_replica_that_lost_its_cache_is_not_taken_to_be_warm() {
    let workload = document();
    let questions_missed = |replica, scrape_interval_ms, workers| {
        let options = FleetOptions {
            restarts: vec![(replica, 200_000_000)],
            scrape_interval_ms,
            workers,
            ..fleet(2, "expected_latency")
        };
        let outcome = run_whole(&options, &workload);
        let mut served = outcome.run.served.iter().skip(60);
        let warm = served.by_ref().take(20);
        assert!(
            warm.into_iter().all(|one| one.cached_tokens >= 8_000),
            "before"
        );
        served.filter(|one| one.cached_tokens < 8_000).count()
    };
    for workers in [1, 4] {
        let missed = [0, 1].map(|replica| questions_missed(replica, 1_000, workers));
        assert_eq!(missed, [0, 0], "the other one has it");
    }
    // One of the two is everybody's home, and without metrics its loss shows in answers only.
    let missed: usize = [0, 1]
        .map(|replica| questions_missed(replica, 0, 1))
        .iter()
        .sum();
    assert!(missed > 0);
}

#[test]
fn picks_from_bodies_and_from_numbers_send_the_same_requests_together() {
    // The first message of the user is 640 tokens, of which the key takes the first 1,024 bytes.
    let workload = chats(200, 20, 400_000);
    let together = |reading| {
        let options = FleetOptions {
            reading,
            ..fleet(4, "prefix_hash")
        };
        let outcome = run_whole(&options, &workload);
        let picks = outcome.run.served.iter().map(|served| served.endpoint);
        picks.collect::<Vec<_>>()
    };
    let (numbers, bodies) = (together(Reading::Numbers), together(Reading::Bodies));
    for picks in [&numbers, &bodies] {
        for session in 0..20 {
            let of_session: Vec<_> = picks.iter().skip(session).step_by(20).collect();
            let kept = of_session.windows(2).filter(|pair| pair[0] == pair[1]);
            assert!(kept.count() >= 8, "session {session}: {of_session:?}");
        }
    }
    assert_ne!(numbers, bodies, "the text hashes to other places");
}

#[test]
fn endpoints_have_the_addresses_that_were_given() {
    let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut options = fleet(2, "round_robin");
    options.addresses = vec![at(9_201), at(9_202)];
    let outcome = run_whole(&options, &chats(10, 2, 100_000));
    assert_eq!(outcome.run.endpoints, ["127.0.0.1:9201", "127.0.0.1:9202"]);
    assert_eq!(per_endpoint(&outcome), [5, 5]);
    for addresses in [vec![at(9_201)], vec![at(9_202), at(9_201)]] {
        options.addresses = addresses;
        assert_eq!(run(&options, &chats(1, 1, 1)), Err(FleetError::Addresses));
    }
}

/// With a cache that holds everything, and each request alone, the hits are those of the workload.
#[test]
fn an_infinite_cache_finds_what_the_workload_shares() {
    let profile = Profile {
        blocks: 50_000_000,
        ..Profile::fast()
    };
    let workloads = [
        chats(500, 20, 1_000),
        chat::closed(
            &chat::Closed {
                requests: 2_000,
                threads: 1,
                ..chat::Closed::default()
            },
            3,
        ),
        rag::workload(
            &rag::Options {
                requests: 500,
                ..rag::Options::default()
            },
            3,
        ),
        lora::workload(&lora::Options::default(), 3),
        uniform::workload(&uniform::Options::default(), 3),
    ];
    for workload in workloads {
        let workload = workload.sped_up(0.001);
        let options = FleetOptions {
            scrape_interval_ms: 0,
            ..FleetOptions::new(vec![profile.clone()], policy("prefix_hash"))
        };
        let outcome = run_whole(&options, &workload);
        let facts = workload.facts(profile.block_tokens);
        let error = (hit_rate(&outcome) - facts.cacheable_share).abs();
        assert!(error < 1e-12, "{}: {error}", workload.name);
    }
}

/// One prompt of one segment at a time.
fn prompts(of: &[(u64, u64, u32)]) -> Workload {
    let request = |(at_ms, id, tokens): &(u64, u64, u32)| Request {
        start: Start::At { us: at_ms * 1_000 },
        session: *id,
        adapter: None,
        prompt: vec![Segment {
            id: *id,
            tokens: *tokens,
            role: Role::User,
        }],
        output_tokens: 2,
    };
    Workload {
        requests: of.iter().map(request).collect(),
        ..Workload::default()
    }
}

#[test]
fn the_oracle_sees_speeds_queues_and_caches() {
    let fast = Profile::default();
    let options = FleetOptions {
        peer: Some(PeerKind::Oracle),
        ..FleetOptions::new(vec![fast.slowed(3_000), fast], Value::Null)
    };
    let workload = prompts(&[
        // The fast one.
        (0, 1, 10_000),
        // That one is busy for longer than the slow one takes.
        (1, 2, 1_600),
        // Both are idle, and the slow one has it.
        (20_000, 2, 1_600),
        (40_000, 3, 1_600),
    ]);
    let outcome = run_whole(&options, &workload);
    let endpoints = outcome.run.served.iter().map(|one| one.endpoint);
    let endpoints: Vec<u32> = endpoints.map(Option::unwrap).collect();
    assert_eq!(endpoints, [1, 0, 0, 1]);
}

#[test]
fn a_gateway_that_is_told_the_paces_leaves_the_slow_replica_alone_from_the_first_request() {
    let fast = Profile::default();
    let workload = prompts(&[1_u64, 2, 3, 4, 5, 6, 7, 8].map(|id| (id * 20_000, id, 2_000)));
    let with = |paces| {
        let options = FleetOptions {
            paces,
            ..FleetOptions::new(
                vec![fast.clone(), fast.slowed(3_000)],
                policy("expected_latency"),
            )
        };
        per_endpoint(&run_whole(&options, &workload))
    };
    assert_eq!(with(Paces::Told), [8, 0]);
    let learned = with(Paces::Learned);
    assert!(learned[1] > 0, "{learned:?}");
}

/// Half of the replicas are 2.5 times slower, and nobody says so: who bounds by expected time finds
/// out, and who bounds by tokens lets the slow half fall behind.
#[test]
fn a_bound_in_time_finds_out_who_is_slow() {
    let fast = h100x2();
    let slow = fast.slowed(2_500);
    let replicas: Vec<Profile> = [fast, slow].into_iter().cycle().take(6).collect();
    let mean_ttft_ms = |bound: &str, seed: u64| {
        let documents = rag::Options {
            requests: 1_500,
            rate_per_s: 6.0,
            documents: 2_000,
            zipf: 0.5,
            ..rag::Options::default()
        };
        let policy = serde_json::json!({"name": "prefix_hash", "bound": bound});
        let options = FleetOptions {
            seed,
            ..FleetOptions::new(replicas.clone(), policy)
        };
        let outcome = run_whole(&options, &rag::workload(&documents, seed));
        let served = outcome.run.served.iter();
        let ttft_us: u64 = served.map(|one| one.first_us.unwrap() - one.due_us).sum();
        ttft_us / 1_000 / 1_500
    };
    for seed in 1..=4 {
        let [time, tokens] = ["expected_time", "tokens"].map(|bound| mean_ttft_ms(bound, seed));
        assert!(
            time * 10 < tokens * 8,
            "seed {seed}: {time} ms in time, {tokens} ms in tokens"
        );
    }
}
