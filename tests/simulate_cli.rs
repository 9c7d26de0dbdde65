//! `cargo run --example simulate`: what it prints, writes and refuses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/example.rs"]
mod example;

use example::Example;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

static SIMULATE: Example = Example::new("simulate");

fn simulate(arguments: &[&str]) -> Output {
    SIMULATE.command().args(arguments).output().unwrap()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_same_command_gives_the_same_bytes() {
    let files = [scratch("same.html"), scratch("same.json")];
    let [html, json] = files.each_ref().map(|file| file.to_str().unwrap());
    let arguments = [
        "--workload",
        "chat",
        "--requests",
        "400",
        "--threads",
        "40",
        "--fleet",
        "4xl4-fp8",
        "--policies",
        "power_of_two,prefix_hash",
        "--baseline",
        "power_of_two",
        "--seeds",
        "5,6",
        "--html",
        html,
        "--json",
        json,
    ];
    let run = || {
        let output = simulate(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        let written = files.each_ref().map(|file| std::fs::read(file).unwrap());
        (output.stdout, written)
    };
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    let report: Value = serde_json::from_slice(&first.1[1]).unwrap();
    let text = report.to_string();
    assert!(
        text.contains("prefix_hash") && text.contains("power_of_two"),
        "{text}"
    );
    assert!(
        text.contains("--policies power_of_two,prefix_hash"),
        "{text}"
    );
}

#[test]
fn a_policy_may_come_with_settings_and_replicas_with_weights() {
    let output = simulate(&[
        "--workload",
        "uniform",
        "--requests",
        "200",
        "--seeds",
        "1",
        "--fleet",
        "2xl4,2xl4/2.5@1",
        "--gateways",
        "2",
        "--baseline",
        "random",
        "--policies",
        "random",
        "--policies",
        r#"{"name": "prefix_hash", "bound": "requests"}"#,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("2xl4 and 2xl4/2.5@1"), "{table}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_nothing_is_written() {
    let trace = scratch("malformed.jsonl");
    let good = r#"{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]}"#;
    let bad = r#"{"timestamp": 5, "input_length": -3, "output_length": 2, "hash_ids": [1]}"#;
    std::fs::write(&trace, format!("{good}\n{bad}\n")).unwrap();
    let trace = trace.to_str().unwrap();
    let html = scratch("never.html");
    let cases: [(&[&str], &str); 7] = [
        (
            &["--trace", trace],
            "malformed.jsonl:2: input_length: expected",
        ),
        (&["--trace", "/nowhere/t.jsonl"], "/nowhere/t.jsonl"),
        (
            &["--policies", "best"],
            "no policy `best`; there are round_robin",
        ),
        (
            &[
                "--policies",
                r#"{"name": "prefix_hash", "load_factor": 0.5}"#,
            ],
            "policy.load_factor",
        ),
        (&["--fleet", "0xl4"], "`0` is no number of replicas"),
        (&["--fleet", "2xtpu"], "no profile `tpu`; there are l4"),
        (&["--workers", "0"], "0 workers: 1 to 1,000 are possible"),
    ];
    for (arguments, said) in cases {
        let mut all = vec!["--requests", "50", "--html", html.to_str().unwrap()];
        all.extend(arguments);
        let output = simulate(&all);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            stderr(&output).contains(said),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(!html.exists(), "{arguments:?}");
    }
}
