//! Properties of generated workloads: chains, facts, shapes, and the means that they state.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use warmroute::prefix::routing_key;
use warmroute::request::{Api, RequestScanner, Scan, ScanOptions};
use warmroute::sim::workload::text::{chat_body, push_text};
use warmroute::sim::workload::{
    Request, Role, Segment, Start, Workload, burst, chat, lora, mix, rag, tenants, tree, uniform,
};

/// Every generator, in small.
fn generated(seed: u64) -> Vec<Workload> {
    let (requests, long_tokens) = (300, 600);
    let closed = chat::Closed {
        requests,
        threads: 20,
        ..chat::Closed::default()
    };
    let open = chat::Open {
        requests,
        ..chat::Open::default()
    };
    let rag = rag::Options {
        requests,
        document_tokens: long_tokens,
        ..rag::Options::default()
    };
    let burst = burst::Options {
        requests,
        prefix_tokens: long_tokens,
        ..burst::Options::default()
    };
    let mix = mix::Options {
        requests,
        long_tokens,
        short_tokens: 50,
        ..mix::Options::default()
    };
    let uniform = uniform::Options {
        requests,
        ..uniform::Options::default()
    };
    let lora = lora::Options {
        requests,
        system_tokens: long_tokens,
        ..lora::Options::default()
    };
    let tree = tree::Options {
        requests,
        ..tree::Options::default()
    };
    let tenants = tenants::Options {
        requests,
        system_tokens: long_tokens,
        ..tenants::Options::default()
    };
    vec![
        chat::closed(&closed, seed),
        chat::open(&open, seed),
        rag::workload(&rag, seed),
        burst::workload(&burst, seed),
        mix::workload(&mix, seed),
        uniform::workload(&uniform, seed),
        lora::workload(&lora, seed),
        tree::workload(&tree, seed),
        tenants::workload(&tenants, seed),
    ]
}

fn near(found: f64, stated: f64, tolerance: f64) {
    let error = (found / stated - 1.0).abs();
    assert!(error <= tolerance, "{found} is not near {stated}");
}

fn at_us(request: &Request) -> u64 {
    match request.start {
        Start::At { us } => us,
        Start::After { .. } => panic!("{request:?} waits"),
    }
}

#[test]
fn a_seed_gives_one_workload_and_another_seed_another() {
    let (first, again, other) = (generated(1), generated(1), generated(2));
    assert_eq!(first, again);
    for (first, other) in first.iter().zip(&other) {
        assert_eq!(first.requests.len(), 300, "{}", first.name);
        assert_ne!(first.requests, other.requests, "{}", first.name);
        // Not even a text is the same.
        let ids = |workload: &Workload| -> HashSet<u64> {
            let segments = workload.requests.iter().flat_map(|r| &r.prompt);
            segments.map(|segment| segment.id).collect()
        };
        assert!(ids(first).is_disjoint(&ids(other)), "{}", first.name);
    }
}

#[test]
fn generated_workloads_can_be_run_and_are_in_order() {
    for workload in generated(3) {
        assert_eq!(workload.check(), Ok(()), "{}", workload.name);
        for request in &workload.requests {
            let ids: HashSet<u64> = request.prompt.iter().map(|s| s.id).collect();
            assert_eq!(ids.len(), request.prompt.len(), "a text is said twice");
        }
        let times: Option<Vec<u64>> = workload
            .requests
            .iter()
            .map(|request| match request.start {
                Start::At { us } => Some(us),
                Start::After { .. } => None,
            })
            .collect();
        match times {
            Some(times) => {
                assert!(times.is_sorted(), "{}", workload.name);
                assert_eq!(times[0], 0);
            }
            None => assert_eq!(workload.name, "chat"),
        }
    }
}

