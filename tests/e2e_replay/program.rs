//! The program itself: reports, exit codes, errors.

use crate::example::Example;
use crate::support::mock::{Mock, MockOptions};
use crate::support::root;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use warmroute::sim::replica::Profile;

/// Long enough for a busy machine; it is only spent if something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

static REPLAY: Example = Example::new("replay");

/// A file of this test alone.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The program with a small workload on fast replicas; the JSON goes to `json`.
fn replay(json: &Path, arguments: &[&str]) -> Command {
    // What an earlier run left must not count.
    let _ = fs::remove_file(json);
    let mut command = REPLAY.command();
    command
        .args(["--seeds", "1", "--profile", "fast", "--replicas", "2"])
        .args(["--requests", "40", "--rate", "40", "--speed", "4", "--json"])
        .arg(json)
        .args(arguments)
        .current_dir(root());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The runs of a report.
fn runs(json: &Path, output: &Output) -> Vec<Value> {
    let text = fs::read_to_string(json).unwrap_or_else(|e| panic!("{e}: {}", stderr(output)));
    let report: Value = serde_json::from_str(&text).unwrap();
    report["runs"].as_array().unwrap().clone()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// All of `routers` answer all 40 requests, without an error.
fn compare(name: &str, routers: &str) -> Vec<Value> {
    let json = file(name);
    let output = replay(&json, &["--routers", routers, "--figures"])
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let runs = runs(&json, &output);
    assert_eq!(runs.len(), routers.split(',').count());
    for run in &runs {
        assert_eq!(run["requests"], 40, "{run}");
        assert_eq!(run["errors"], 0, "{run}");
        assert_eq!(run["failed"], Value::Null, "{run}");
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("FIGURE compare_harness_errors 0\n"),
        "{printed}"
    );
    runs
}

fn notes(run: &Value) -> String {
    run["notes"].to_string()
}

#[test]
fn envoy_and_the_filter_are_compared() {
    let runs = compare("both.json", "envoy/round_robin,warmroute/prefix_hash");
    assert_eq!(runs[1]["router"], "warmroute");
    assert_eq!(runs[1]["policy"], "prefix_hash");
    for run in &runs {
        assert!(notes(run).contains("The sender was late by"), "{run}");
    }
}

#[test]
fn vllm_router_is_compared_and_its_extra_calls_are_counted() {
    let runs = compare("vllm.json", "vllm-router/cache_aware");
    // It asks each of the two engines, before each request.
    let calls = "/v1/chat/completions/render 80";
    assert!(notes(&runs[0]).contains(calls), "{}", notes(&runs[0]));
}

#[test]
fn sglang_router_is_compared_and_its_random_choice_is_named() {
    let runs = compare(
        "sglang.json",
        "sglang-router/cache_aware,sglang-router/power_of_two",
    );
    assert!(
        notes(&runs[1]).contains("picks at random"),
        "{}",
        notes(&runs[1])
    );
}

#[test]
fn a_router_that_does_not_start_is_reported_and_the_others_go_on() {
    let json = file("broken.json");
    let script = file("no-router");
    fs::write(
        &script,
        "#!/bin/sh\necho 'first line'\necho 'no licence' >&2\nexit 3\n",
    )
    .unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let output = replay(
        &json,
        &["--routers", "vllm-router/random,envoy/round_robin"],
    )
    .env("VLLM_ROUTER_PATH", &script)
    .output()
    .unwrap();
    assert_eq!(code(&output), Some(1));
    let runs = runs(&json, &output);
    let why = runs[0]["failed"].as_str().unwrap();
    assert!(why.starts_with("it ended at its start"), "{why}");
    assert!(why.ends_with(": no licence"), "{why}");
    assert_eq!(runs[1]["failed"], Value::Null);
    assert_eq!(runs[1]["requests"], 40);
    assert!(
        stderr(&output).contains("1 runs have no result, the first: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_router_that_is_not_installed_is_reported_with_what_to_run() {
    let json = file("missing.json");
    let output = replay(&json, &["--routers", "sglang-router/random"])
        .env("SGLANG_ROUTER_PATH", "/nonexistent/smg")
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(1));
    let runs = runs(&json, &output);
    assert_eq!(
        runs[0]["failed"],
        "there is no sglang-router 0.3.2 at /nonexistent/smg: run `make peers`"
    );
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let json = file("port.json");
    for router in ["envoy/round_robin", "vllm-router/random"] {
        let output = replay(&json, &["--routers", router, "--port", &port])
            .output()
            .unwrap();
        assert_eq!(code(&output), Some(1));
        let failed = runs(&json, &output)[0]["failed"].to_string();
        let why = format!("port {port} cannot be listened at: Address already in use");
        assert!(failed.contains(&why), "{failed}");
    }
}

#[test]
fn a_malformed_trace_is_refused_with_file_and_line_before_anything_runs() {
    let trace = file("bad.jsonl");
    let good = r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}"#;
    fs::write(&trace, format!("{good}\n{{\"timestamp\": 5}}\n")).unwrap();
    let json = file("trace.json");
    let _ = fs::remove_file(&json);
    let output = REPLAY
        .command()
        .args(["--routers", "envoy/round_robin", "--trace"])
        .arg(&trace)
        .arg("--json")
        .arg(&json)
        .current_dir(root())
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(1));
    let said = stderr(&output);
    assert!(said.contains("bad.jsonl:2: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!json.exists());
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let json = file("options.json");
    for (arguments, why) in [
        (
            vec!["--routers", "envoy/prefix_hash"],
            "there is no router \"envoy/prefix_hash\"",
        ),
        (
            vec!["--routers", "envoy", "--baseline", "warmroute/random"],
            "--baseline warmroute/random is not among",
        ),
        (
            vec!["--url", "http://127.0.0.1:1"],
            "--speed: real engines cannot be made faster",
        ),
        (
            vec!["--url", "127.0.0.1:1", "--speed", "1"],
            "expected http://HOST:PORT",
        ),
    ] {
        let mut command = replay(&json, &[]);
        if arguments.contains(&"--speed") {
            command = REPLAY.command();
        }
        let output = command.args(&arguments).output().unwrap();
        assert_ne!(code(&output), Some(0));
        assert!(
            stderr(&output).contains(why),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

/// A replica that takes a second for each request.
async fn slow() -> Mock {
    let profile = Profile {
        step_base_us: 250_000,
        ..Profile::fast()
    };
    let options = MockOptions {
        profile,
        ..MockOptions::default()
    };
    Mock::start(options).await.unwrap()
}

/// The program, as it sends one request every 100 ms to `to`.
fn start(json: &Path, to: &[&str]) -> Child {
    let _ = fs::remove_file(json);
    REPLAY
        .command()
        .args(["--workload", "uniform", "--requests", "600", "--rate", "10"])
        .args([
            "--prompt-tokens",
            "20",
            "--output-tokens",
            "4",
            "--seeds",
            "1",
            "--json",
        ])
        .arg(json)
        .args(to)
        .current_dir(root())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn until_requests(mock: &Mock, least: u64) {
    let begun = Instant::now();
    while mock.totals().requests < least {
        assert!(begun.elapsed() < PATIENCE, "no request came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill")
        .args([name, &pid.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// Waits without holding up the replica, which is on this runtime.
async fn finished(child: Child) -> Output {
    tokio::task::spawn_blocking(|| child.wait_with_output().unwrap())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_comparison_reports_what_it_saw() {
    for (name, exit) in [("-INT", 130), ("-TERM", 143)] {
        let mock = slow().await;
        let json = file(&format!("interrupted{name}.json"));
        let child = start(&json, &["--url", &format!("http://{}", mock.addr())]);
        until_requests(&mock, 20).await;
        signal(name, child.id());
        let begun = Instant::now();
        let output = finished(child).await;
        assert_eq!(code(&output), Some(exit), "{}", stderr(&output));
        assert!(begun.elapsed() < Duration::from_secs(20));
        let runs = runs(&json, &output);
        let count = |key: &str| runs[0][key].as_u64().unwrap();
        assert!(count("requests") >= 20, "{}", runs[0]);
        assert!(count("unsent") > 0, "{}", runs[0]);
        assert_eq!(count("requests") + count("unsent"), 600);
        // Those of the first second are answered.
        assert!(count("errors") < count("requests"), "{}", runs[0]);
        let arrived = mock.totals().requests;
        assert_eq!(
            count("requests"),
            arrived,
            "nothing was sent that is not in the report"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_dies_costs_its_requests_and_is_named() {
    let mock = slow().await;
    let json = file("dead.json");
    let pid = file("dead.pid");
    let script = file("mortal-envoy");
    let envoy = Command::new(root().join("envoy/find-envoy.sh"))
        .output()
        .unwrap();
    let envoy = String::from_utf8(envoy.stdout).unwrap();
    let text = format!(
        "#!/bin/sh\necho $$ >'{}'\nexec {} \"$@\"\n",
        pid.display(),
        envoy.trim()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let _ = fs::remove_file(&json);
    let endpoint = mock.addr().to_string();
    let child = REPLAY
        .command()
        .args(["--workload", "uniform", "--requests", "60", "--rate", "10"])
        .args([
            "--prompt-tokens",
            "20",
            "--output-tokens",
            "4",
            "--seeds",
            "1",
        ])
        .args([
            "--routers",
            "envoy/round_robin",
            "--endpoints",
            &endpoint,
            "--json",
        ])
        .arg(&json)
        .current_dir(root())
        .env("ENVOY_PATH", &script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_requests(&mock, 20).await;
    let envoy = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    signal("-KILL", envoy);
    let output = finished(child).await;
    let runs = runs(&json, &output);
    assert_eq!(runs[0]["requests"], 60);
    assert!(runs[0]["errors"].as_u64().unwrap() >= 30, "{}", runs[0]);
    assert!(
        notes(&runs[0]).contains("The router ended during the run: "),
        "{}",
        notes(&runs[0])
    );
}
