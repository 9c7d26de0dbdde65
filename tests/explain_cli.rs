//! `cargo run --example explain`: what it makes of access logs, what it says, and its exit code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/example.rs"]
mod example;

use example::{Example, Outcome};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use warmroute::account;
use warmroute::balancer::{Ask, Balancer};
use warmroute::config::Config;
use warmroute::policy::Load;
use warmroute::state::memory::MemoryStore;

const PREFIX_HASH: &str = r#"{"policy": {"name": "prefix_hash"},
    "endpoints": [{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80"}]}"#;
const LATENCY: &str = r#"{"policy": {"name": "expected_latency"},
    "endpoints": [{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80", "weight": 2}]}"#;

static EXPLAIN: Example = Example::new("explain");

/// A file with this content.
fn file(name: &str, text: &str) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("explain-{name}"));
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Runs the program with `log` at its standard input.
fn explain(arguments: &[&str], log: &str) -> Outcome {
    let mut child = EXPLAIN
        .command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let log = log.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(log.as_bytes()).is_ok());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.into()
}

/// The accounts of so many picks that are never complete.
fn accounts(config: &str, picks: u64) -> Vec<String> {
    let config = Rc::new(Config::parse(config.as_bytes()).unwrap());
    let mut balancer = Balancer::new(config, 1);
    let store = MemoryStore::new();
    let pick = |number: u64| {
        let blocks: Vec<u64> = (0..30).map(|block| block * 31 + number % 3).collect();
        let ask = Ask {
            pool: 0,
            model: None,
            key: Some((number % 3) << 60),
            blocks: &blocks,
            cost: Load {
                requests: 1,
                waiting: 1,
                prefill_tokens: 2_000,
                decode_tokens: 100,
                context_tokens: 2_100,
            },
            share_permille: 1_000,
        };
        let picked = balancer.pick(&store, 1_000, number, ask);
        let (decision, reservation) = picked.unwrap();
        balancer.sent(&store, reservation.endpoint(), &blocks);
        account::line(&balancer, &ask, number, &decision)
    };
    (0..picks).map(pick).collect()
}

/// As the shipped configurations write it.
fn text_log(accounts: &[String]) -> String {
    let line = |account| format!("2026-01-01 POST /v1/chat/completions 200 warmroute={account}\n");
    accounts.iter().map(line).collect()
}

#[test]
fn every_decision_of_a_log_is_taken_again() {
    for (name, config, policy) in [
        ("hash.json", PREFIX_HASH, "prefix_hash"),
        ("latency.json", LATENCY, "expected_latency"),
    ] {
        let config_file = file(name, config);
        let log = text_log(&accounts(config, 20));
        let log = format!("{log}GET /health 200 warmroute=-\n\n");
        let outcome = explain(&["--config", &config_file], &log);
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        assert_eq!((outcome.code, lines.len()), (0, 21), "{outcome:?}");
        let start = format!("7: same: default, {policy}: 10.0.0.");
        assert!(lines[6].starts_with(&start), "{}", lines[6]);
        assert_eq!(
            lines[20],
            "20 decisions: 20 the same, 0 differ, 0 cannot be taken again; 2 lines without one"
        );
    }
}

#[test]
fn logs_may_be_json_and_configurations_may_be_envoys() {
    let accounts = accounts(PREFIX_HASH, 5);
    let line = |account: &String| json!({"status": 200, "why": account}).to_string() + "\n";
    let log = file("log.json", &accounts.iter().map(line).collect::<String>());
    let envoy = json!({"name": "warmroute", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": {"name": "warmroute", "configuration": {
            "@type": "type.googleapis.com/google.protobuf.StringValue", "value": PREFIX_HASH}}}});
    let config = file("envoy.yaml", &serde_saphyr::to_string(&envoy).unwrap());
    let outcome = explain(&["--config", &config, &log], "");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(
        outcome
            .stdout
            .starts_with(&format!("{log}:1: same: default, prefix_hash: "))
    );
    assert!(
        outcome.stdout.contains("5 decisions: 5 the same"),
        "{outcome:?}"
    );
}

#[test]
fn a_decision_that_differs_is_shown_and_fails() {
    let config = file("differs.json", PREFIX_HASH);
    let mut accounts = accounts(PREFIX_HASH, 3);
    let (one, other) = ("\"10.0.0.1:80\"", "\"10.0.0.2:80\"");
    let ranked = accounts[1].split("\"ranked\":").nth(1).unwrap();
    let (first, second) = if ranked.starts_with(&format!("[{one}")) {
        (one, other)
    } else {
        (other, one)
    };
    accounts[1] = accounts[1].replace(
        &format!("[{first},{second}]"),
        &format!("[{second},{first}]"),
    );
    let outcome = explain(&["--config", &config], &text_log(&accounts));
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let line = outcome.stdout.lines().nth(1).unwrap();
    let plain = |name: &str| name.replace('"', "");
    let wanted = format!(
        "2: differs: default, prefix_hash: {}, {} (",
        plain(second),
        plain(first)
    );
    assert!(line.starts_with(&wanted), "{line}");
    assert!(line.contains("; now "), "{line}");
    assert!(
        outcome
            .stdout
            .contains("3 decisions: 2 the same, 1 differ, 0 cannot")
    );
}

