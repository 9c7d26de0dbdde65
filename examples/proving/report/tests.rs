//! What the report says of small studies whose figures can be told by hand.

use super::compare::Comparison;
use super::html::escape;
use super::losses::losses;
use super::metric::number;
use super::series::{mean_ttft_ms, outstanding_tokens};
use super::summary::Summary;
use super::{ReportArgs, html, json, table};
use serde_json::Value;
use warmroute::sim::record::{Objective, RouterCost, Run, Served, Study};

const OBJECTIVE: Objective = Objective {
    ttft_us: 100_000,
    tpot_us: 10_000,
};

/// Due at `due_ms`, first token after `ttft_ms`, ten more tokens at 10 ms each.
fn served(endpoint: u32, due_ms: u64, ttft_ms: u64) -> Served {
    let first_us = (due_ms + ttft_ms) * 1_000;
    Served {
        endpoint: Some(endpoint),
        due_us: due_ms * 1_000,
        first_us: Some(first_us),
        end_us: Some(first_us + 100_000),
        prompt_tokens: 100,
        cached_tokens: 25,
        output_tokens: 11,
        ..Served::default()
    }
}

fn run(policy: &str, seed: u64, served: Vec<Served>) -> Run {
    Run {
        router: "r".to_owned(),
        policy: policy.to_owned(),
        seed,
        endpoints: vec!["a".to_owned(), "b".to_owned()],
        served,
        ..Run::default()
    }
}

fn study(runs: Vec<Run>) -> Study {
    Study {
        title: "t".to_owned(),
        command: "c".to_owned(),
        workload: "w".to_owned(),
        fleet: "f".to_owned(),
        baseline: "r/base".to_owned(),
        objective: OBJECTIVE,
        notes: Vec::new(),
        runs,
    }
}

fn close(one: Option<f64>, other: f64) -> bool {
    one.is_some_and(|one| (one - other).abs() < 1e-9)
}

#[test]
fn a_summary_is_what_one_counts_by_hand() {
    let failed = Served {
        error: Some("503".to_owned()),
        ..served(1, 0, 5)
    };
    let lost = Served {
        endpoint: None,
        first_us: None,
        ..served(0, 0, 0)
    };
    let mut run = run(
        "p",
        1,
        vec![
            served(0, 0, 50),
            served(0, 1_000, 100),
            served(1, 1_850, 150),
            failed,
            lost,
        ],
    );
    run.unsent = 7;
    run.cost = Some(RouterCost {
        cpu_us: 20_000,
        peak_rss_bytes: 1 << 20,
    });
    let summary = Summary::of(&run, OBJECTIVE).unwrap();
    assert_eq!(
        (summary.requests, summary.errors, summary.unsent),
        (5, 1, 7)
    );
    assert_eq!((summary.untimed, summary.unplaced), (1, 1));
    // From 0 to 1,850 + 150 + 100 ms.
    assert!(close(summary.duration_s, 2.1));
    assert!(
        close(summary.goodput_per_s, 2.0 / 2.1),
        "the third is too late: {summary:?}"
    );
    assert!(close(summary.requests_per_s, 4.0 / 2.1));
    assert!(close(summary.tokens_per_s, 4.0 * 111.0 / 2.1));
    assert!(close(summary.output_tokens_per_s, 4.0 * 11.0 / 2.1));
    let ttft = summary.ttft.unwrap();
    assert_eq!(
        (ttft.mean_ms, ttft.p50_ms, ttft.p90_ms, ttft.p99_ms),
        (100.0, 100.0, 150.0, 150.0)
    );
    let tpot = summary.tpot.unwrap();
    assert_eq!((tpot.mean_ms, tpot.p99_ms), (10.0, 10.0));
    assert!(close(summary.hit_rate, 0.25));
    assert!(close(summary.load_skew, 4.0 / 3.0));
    assert!(close(summary.router_cpu_s_per_1000, 4.0));
}