#[test]
fn chats_have_the_published_lengths() {
    let workload = chat::closed(&chat::Closed::default(), 1);
    let facts = workload.facts(16);
    assert_eq!(facts.requests, 59_031);
    near(facts.mean_prompt_tokens, 22_790_000.0 / 59_031.0, 0.015);
    near(facts.mean_output_tokens, 2_294_000.0 / 59_031.0, 0.005);
    let mut turns: HashMap<u64, u32> = HashMap::new();
    for request in &workload.requests {
        *turns.entry(request.session).or_default() += 1;
    }
    near(turns.len() as f64, 8_000.0, 0.015);
    assert!(turns.values().all(|turns| *turns <= 30));
    // Only the last chats of the list may have been cut.
    let cut = turns.values().filter(|turns| **turns < 5).count();
    assert!(cut <= 30, "{cut} chats were cut");
}

#[test]
fn chat_threads_go_on_without_a_gap() {
    let options = chat::Closed {
        requests: 3_000,
        threads: 50,
        system_tokens: 0,
    };
    let workload = chat::closed(&options, 5);
    let mut waited_for = HashSet::new();
    let mut first = 0;
    for request in &workload.requests {
        match request.start {
            Start::At { us } => {
                assert_eq!(us, 0);
                first += 1;
            }
            Start::After { request, pause_us } => {
                assert_eq!(pause_us, 0);
                assert!(waited_for.insert(request), "two wait for {request}");
            }
        }
        assert_eq!(request.prompt[0].role, Role::User);
    }
    assert_eq!(first, 50);
    // What a turn says is the beginning of what the next turn of its chat says.
    let mut last: HashMap<u64, &Request> = HashMap::new();
    for request in &workload.requests {
        if let Some(before) = last.insert(request.session, request) {
            assert!(request.prompt.starts_with(&before.prompt));
            let answer = request.prompt[before.prompt.len()];
            assert_eq!(
                (answer.role, answer.tokens),
                (Role::Assistant, before.output_tokens)
            );
            assert_eq!(request.prompt.len(), before.prompt.len() + 2);
        }
    }
}

#[test]
fn open_chats_keep_their_rate_from_the_beginning_and_their_gaps() {
    let options = chat::Open {
        requests: 8_000,
        rate_per_s: 20.0,
        ..chat::Open::default()
    };
    let workload = chat::open(&options, 2);
    let times: Vec<u64> = workload.requests.iter().map(at_us).collect();
    for quarter in times.chunks(2_000) {
        let span_s = (quarter[1_999] - quarter[0]) as f64 / 1e6;
        near(1_999.0 / span_s, 20.0, 0.15);
    }
    near(workload.rate_per_s().unwrap(), 20.0, 0.05);
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut gaps_ms = Vec::new();
    for request in &workload.requests {
        if let Some(before) = last.insert(request.session, at_us(request)) {
            gaps_ms.push((at_us(request) - before) as f64 / 1e3);
        }
    }
    assert!(gaps_ms.iter().all(|gap| *gap >= 5_000.0));
    near(
        gaps_ms.iter().sum::<f64>() / gaps_ms.len() as f64,
        15_000.0,
        0.03,
    );
}

#[test]
fn documents_are_popular_by_zipfs_law() {
    let options = rag::Options {
        requests: 20_000,
        ..rag::Options::default()
    };
    let workload = rag::workload(&options, 4);
    let mut asked: HashMap<u64, f64> = HashMap::new();
    for request in &workload.requests {
        *asked.entry(request.session).or_default() += 1.0;
        assert_eq!(request.session, request.prompt[1].id);
        assert!((50..=100).contains(&request.prompt[2].tokens));
        assert!((100..=200).contains(&request.output_tokens));
    }
    let mut asked: Vec<f64> = asked.into_values().collect();
    asked.sort_by(|left, right| right.total_cmp(left));
    let harmonic: f64 = (1..=200).map(|rank| 1.0 / f64::from(rank)).sum();
    near(asked[0], 20_000.0 / harmonic, 0.05);
    near(asked[0] / asked[9], 10.0, 0.15);
    near(workload.rate_per_s().unwrap(), 4.0, 0.03);
    let facts = workload.facts(16);
    near(facts.mean_prompt_tokens, 8_125.0, 0.001);
    near(facts.mean_output_tokens, 150.0, 0.01);
}

