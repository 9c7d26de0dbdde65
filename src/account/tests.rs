use std::rc::Rc;

use super::*;
use crate::balancer::Overload;
use crate::config::Config;
use crate::endpoint::{Endpoint, Pool};
use crate::health::Signal;
use crate::policy::{self, Ranking, Reason, View};
use crate::state::memory::MemoryStore;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Every policy, with each setting that makes another algorithm of it.
fn policies() -> Vec<Value> {
    vec![
        json!({"name": "round_robin"}),
        json!({"name": "random"}),
        json!({"name": "weighted_round_robin"}),
        json!({"name": "least_request"}),
        json!({"name": "least_outstanding_tokens"}),
        json!({"name": "power_of_two", "load": "requests"}),
        json!({"name": "power_of_two", "load": "tokens"}),
        json!({"name": "power_of_two", "load": "kv"}),
        json!({"name": "consistent_hash", "keys": [{"header": "x"}], "points": 16}),
        json!({"name": "prefix_hash", "bound": "requests", "points": 16}),
        json!({"name": "prefix_hash", "bound": "tokens", "load_factor": 1.0}),
        json!({"name": "prefix_hash", "bound": "expected_time"}),
        json!({"name": "power_of_two", "load": "expected_time"}),
        json!({"name": "cache_aware"}),
        json!({"name": "cache_aware", "preset": "sglang_router"}),
        json!({"name": "cache_aware", "preset": "ray"}),
        json!({"name": "expected_latency"}),
    ]
}

fn config(policy: &Value, weights: &[u32]) -> Config {
    let endpoints: Vec<Value> = weights
        .iter()
        .zip(1..)
        .map(|(weight, host)| json!({"address": format!("10.0.0.{host}:80"), "weight": weight}))
        .collect();
    let text = json!({"policy": policy, "endpoints": endpoints}).to_string();
    Config::parse(text.as_bytes()).unwrap()
}

/// What `config` decides on `view`, and the account of it.
fn decided(config: &Config, view: &View<'_>) -> (Ranking, String) {
    let pool = &config.pools[0];
    let policy = policy::build(&pool.policy, &pool.pool);
    let ranking = policy.rank(view).unwrap();
    let balancer = Balancer::new(Rc::new(config.clone()), 1);
    let decision = Decision {
        pool: 0,
        policy: policy.name(),
        endpoints: ranking.endpoints.clone(),
        reason: ranking.reason,
        key: view.key,
        cost: view.cost,
        bound: ranking.bound,
        costs_us: ranking.costs_us.clone(),
        sequence: view.sequence,
        candidates: view.candidates.to_vec(),
        behind: Vec::new(),
        reserve: Vec::new(),
        attempts: Vec::new(),
        overload: Overload::Passed,
        probe: false,
    };
    let ask = Ask {
        pool: 0,
        model: None,
        key: view.key,
        blocks: view.blocks,
        cost: view.cost,
        share_permille: 1_000,
    };
    (ranking, line(&balancer, &ask, view.random, &decision))
}

fn view<'a>(pool: &'a Pool, candidates: &'a [Candidate]) -> View<'a> {
    View {
        pool,
        candidates,
        key: Some(5),
        blocks: &[],
        cost: Load::default(),
        sequence: 7,
        random: 11,
    }
}

fn idle(count: u32) -> Vec<Candidate> {
    let one = |endpoint| Candidate {
        endpoint,
        weight: 1,
        ..Candidate::default()
    };
    (0..count).map(one).collect()
}

#[test]
fn an_account_is_short_where_little_is_known() {
    let config = config(&json!({"name": "round_robin"}), &[1, 3]);
    let mut candidates = idle(2);
    candidates[1].weight = 3;
    candidates[1].load.prefill_tokens = 90;
    let (_, line) = decided(&config, &view(&config.pools[0].pool, &candidates));
    let fingerprint = config.fingerprint;
    assert_eq!(
        line,
        format!(
            "{{\"warmroute\":1,\"config\":\"{fingerprint:016x}\",\"pool\":\"default\",\
             \"policy\":\"round_robin\",\"reason\":\"turn\",\
             \"ranked\":[\"10.0.0.2:80\",\"10.0.0.1:80\"],\"bound\":0,\"sequence\":7,\
             \"random\":\"000000000000000b\",\"key\":\"0000000000000005\",\"cost\":[0,0,0,0,0],\
             \"complete\":true,\
             \"idle\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,40000,125000,30000,200,5000000],\
             \"candidates\":[[\"10.0.0.1:80\",1],[\"10.0.0.2:80\",3,0,0,90]]}}"
        )
    );
}