#[test]
fn figures_that_differ_fail_too() {
    let config = file("figures.json", LATENCY);
    let mut accounts = accounts(LATENCY, 1);
    accounts[0] = accounts[0].replace("\"costs_us\":[", "\"costs_us\":[1");
    let outcome = explain(&["--config", &config], &text_log(&accounts));
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.stdout.contains("but other figures"), "{outcome:?}");
}

#[test]
fn bad_lines_are_named_by_their_number() {
    let config = file("bad.json", PREFIX_HASH);
    let mut accounts = accounts(PREFIX_HASH, 5);
    accounts[1].truncate(100);
    accounts[2] = accounts[2].replace("\"complete\":true", "\"complete\":false");
    accounts[3] = accounts[3].replace("\"pool\":\"default\"", "\"pool\":\"gone\"");
    let outcome = explain(&["--config", &config], &text_log(&accounts));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!((outcome.code, lines.len()), (1, 6), "{outcome:?}");
    let cut = "2: error: not the account of a decision: ";
    assert!(lines[1].starts_with(cut), "{}", lines[1]);
    assert_eq!(
        lines[2],
        "3: error: only 2 candidates are listed, so that it cannot be decided again"
    );
    assert_eq!(lines[3], "4: error: the configuration has no pool `gone`");
    assert!(lines[5].starts_with("5 decisions: 2 the same, 0 differ, 3 cannot"));
}

#[test]
fn a_line_with_two_accounts_is_refused() {
    let config = file("forged.json", PREFIX_HASH);
    let accounts = accounts(PREFIX_HASH, 2);
    let log = json!({"agent": accounts[0], "why": accounts[1]}).to_string() + "\n";
    let outcome = explain(&["--config", &config], &log);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert_eq!(
        outcome.stdout.lines().next().unwrap(),
        "1: error: 2 values of the line are accounts, of which a client has written all but one"
    );
}

#[test]
fn another_configuration_is_told_of() {
    let config = file("other.json", LATENCY);
    let outcome = explain(&["--config", &config], &text_log(&accounts(PREFIX_HASH, 1)));
    assert_eq!(outcome.code, 1);
    assert_eq!(
        outcome.stdout.lines().next().unwrap(),
        "1: error: decided by prefix_hash, but the configuration has expected_latency for this pool \
         (and it was taken under another text of the configuration)"
    );
}

#[test]
fn a_table_shows_what_the_policy_was_shown() {
    let config = file("table.json", LATENCY);
    let log = text_log(&accounts(LATENCY, 4));
    let outcome = explain(&["--config", &config, "--table"], &log);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let last = outcome.stdout.split("\n4: same").nth(1).unwrap();
    for shown in [
        "cached tokens",
        "cost ms",
        "2000 prompt and 100 output tokens, pick 3",
    ] {
        assert!(last.contains(shown), "{last}");
    }
    // Nothing is known of the KV caches.
    assert!(!last.contains("KV"), "{last}");
    for endpoint in ["10.0.0.1:80", "10.0.0.2:80"] {
        let row = last.lines().filter(|line| line.contains(endpoint)).nth(1);
        assert!(
            row.is_some_and(|row| row.contains("2000") || row.contains("1920")),
            "{last}"
        );
    }
}

#[test]
fn nothing_to_read_is_no_success() {
    let config = file("none.json", PREFIX_HASH);
    let outcome = explain(&["--config", &config], "GET / 200 warmroute=-\n");
    assert_eq!(outcome.code, 1);
    assert!(
        outcome
            .stderr
            .starts_with("explain: no decision in 1 lines: "),
        "{outcome:?}"
    );
    let outcome = explain(&["--config", &config, "no/such/log"], "");
    assert_eq!(outcome.code, 2);
    assert!(
        outcome.stderr.starts_with("explain: no/such/log: "),
        "{outcome:?}"
    );
    let bad = file("bad-config.json", r#"{"endpoints": []}"#);
    let outcome = explain(&["--config", &bad], "");
    assert_eq!(outcome.code, 2);
    assert!(
        outcome.stderr.contains("endpoints: must name at least one"),
        "{outcome:?}"
    );
}