#[test]
fn bursts_come_when_they_are_due_and_all_at_once() {
    let options = burst::Options::default();
    let workload = burst::workload(&options, 6);
    let hot = workload.requests.iter().filter(|r| r.prompt.len() == 2);
    let hot: Vec<&Request> = hot.collect();
    let first_us = at_us(hot[0]);
    // After half of five seconds, and the earliest other request within the first is time 0.
    assert!((1_500_000..=2_500_000).contains(&first_us), "{first_us}");
    for (index, request) in hot.iter().enumerate() {
        let due_us = first_us + (index as u64 / 50) * 5_000_000 + (index as u64 % 50) * 10_000;
        assert_eq!(at_us(request), due_us);
        assert_eq!(request.prompt[0], hot[0].prompt[0]);
        assert_eq!(request.session, hot[0].session);
    }
    let others = (workload.requests.len() - hot.len()) as f64;
    let span_s = at_us(&workload.requests[1_999]) as f64 / 1e6;
    near(others / span_s, 10.0, 0.1);
}

#[test]
fn a_tenth_is_long_and_nothing_is_shared() {
    let mix = mix::workload(
        &mix::Options {
            requests: 5_000,
            ..mix::Options::default()
        },
        7,
    );
    let long = mix.requests.iter().filter(|r| r.prompt_tokens() == 100_000);
    near(long.count() as f64, 500.0, 0.1);
    let uniform = uniform::workload(&uniform::Options::default(), 7);
    near(uniform.facts(16).mean_prompt_tokens, 1_000.0, 0.03);
    near(uniform.facts(16).mean_output_tokens, 100.0, 0.03);
    assert_eq!(uniform.facts(1).cacheable_share, 0.0);
    assert_eq!(mix.facts(16).cacheable_share, 0.0);
}

#[test]
fn adapters_share_nothing_with_each_other() {
    let workload = lora::workload(&lora::Options::default(), 8);
    let mut owner: HashMap<u64, Option<u32>> = HashMap::new();
    for request in &workload.requests {
        for id in request.chain(16) {
            assert_eq!(*owner.entry(id).or_insert(request.adapter), request.adapter);
        }
        let base = Request {
            adapter: None,
            ..request.clone()
        };
        assert_ne!(base.chain(16)[0], request.chain(16)[0]);
    }
    let of = |adapter| {
        workload
            .requests
            .iter()
            .filter(|r| r.adapter == Some(adapter))
            .count()
    };
    near(of(0) as f64 / of(3) as f64, 4.0, 0.3);
}

/// The simulator takes everything up to and including the first segment of the user as routing key.
#[test]
fn equal_keys_are_equal_beginnings() {
    let options = ScanOptions {
        prefix_bytes: 1_024,
        ..ScanOptions::default()
    };
    for workload in generated(9) {
        let (mut by_key, mut by_beginning) = (HashMap::new(), HashMap::new());
        for request in &workload.requests {
            let mut scanner = RequestScanner::new(Api::ChatCompletions, &options);
            scanner.push(chat_body(request, "base").as_bytes());
            let scanned = scanner.finish();
            assert_eq!(scanned.scan, Scan::Complete);
            let key = routing_key(scanned.model.as_deref(), &scanned.prompt).unwrap();
            let user = request.prompt.iter().position(|s| s.role == Role::User);
            let ids = request.prompt[..=user.unwrap()].iter().map(|s| s.id);
            let beginning = (request.adapter, ids.collect::<Vec<u64>>());
            let one = by_key.entry(key).or_insert_with(|| beginning.clone());
            assert_eq!(*one, beginning, "{}", workload.name);
            assert_eq!(*by_beginning.entry(beginning).or_insert(key), key);
        }
    }
}