/// Writing and reading have one list, so that no account would show an order that is not the format's.
#[test]
fn figures_are_in_the_order_of_the_fields() {
    let mut candidate = Candidate::default();
    let numbers: Vec<u64> = (1..).take(FIGURES).collect();
    fill(places(&mut candidate), numbers.clone().try_into().unwrap());
    let fields = format!("{candidate:?}");
    let fields = fields
        .split([' ', ','])
        .filter_map(|word| word.parse().ok());
    let endpoint = [0].into_iter();
    assert_eq!(
        fields.collect::<Vec<u64>>(),
        endpoint.chain(numbers).collect::<Vec<_>>()
    );
}

/// A pick through the balancer, with all that it knows by then.
#[test]
fn what_the_balancer_picked_is_picked_again() {
    let config = config(&json!({"name": "expected_latency"}), &[1; 5]);
    let store = MemoryStore::new();
    let mut balancer = Balancer::new(Rc::new(config.clone()), 1);
    let mut warm = 0;
    for turn in 0..200_u64 {
        let prompt = turn % 7;
        let blocks: Vec<u64> = (0..40)
            .map(|block| ((prompt << 32) | block).wrapping_mul(0x9e37_79b9))
            .collect();
        let ask = Ask {
            pool: 0,
            model: None,
            key: Some(prompt),
            blocks: &blocks,
            cost: Load {
                requests: 1,
                waiting: 1,
                prefill_tokens: 2_600 + turn,
                decode_tokens: 200,
                context_tokens: 2_800 + turn,
            },
            share_permille: 1_000,
        };
        let random = turn.wrapping_mul(0x1234_5678_9abc_def1);
        let (decision, reservation) = balancer.pick(&store, 1_000, random, ask).unwrap();
        let line = line(&balancer, &ask, random, &decision);
        let ranking = decide_again(&config, &line).unwrap();
        assert_eq!(ranking.endpoints, decision.endpoints, "{line}");
        assert_eq!(ranking.costs_us, decision.costs_us, "{line}");
        assert_eq!(ranking.reason, decision.reason, "{line}");
        warm += u32::from(decision.chosen().unwrap().matched_tokens > 0);
        let endpoint = reservation.endpoint();
        balancer.sent(&store, endpoint, &blocks);
        let rates = balancer.rates(0).unwrap();
        rates.first_token(endpoint, 2_600, 90_000 + endpoint.0 % 200_000);
        if turn % 3 > 0 {
            balancer.complete(&store, 1_000, reservation);
        }
    }
    assert!(warm > 100, "{warm} were found warm");
}