#[test]
fn ratios_are_paired_by_seed() {
    let base = [100, 200].map(|ttft| vec![served(0, 0, ttft)]);
    let mine = [50, 400].map(|ttft| vec![served(0, 0, ttft)]);
    let [base_1, base_2] = base;
    let [mine_1, mine_2] = mine;
    // In another order than the baseline's, and with a seed that the baseline has not.
    let study = study(vec![
        run("base", 1, base_1),
        run("base", 2, base_2),
        run("mine", 2, mine_2),
        run("mine", 1, mine_1),
        run("mine", 3, vec![served(0, 0, 9)]),
    ]);
    let comparison = Comparison::of(&study);
    let figure = comparison.rows[1].figure("ttft_mean_ms").unwrap();
    assert!((figure.value.mean - 153.0).abs() < 1e-9);
    let ratio = figure.ratio.unwrap();
    assert_eq!((ratio.min, ratio.max, ratio.seeds), (0.5, 2.0, 2));
    assert!(
        (ratio.mean - 1.0).abs() < 1e-9,
        "half and double even out: {ratio:?}"
    );
    let problem = comparison.baseline_problem.unwrap();
    assert!(problem.contains("no result for seed 3"), "{problem}");
}

#[test]
fn a_row_with_failures_is_never_the_best() {
    let mut fast = vec![served(0, 0, 1), served(0, 10, 1)];
    fast[1].error = Some("reset".to_owned());
    let study = study(vec![
        run("base", 1, vec![served(0, 0, 90), served(0, 10, 90)]),
        run("slow", 1, vec![served(0, 0, 95), served(0, 10, 95)]),
        run("failing", 1, fast),
    ]);
    let comparison = Comparison::of(&study);
    let best: Vec<bool> = comparison
        .rows
        .iter()
        .map(|row| row.figure("ttft_mean_ms").unwrap().best)
        .collect();
    assert_eq!(best, [true, false, false]);
    // All have the same, so nobody is better.
    assert!(
        comparison
            .rows
            .iter()
            .all(|row| !row.figure("hit_rate").unwrap().best)
    );
}

#[test]
fn nothing_is_lost_without_a_line() {
    let mut ok = run("base", 1, vec![served(0, 0, 1); 3]);
    ok.served[0].error = Some("502\u{1b}[2J".to_owned());
    ok.served[1].error = Some("502\u{1b}[2J".to_owned());
    ok.unsent = 4;
    ok.notes = vec!["slow disk".to_owned()];
    let failed = Run {
        failed: Some("no port\nleft".to_owned()),
        unsent: 9,
        ..run("x", 2, Vec::new())
    };
    let study = study(vec![ok, failed, run("y", 1, Vec::new())]);
    let lines = losses(&Comparison::of(&study));
    let expected = [
        "The baseline r/base yielded no result for seed 2, so the ratios are without it.",
        "r/base: no run with seed 2",
        "r/base: 2 of 3 requests failed: 2× “502 [2J”",
        "r/base: 4 requests never sent",
        "r/x, seed 2: the run failed: no port left (0 requests sent, 9 not; none counts)",
        "r/x: no run with seed 1",
        "r/y, seed 1: no request was sent",
        "r/y: no run with seed 2",
    ];
    assert_eq!(lines, expected);
    let (text, page) = (table(&study), html(&study).unwrap());
    let document: Value = serde_json::from_str(&json(&study)).unwrap();
    for line in expected {
        assert!(text.contains(line), "{text}");
        assert!(page.contains(&escape(line)), "{line}");
        assert!(
            document["losses"]
                .as_array()
                .unwrap()
                .contains(&Value::from(line))
        );
    }
    assert!(text.contains("note: r/base: slow disk"));
    assert!(page.contains("<li>r/base: slow disk</li>"));
    assert_eq!(document["runs"][0]["notes"][0], "slow disk");
    assert_eq!(document["runs"][0]["error_texts"][0]["count"], 2);
    assert_eq!(document["runs"][1]["failed"], "no port\nleft");
}