/// Ids whose texts differ in their first word from any word of the others within 64 tokens, and
/// from their own later words, so that no two lists of segments make one text by chance.
fn distinct_ids(count: usize) -> Vec<u64> {
    let mut taken: Vec<(u64, Vec<String>)> = Vec::new();
    for id in 0.. {
        let mut text = String::new();
        push_text(&mut text, id, 64);
        let words: Vec<String> = text.split_terminator(' ').map(str::to_owned).collect();
        let is_distinct = taken
            .iter()
            .all(|(_, others)| !others.contains(&words[0]) && !words.contains(&others[0]));
        if is_distinct && !words[1..].contains(&words[0]) {
            taken.push((id, words));
        }
        if taken.len() == count {
            break;
        }
    }
    taken.into_iter().map(|(id, _)| id).collect()
}

fn any_request() -> impl Strategy<Value = Request> {
    let ids = distinct_ids(4);
    let segment = (prop::sample::select(ids), 0u32..12).prop_map(|(id, tokens)| Segment {
        id,
        tokens,
        role: Role::User,
    });
    let prompt = prop::collection::vec(segment, 1..5);
    let adapter = prop::option::weighted(0.2, 0u32..2);
    (prompt, adapter, 1u32..50).prop_map(|(prompt, adapter, output_tokens)| Request {
        start: Start::At { us: 0 },
        session: 0,
        adapter,
        prompt,
        output_tokens,
    })
}

