//! The report in a real browser: on a desktop, on a phone, in the dark and in print.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../examples/proving/report/mod.rs"]
mod report;
#[path = "browser/study.rs"]
mod study;

use report::ReportArgs;
use std::path::{Path, PathBuf};
use std::process::Command;
use study::{HOSTILE, Size, sound, troubled};
use warmroute::sim::record::Study;

/// A page that loads at once on a phone, too.
const MAX_PAGE_BYTES: u64 = 3_000_000;

const SMALL: Size = Size {
    policies: 3,
    seeds: 3,
    requests: 1_000,
    endpoints: 4,
};

#[test]
fn a_few_policies_are_shown_well() {
    check("few", &sound(&SMALL));
}

#[test]
fn many_policies_with_failures_and_markup_are_shown_well() {
    let size = Size {
        policies: 20,
        seeds: 3,
        requests: 5_000,
        endpoints: 8,
    };
    let pages = check("many", &troubled(&size));
    let html = std::fs::read_to_string(pages.join("report.html")).unwrap();
    assert!(!html.contains(HOSTILE), "markup from outside");
}

#[test]
fn a_failed_baseline_and_a_large_fleet_are_shown_well() {
    let size = Size {
        endpoints: 24,
        ..SMALL
    };
    let mut study = sound(&size);
    for run in study.runs.iter_mut().filter(|run| run.router == "envoy") {
        run.served.clear();
        run.failed = Some("exit status 1".to_owned());
    }
    for run in &mut study.runs {
        run.cost = None;
        run.extra_calls = None;
    }
    check("baseline", &study);
}

/// Writes the report, opens it in the browser, and gives the folder with all that came of it.
fn check(name: &str, study: &Study) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let (html, json) = (folder.join("report.html"), folder.join("report.json"));
    let args = ReportArgs {
        html: Some(html.clone()),
        json: Some(json.clone()),
    };
    args.write(study).unwrap();
    let bytes = std::fs::metadata(&html).unwrap().len();
    assert!(bytes < MAX_PAGE_BYTES, "the page has {bytes} bytes");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/check.mjs");
    let output = Command::new("node")
        .args([&script, &html, &json, &folder])
        .output()
        .expect("node is needed");
    let (seen, wrong) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{name}: {bytes} bytes\n{seen}");
    assert!(output.status.success(), "{}:\n{wrong}", html.display());
    for view in ["desktop:", "dark:", "phone:", "print:"] {
        assert!(seen.contains(view), "not looked at: {view}");
    }
    folder
}
