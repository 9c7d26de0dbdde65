//! `cargo run --example chaos`: what it refuses. What it measures needs an Envoy, and is `make chaos`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/example.rs"]
mod example;

use example::{Example, Outcome};

static CHAOS: Example = Example::new("chaos");

#[test]
fn what_cannot_be_run_is_refused() {
    let cases: [(&[&str], &str); 4] = [
        (&["--only", "kill8"], "invalid value 'kill8' for '--only"),
        (&["--workers", "0"], "invalid value '0' for '--workers"),
        (
            &["soak", "--minutes", "0"],
            "invalid value '0' for '--minutes",
        ),
        (&["soak", "--only", "kill9"], "unexpected argument '--only'"),
    ];
    for (arguments, why) in cases {
        let outcome = Outcome::from(CHAOS.command().args(arguments).output().unwrap());
        assert_eq!(outcome.code, 2, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(why), "{arguments:?}: {outcome:?}");
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn what_could_not_be_measured_fails_and_is_in_the_table() {
    // No Envoy is there, and no module.
    let mut run = CHAOS.command();
    run.args(["--only", "all429,adapters"])
        .env("WARMROUTE_WASM", "/nonexistent/warmroute.wasm");
    let outcome = Outcome::from(run.output().unwrap());
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let rows = outcome.stdout.matches("could not be measured");
    assert_eq!(rows.count(), 2, "{outcome:?}");
    assert!(!outcome.stdout.contains("FIGURE"), "{outcome:?}");
    let last = outcome.stderr.lines().last();
    assert_eq!(last, Some("chaos: does not hold: all429, adapters"));
}