/// Everything up to the end of each full block, as text.
fn beginnings(request: &Request, block_tokens: u32) -> Vec<(Option<u32>, String)> {
    let mut text = String::new();
    for segment in &request.prompt {
        push_text(&mut text, segment.id, segment.tokens);
    }
    let bytes = 4 * block_tokens as usize;
    let ends = (1..=text.len() / bytes).map(|block| block * bytes);
    ends.map(|end| (request.adapter, text[..end].to_owned()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn ids_of_blocks_are_equal_exactly_if_all_text_up_to_there_is(
        requests in prop::collection::vec(any_request(), 2..12),
        block_tokens in 1u32..9,
    ) {
        let (mut by_id, mut by_text) = (HashMap::new(), HashMap::new());
        for request in &requests {
            let chain = request.chain(block_tokens);
            let texts = beginnings(request, block_tokens);
            prop_assert_eq!(chain.len(), texts.len());
            for (id, text) in chain.into_iter().zip(texts) {
                prop_assert_eq!(by_id.entry(id).or_insert_with(|| text.clone()), &text);
                prop_assert_eq!(*by_text.entry(text).or_insert(id), id);
            }
        }
    }

    #[test]
    fn facts_are_those_of_a_naive_count(
        requests in prop::collection::vec(any_request(), 1..12),
        block_tokens in 1u32..9,
    ) {
        let workload = Workload { requests, ..Workload::default() };
        let mut seen = HashSet::new();
        let (mut found, mut all, mut lengths) = (0u32, 0u32, Vec::new());
        for request in &workload.requests {
            let tokens: u32 = request.prompt.iter().map(|segment| segment.tokens).sum();
            let texts = beginnings(request, block_tokens);
            let mut here = texts.iter().take_while(|text| seen.contains(*text)).count() as u32;
            // The last token is always computed.
            while here > 0 && here * block_tokens >= tokens {
                here -= 1;
            }
            found += here * block_tokens;
            all += tokens;
            lengths.push(tokens);
            seen.extend(texts);
        }
        let facts = workload.facts(block_tokens);
        prop_assert_eq!(facts.requests, lengths.len());
        let share = f64::from(found) / f64::from(all.max(1));
        prop_assert!((facts.cacheable_share - share).abs() < 1e-12);
        let mean = f64::from(all) / lengths.len() as f64;
        prop_assert!((facts.mean_prompt_tokens - mean).abs() < 1e-9);
        let not_above = |limit: u32| lengths.iter().filter(|length| **length <= limit).count();
        let p99 = facts.p99_prompt_tokens;
        prop_assert!(lengths.contains(&p99) && not_above(p99) * 100 >= lengths.len() * 99);
        prop_assert!(p99 == 0 || not_above(p99 - 1) * 100 < lengths.len() * 99);
    }

    #[test]
    fn what_was_shared_stays_shared_in_small(
        requests in prop::collection::vec(any_request(), 1..12),
        divisor in 1u32..6,
    ) {
        let scaled = requests.iter().cloned().map(|mut request| {
            request.prompt.iter_mut().for_each(|segment| segment.tokens *= divisor);
            request.output_tokens *= divisor;
            request
        });
        let large = Workload { requests: scaled.collect(), ..Workload::default() };
        prop_assert_eq!(large.shrunk(divisor).requests, requests);
    }
}

/// Three threads of a hundred requests each, some of them long.
fn waiting(long: &HashSet<u32>) -> Workload {
    let request = |index: u32| Request {
        start: match index {
            0..3 => Start::At {
                us: u64::from(index),
            },
            _ => Start::After {
                request: index - 3,
                pause_us: 10,
            },
        },
        session: u64::from(index),
        adapter: None,
        prompt: vec![Segment {
            id: 1,
            tokens: if long.contains(&index) { 1_000 } else { 10 },
            role: Role::User,
        }],
        output_tokens: 5,
    };
    Workload {
        requests: (0..300).map(request).collect(),
        ..Workload::default()
    }
}

#[test]
fn who_waited_for_a_request_that_is_left_out_waits_for_the_one_before() {
    let long = HashSet::from([1, 4, 6, 298]);
    let (workload, dropped) = waiting(&long).without_longer_than(10);
    assert_eq!(dropped, 4);
    assert_eq!(workload.check(), Ok(()));
    let by_session: HashMap<u64, usize> = (0..workload.requests.len())
        .map(|index| (workload.requests[index].session, index))
        .collect();
    let start = |session: u64| workload.requests[by_session[&session]].start;
    let after = |session: u64, pause_us| Start::After {
        request: by_session[&session] as u32,
        pause_us,
    };
    // 7 waited for 4, 4 for 1, and 1 was sent at 1 us.
    assert_eq!(start(7), Start::At { us: 21 });
    assert_eq!(start(9), after(3, 20));
    assert_eq!(start(10), after(7, 10));
    assert_eq!(start(299), after(296, 10));
    let (whole, dropped) = waiting(&long).without_longer_than(1_000);
    assert_eq!((whole, dropped), (waiting(&long), 0));
}

#[test]
fn times_are_divided_and_pauses_stay() {
    let fast = waiting(&HashSet::new()).sped_up(2.0);
    assert_eq!(fast.requests[2].start, Start::At { us: 1 });
    assert_eq!(fast.requests[3], waiting(&HashSet::new()).requests[3]);
    let uniform = uniform::workload(&uniform::Options::default(), 1);
    let rate = uniform.rate_per_s().unwrap();
    near(
        uniform.clone().sped_up(3.0).rate_per_s().unwrap(),
        rate * 3.0,
        1e-6,
    );
    assert_eq!(uniform.clone().sped_up(0.0), uniform);
    assert_eq!(fast.rate_per_s(), None);
}

#[test]
fn what_cannot_be_run_is_named() {
    let with = |change: fn(&mut Request)| {
        let mut workload = waiting(&HashSet::new()).truncated(7);
        assert_eq!(workload.requests.len(), 7);
        change(&mut workload.requests[5]);
        workload.check().unwrap_err()
    };
    let empty = with(|request| request.prompt[0].tokens = 0);
    assert_eq!(empty, "request 5: the prompt is empty");
    let silent = with(|request| request.output_tokens = 0);
    assert_eq!(silent, "request 5: the output is empty");
    let forward = with(|request| {
        request.start = Start::After {
            request: 5,
            pause_us: 0,
        };
    });
    assert_eq!(
        forward,
        "request 5: waits for request 5, which is not before it"
    );
}

#[test]
fn candidates_of_a_tree_share_their_path_and_come_at_once() {
    let options = tree::Options {
        requests: 4_000,
        rate_per_s: 20.0,
        ..tree::Options::default()
    };
    let workload = tree::workload(&options, 1);
    assert_eq!(workload.requests.len(), 4_000);
    near(workload.rate_per_s().unwrap(), 20.0, 0.15);
    // By path: when its candidates come, and how many there are.
    let mut paths: HashMap<Vec<u64>, (HashSet<u64>, u32)> = HashMap::new();
    for request in &workload.requests {
        let path = request.prompt.iter().map(|segment| segment.id).collect();
        let (times, count) = paths.entry(path).or_default();
        times.insert(at_us(request));
        *count += 1;
    }
    assert!(paths.values().all(|(times, _)| times.len() == 1));
    // The last ones are cut.
    let whole = paths.values().filter(|(_, count)| *count == 4).count();
    assert!(whole + 1 >= paths.len(), "{whole} of {}", paths.len());
    // A path of more than one step is the longer part of one that was there.
    let longest = paths.keys().map(Vec::len).max();
    assert_eq!(longest, Some(2 + 2 * 3));
    let parents = paths.keys().filter(|path| path.len() == 8);
    let known = parents
        .clone()
        .filter(|path| paths.contains_key(&path[..6]));
    // Those of the first agents were before the beginning.
    near(known.count() as f64, parents.count() as f64, 0.15);
}

#[test]
fn tenants_come_and_go_and_the_first_one_changes_its_system_prompt() {
    let options = tenants::Options {
        requests: 20_000,
        days: 1,
        ..tenants::Options::default()
    };
    let workload = tenants::workload(&options, 1);
    near(workload.rate_per_s().unwrap(), options.rate_per_s, 0.1);
    let of_first = workload
        .requests
        .iter()
        .filter(|one| one.adapter == Some(0));
    let systems: Vec<u64> = of_first.clone().map(|one| one.prompt[0].id).collect();
    let changed = systems.iter().position(|id| *id != systems[0]).unwrap();
    assert!(systems[changed..].iter().all(|id| *id == systems[changed]));
    let of_second = workload
        .requests
        .iter()
        .filter(|one| one.adapter == Some(1));
    let systems: HashSet<u64> = of_second.map(|one| one.prompt[0].id).collect();
    assert_eq!(systems.len(), 1);
    // The busiest fifth of the day has several times the requests of the quietest.
    let day_us = at_us(workload.requests.last().unwrap()) + 1;
    let mut fifths = [0.0_f64; 5];
    for request in of_first {
        fifths[(at_us(request) * 5 / day_us) as usize] += 1.0;
    }
    fifths.sort_by(f64::total_cmp);
    assert!(fifths[4] > 3.0 * fifths[0], "{fifths:?}");
}

#[test]
fn what_is_left_of_a_trace_begins_anew() {
    let workload = uniform::workload(&uniform::Options::default(), 1);
    let from = 500;
    let rest = workload.clone().without_first(from);
    let gone_us = at_us(&workload.requests[from]);
    assert_eq!(rest.requests.len(), workload.requests.len() - from);
    for (left, whole) in rest.requests.iter().zip(&workload.requests[from..]) {
        assert_eq!(left.prompt, whole.prompt);
        assert_eq!(at_us(left) + gone_us, at_us(whole));
    }
    assert!(workload.without_first(1_000_000).requests.is_empty());
}
