//! The report in a real browser: on a desktop, on a phone, in the dark and in print.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../examples/proving/report/mod.rs"]
#[expect(dead_code, reason = "the table goes elsewhere than to stdout here")]
mod report;
#[path = "browser/study.rs"]
mod study;

use report::ReportArgs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
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

/// What is done to a sound page, and what has to be said of it.
const DAMAGES: [(&str, &str, &str); 10] = [
    (
        "</main>",
        "<script>console.error('ran')</script></main>",
        "console: ran",
    ),
    (
        "</main>",
        "<img src=\"http://127.0.0.1:9/x.png\" alt=\"\"></main>",
        "request: http://127.0.0.1:9/x.png",
    ),
    ("<h1>", "<h1 style=\"width: 2000px\">", "on a screen of 360"),
    ("--s0: #0068b5", "--s0: #ffffff", "looks empty"),
    (
        "--soft: #545c6b",
        "--soft: #b0b5c0",
        "letters of p have a contrast",
    ),
    (
        "--s4: #8a6400",
        "--s4: #fff4cc",
        "lines of --s4 have a contrast",
    ),
    ("<th scope=\"row\">", "<th>", "th without a scope"),
    (
        "position: sticky; left: 0",
        "position: static",
        "when its table is scrolled",
    ),
    (
        "<td data-key=\"ttft_mean_ms\"",
        "<td data-key=\"ttft_p50_ms\"",
        "ttft_mean_ms",
    ),
    (
        "content-visibility: visible",
        "color: inherit",
        "is not printed",
    ),
];

#[test]
fn a_damaged_page_is_refused() {
    let folder = write("damaged", &sound(&SMALL));
    let path = folder.join("report.html");
    let page = std::fs::read_to_string(&path).unwrap();
    let damage = |page: String, (from, to, _): &(&str, &str, &str)| {
        assert!(page.contains(from), "nothing to damage: {from}");
        page.replace(from, to)
    };
    std::fs::write(&path, DAMAGES.iter().fold(page, damage)).unwrap();
    let output = look_at(&folder);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for (_, to, complaint) in DAMAGES {
        assert!(wrong.contains(complaint), "accepted: {to}\n{wrong}");
    }
}

/// Writes the report, opens it in the browser, and gives the folder with all that came of it.
fn check(name: &str, study: &Study) -> PathBuf {
    let folder = write(name, study);
    let output = look_at(&folder);
    let seen = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    println!("{name}:\n{seen}");
    assert!(output.status.success(), "{}:\n{wrong}", folder.display());
    for view in ["desktop:", "dark:", "phone:", "print:"] {
        assert!(seen.contains(view), "not looked at: {view}");
    }
    folder
}

fn write(name: &str, study: &Study) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("report")
        .join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let args = ReportArgs {
        html: Some(folder.join("report.html")),
        json: Some(folder.join("report.json")),
    };
    let mut table = Vec::new();
    args.write_to(study, &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert!(!table.contains('\u{1b}'), "a terminal would obey:\n{table}");
    let bytes = std::fs::metadata(folder.join("report.html")).unwrap().len();
    assert!(bytes < MAX_PAGE_BYTES, "the page has {bytes} bytes");
    folder
}

/// One browser at a time: each takes all cores.
fn look_at(folder: &Path) -> Output {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/check.mjs");
    let mut node = Command::new("node");
    node.arg(script);
    node.args([
        &folder.join("report.html"),
        &folder.join("report.json"),
        &folder.to_owned(),
    ]);
    node.output().expect("node is needed")
}