/// The configuration does not name discovered endpoints: the account does. Who was no candidate plays no part.
#[test]
fn picks_among_discovered_endpoints_are_taken_again() {
    for policy in policies() {
        let text = json!({
            "policy": policy, "endpoints": [{"address": "10.0.0.3:80", "weight": 2}],
            "clusters": ["c"], "discovery": {"cluster": "admin"},
        });
        let config = Config::parse(text.to_string().as_bytes()).unwrap();
        let store = MemoryStore::new();
        let mut balancer = Balancer::new(Rc::new(config.clone()), 1);
        let found = (1..7).map(|host| {
            let mut endpoint = Endpoint::new(format!("10.0.0.{host}:80").parse().unwrap());
            endpoint.weight = host;
            endpoint
        });
        let found: Vec<Endpoint> = found.collect();
        balancer.adopt(0, &found);
        balancer.heard(&store, 900, found[3].id(), Signal::Refused);
        let replay = Replay::new(&config);
        for turn in 0..60_u64 {
            let ask = Ask {
                pool: 0,
                model: None,
                key: Some((turn % 20).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                blocks: &[],
                cost: Load {
                    requests: 1,
                    waiting: 1,
                    prefill_tokens: 1_000,
                    decode_tokens: 200,
                    context_tokens: 1_200,
                },
                share_permille: 1_000,
            };
            let random = turn.wrapping_mul(0x1234_5678_9abc_def1);
            let (decision, _) = balancer.pick(&store, 1_000, random, ask).unwrap();
            let line = line(&balancer, &ask, random, &decision);
            let account = Account::parse(&line).unwrap();
            let outcome = replay.outcome(&account).unwrap();
            assert_eq!(outcome, Outcome::logged(&account), "{line}");
        }
    }
}

#[test]
fn another_input_is_another_decision() {
    let config = config(&json!({"name": "least_request"}), &[1, 1]);
    let mut candidates = idle(2);
    candidates[0].load.requests = 4;
    let (ranking, line) = decided(&config, &view(&config.pools[0].pool, &candidates));
    assert_eq!(ranking.endpoints, [1, 0]);
    let changed = line.replace("[\"10.0.0.2:80\",1]", "[\"10.0.0.2:80\",1,9]");
    assert_ne!(changed, line);
    let replay = Replay::new(&config);
    let account = Account::parse(&changed).unwrap();
    let outcome = replay.outcome(&account).unwrap();
    assert_eq!(outcome.ranked, ["10.0.0.1:80", "10.0.0.2:80"]);
    assert_ne!(outcome, Outcome::logged(&account));
    assert!(replay.is_of(&account));
}

#[test]
fn what_cannot_be_decided_again_is_refused_with_the_reason() {
    let ours = config(&json!({"name": "round_robin"}), &[1, 1]);
    let (_, line) = decided(&ours, &view(&ours.pools[0].pool, &idle(2)));
    let refused = |line: &str| decide_again(&ours, line).unwrap_err().to_string();
    let replaced = |from: &str, to: &str| {
        assert!(line.contains(from), "{from} in {line}");
        refused(&line.replace(from, to))
    };
    assert_eq!(
        replaced("\"complete\":true", "\"complete\":false"),
        "only 2 candidates are listed, so that it cannot be decided again"
    );
    assert_eq!(
        replaced("\"warmroute\":1", "\"warmroute\":2"),
        "an account of version 2; this program reads version 1"
    );
    assert_eq!(
        replaced("\"default\"", "\"other\""),
        "the configuration has no pool `other`"
    );
    assert_eq!(
        replaced("10.0.0.2", "10.0.0.9"),
        "the configuration's pool has no endpoint 10.0.0.9:80"
    );
    assert_eq!(
        replaced("round_robin", "random"),
        "decided by random, but the configuration has round_robin for this pool"
    );
    for (from, to, why) in [
        ("\"sequence\":7", "\"sequence\":-7", "sequence"),
        ("000000000000000b", "b0b0b", "not a number"),
        (
            ",1]",
            ",4294967296]",
            "4294967296 does not fit into 32 bits",
        ),
        (",1]", ",true]", "not an address and up to 20 figures"),
        (
            "\"candidates\"",
            "\"candidate\"",
            "missing field `candidates`",
        ),
    ] {
        let said = match why {
            "not a number" => replaced(from, "no hex"),
            _ => replaced(from, to),
        };
        assert!(
            said.starts_with("not the account of a decision: "),
            "{said}"
        );
        let why = why.replace("not a number", "`no hex` is no hexadecimal number");
        assert!(said.contains(&why) || why == "sequence", "{said}");
    }
    assert!(refused(&line[..line.len() - 9]).contains("EOF"));
}

#[test]
fn a_pool_that_is_too_large_says_so_and_is_refused() {
    let weights = vec![1; 600];
    let endpoints: Vec<Value> = (0..weights.len())
        .map(|host| json!({"address": format!("10.0.{}.{}:80", host / 250, host % 250 + 1)}))
        .collect();
    let text = json!({"policy": {"name": "expected_latency"}, "endpoints": endpoints}).to_string();
    let config = Config::parse(text.as_bytes()).unwrap();
    let mut candidates = idle(600);
    for candidate in &mut candidates {
        candidate.pace.residence_us += 1;
        candidate.load.context_tokens = 123_456;
        candidate.load.prefill_tokens = 12_345;
    }
    let (_, line) = decided(&config, &view(&config.pools[0].pool, &candidates));
    assert!(line.len() < 65_536, "{} bytes", line.len());
    assert_eq!(
        decide_again(&config, &line),
        Err(AccountError::Incomplete { listed: LISTED })
    );
}

/// The account in a line that has no more than one.
fn found(line: &str) -> Option<String> {
    find(line).unwrap()
}

#[test]
fn accounts_are_found_in_text_and_in_json() {
    let config = config(&json!({"name": "random"}), &[1, 1]);
    let (_, line) = decided(&config, &view(&config.pools[0].pool, &idle(2)));
    let found = |text: &str| found(text).unwrap_or_else(|| panic!("nothing in {text}"));
    assert_eq!(found(&line), line);
    assert_eq!(
        found(&format!("POST / 200 warmroute={line} tail {{}}\n")),
        line
    );
    // What a client may write into a line comes before.
    let forged = line.replace("10.0.0.1", "10.6.6.6");
    assert_eq!(found(&format!("GET /{forged} warmroute={line}")), line);
    assert_eq!(
        found(&format!("agent={{\"warmroute\": warmroute={line}")),
        line
    );
    let json = json!({"path": "/{\"x\"", "decision": line, "n": [1, {"deep": null}]}).to_string();
    assert_eq!(found(&json), line);
    assert_eq!(found(&format!("2026-01-01 stdout F {json}")), line);
    for none in [
        "",
        "POST / 200 warmroute=-",
        "{\"a\": 1}",
        "{\"warm",
        "{{{{",
    ] {
        assert_eq!(find(none), Ok(None), "{none}");
    }
    // One that was cut off is found, so that it can be complained of.
    let cut = &line[..line.len() - 5];
    assert_eq!(found(&format!("x {cut}")), cut);
}

/// A client writes paths and headers, and what it writes may sort before or after the account.
#[test]
fn clients_neither_forge_nor_hide_an_account_in_json() {
    let config = config(&json!({"name": "random"}), &[1, 1]);
    let (_, line) = decided(&config, &view(&config.pools[0].pool, &idle(2)));
    let cut = &line[..line.len() - 5];
    let incomplete = line.replace("\"complete\":true", "\"complete\":false");
    let forged = line.replace("10.0.0.1", "10.6.6.6");
    for member in ["agent", "why"] {
        let beside = |written: &str, account: &str| {
            json!({member: written, "decision": account, "n": [{"deep": "x"}]}).to_string()
        };
        for broken in [
            "{\"warmroute\":",
            "{\"warmroute\":1}",
            "{\"warmroute\":9}",
            cut,
            &format!("{forged}{forged}"),
            // Not as a whole.
            &format!("/{forged}"),
        ] {
            let found = find(&beside(broken, &line));
            assert_eq!(found, Ok(Some(line.clone())), "{member}: {broken}");
        }
        for account in [&line, &incomplete] {
            let refused = find(&beside(&forged, account)).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "2 values of the line are accounts, of which a client has written all but one"
            );
        }
        // To say the same does no harm, and a broken one alone is complained of.
        assert_eq!(found(&beside(&line, &line)), Some(line.clone()));
        assert_eq!(found(&beside("curl/8", cut)), Some(cut.to_owned()));
    }
    // As an object in JSON that a format in text has made, and as text that has come into JSON.
    let object = format!("{{\"agent\":{},\"why\":{line}}}", json!(cut));
    assert_eq!(found(&object), Some(line.clone()));
    let object = format!("{{\"agent\":{},\"why\":{line}}}", json!(forged));
    assert_eq!(find(&object), Err(AccountError::Several { found: 2 }));
    let text = format!("GET /{forged} {{\"warmroute\": warmroute={line}\n");
    let shipped = json!({"log": text, "stream": "stdout"}).to_string();
    assert_eq!(found(&shipped), Some(line.clone()));
    // In text too, a broken one after the account does not hide it.
    assert_eq!(
        found(&format!("{line} agent={{\"warmroute\":1}}")),
        Some(line)
    );
}