#[test]
fn studies_without_any_result_are_shown() {
    let one_token = Served {
        output_tokens: 1,
        end_us: Some(1_000),
        ..served(0, 0, 1)
    };
    let unplaced = Served {
        endpoint: Some(9),
        ..served(0, 0, 1)
    };
    let at_once = Served {
        output_tokens: 0,
        prompt_tokens: 0,
        first_us: Some(0),
        end_us: Some(0),
        ..served(0, 0, 0)
    };
    for runs in [
        Vec::new(),
        vec![run("base", 1, Vec::new())],
        vec![Run {
            failed: Some(String::new()),
            ..Run::default()
        }],
        vec![run("base", 1, vec![one_token])],
        vec![run("base", 1, vec![unplaced])],
        vec![run("base", 1, vec![at_once])],
        vec![Run {
            endpoints: Vec::new(),
            ..run("base", 1, vec![Served::default()])
        }],
    ] {
        let study = study(runs);
        for text in [table(&study), json(&study), html(&study).unwrap()] {
            for bad in ["NaN", ">inf", " inf ", "\"inf", ">-inf", "\"-inf"] {
                assert!(!text.contains(bad), "{bad} in {text}");
            }
        }
    }
    assert!(table(&study(Vec::new())).contains("r/base is not among the runs"));
    assert!(table(&study(vec![run("base", 1, Vec::new())])).contains("no data"));
}

#[test]
fn series_follow_the_requests() {
    // 75 tokens outstanding on `a` from 0 to 1 s, twice that on `b` from 1 to 1.5 s; ends at 2 s.
    let b = || served(1, 1_000, 500);
    let last = Served {
        end_us: Some(2_000_000),
        ..served(0, 0, 1_000)
    };
    let run = run("p", 1, vec![last, b(), b()]);
    let tokens = outstanding_tokens(&run, 4);
    assert_eq!(
        tokens[0],
        [(0.25, 75.0), (0.75, 75.0), (1.25, 0.0), (1.75, 0.0)]
    );
    assert_eq!(
        tokens[1],
        [(0.25, 0.0), (0.75, 0.0), (1.25, 150.0), (1.75, 0.0)]
    );
    let ttft = mean_ttft_ms(&run, 4);
    assert_eq!(ttft, [vec![(0.25, 1_000.0)], vec![(1.25, 500.0)]]);
}

#[test]
fn numbers_have_sensible_digits() {
    let cases = [
        (0.0, "0"),
        (0.001_234, "0.0012"),
        (0.1234, "0.123"),
        (1.0, "1.00"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (99.96, "100"),
        (1_234.5, "1,234"),
        (1_234_567.0, "1,234,567"),
        (0.000_01, "1.0e-5"),
    ];
    for (value, text) in cases {
        assert_eq!(number(value), text, "{value}");
    }
}

#[test]
fn markup_becomes_text() {
    assert_eq!(
        escape("<a href='x' id=\"y\">&\u{1b}"),
        "&lt;a href=&#39;x&#39; id=&quot;y&quot;&gt;&amp; "
    );
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let folder = std::env::temp_dir().join(format!("warmroute-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let study = study(vec![run("base", 1, vec![served(0, 0, 1)])]);
    let write = |html: &str| {
        let args = ReportArgs {
            html: Some(folder.join(html)),
            json: Some(folder.join("j")),
        };
        args.write_to(&study, &mut Vec::new())
    };
    assert_eq!(write("h"), Ok(()));
    assert_eq!(
        std::fs::read_to_string(folder.join("h")).unwrap(),
        html(&study).unwrap()
    );
    let error = write("missing/h").unwrap_err();
    assert!(
        error.starts_with("cannot write ") && error.contains("missing/h: "),
        "{error}"
    );
    std::fs::create_dir(folder.join("taken")).unwrap();
    assert!(write("taken").unwrap_err().contains("taken: "));
    let mut left: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["h", "j", "taken"], "nothing else is left behind");
    std::fs::remove_dir_all(&folder).unwrap();
}