#[test]
fn a_line_stays_one_line_whatever_a_pool_is_called() {
    let name = "a\"b\\c\nd\u{7f}é\u{1f600}";
    let text = json!({"pools": [{"name": name, "policy": {"name": "random"},
        "endpoints": [{"address": "[::1]:80"}]}]})
    .to_string();
    let config = Config::parse(text.as_bytes()).unwrap();
    let (ranking, line) = decided(&config, &view(&config.pools[0].pool, &idle(1)));
    assert!(
        line.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
        "{line}"
    );
    assert_eq!(Account::parse(&line).unwrap().pool, name);
    assert_eq!(decide_again(&config, &line), Ok(ranking));
}

fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => Just(0),
        3 => 0..50_u64,
        4 => 0..20_000_u64,
        1 => any::<u64>(),
    ]
}

/// Of a figure that does not fit, the lower bits.
fn fill<const N: usize>(places: [Place<'_>; N], figures: [u64; N]) {
    for (place, figure) in places.into_iter().zip(figures) {
        match place {
            Place::Small(kept) => *kept = figure as u32,
            Place::Large(kept) => *kept = figure,
        }
    }
}

fn some_load() -> impl Strategy<Value = Load> {
    prop::array::uniform5(figure()).prop_map(|figures| {
        let mut load = Load::default();
        fill(load_places(&mut load), figures);
        load
    })
}

/// Weight, whether it is eligible, and what is known of an endpoint.
fn endpoint() -> impl Strategy<Value = (u32, bool, Candidate)> {
    let known = (prop::array::uniform20(figure()), any::<bool>());
    (1..6_u32, any::<bool>(), known).prop_map(|(weight, eligible, (figures, is_learned))| {
        let mut candidate = Candidate::default();
        fill(places(&mut candidate), figures);
        candidate.weight = weight;
        // As long as a prompt, or a little longer.
        candidate.matched_blocks %= 120;
        if !is_learned {
            candidate.pace = Pace::default();
        }
        (weight, eligible, candidate)
    })
}

proptest! {
    /// Whatever a policy is shown: from the line it decides the same, to the last figure.
    #[test]
    fn every_decision_is_taken_again_from_its_line(
        endpoints in prop::collection::vec(endpoint(), 1..24),
        key in prop::option::of(any::<u64>()),
        blocks in prop::collection::vec(any::<u64>(), 0..100),
        cost in some_load(),
        (sequence, random) in (any::<u64>(), any::<u64>()),
    ) {
        let weights: Vec<u32> = endpoints.iter().map(|(weight, ..)| *weight).collect();
        let placed = endpoints.iter().zip(0..).map(|((_, eligible, candidate), endpoint)| {
            (*eligible, Candidate { endpoint, ..*candidate })
        });
        let mut candidates: Vec<Candidate> = placed.clone()
            .filter_map(|(eligible, candidate)| eligible.then_some(candidate))
            .collect();
        if candidates.is_empty() {
            candidates = placed.map(|(_, candidate)| candidate).collect();
        }
        for policy in policies() {
            let config = config(&policy, &weights);
            let view = View {
                pool: &config.pools[0].pool,
                candidates: &candidates,
                key,
                blocks: &blocks,
                cost,
                sequence,
                random,
            };
            let (ranking, line) = decided(&config, &view);
            let found = found(&format!("x={line} y"));
            prop_assert_eq!(found.as_deref(), Some(line.as_str()));
            prop_assert_eq!(decide_again(&config, &line), Ok(ranking), "{}: {}", policy, line);
        }
    }

    /// Nothing that stands in a log does harm.
    #[test]
    fn any_line_is_harmless(
        text in "[{}\\[\\],:\"a-z0-9 \\\\]{0,200}",
        cut in 0..500_usize,
        put in "[-{}\\[\\],:\"0-9]{0,12}",
    ) {
        let _ = find(&text);
        let _ = Account::parse(&text);
        let config = config(&json!({"name": "expected_latency"}), &[1, 2]);
        let (_, mut line) = decided(&config, &view(&config.pools[0].pool, &idle(2)));
        let at = cut.min(line.len());
        line.replace_range(at..(at + put.len()).min(line.len()), &put);
        if let Ok(Some(found)) = find(&line) {
            let _ = decide_again(&config, &found);
        }
    }
}

#[test]
fn outcomes_read_as_people_say_it() {
    let outcome = Outcome {
        ranked: vec!["10.0.0.1:80".into(), "10.0.0.2:80".into()],
        reason: reason_name(Reason::Home).into(),
        bound: 12,
        costs_us: Vec::new(),
    };
    assert_eq!(
        outcome.to_string(),
        "10.0.0.1:80, 10.0.0.2:80 (home), bound 12"
    );
}
