//! The page `docs/three-replicas.md` against what it says is computed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../examples/simulate/scenario.rs"]
mod scenario;

/// The page with freshly computed tables.
fn page(old: &str) -> String {
    let tables = scenario::tables().unwrap();
    // Situation and policies, and how it goes on.
    let (first, second) = tables.rsplit_once("\n\n").unwrap();
    let mut computed = [first, second].into_iter();
    let mut page = String::new();
    let mut skipping = false;
    for line in old.lines() {
        skipping &= line != "<!-- end -->";
        if !skipping {
            page.push_str(line);
            page.push('\n');
        }
        if line == "<!-- computed -->" {
            let tables = computed.next().unwrap().trim();
            page.push_str(&format!("\n{tables}\n\n"));
            skipping = true;
        }
    }
    assert_eq!(computed.next(), None);
    page
}

#[test]
fn the_page_shows_what_is_computed() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/three-replicas.md");
    let old = std::fs::read_to_string(file).unwrap();
    let new = page(&old);
    if std::env::var_os("WARMROUTE_BLESS").is_some() {
        std::fs::write(file, &new).unwrap();
        return;
    }
    assert_eq!(old, new, "WARMROUTE_BLESS=1 writes the page anew");
}

/// What the page's text says about the numbers in its tables.
#[test]
fn the_text_of_the_page_is_true() {
    let tables = scenario::tables().unwrap();
    let rows: Vec<Vec<&str>> = tables
        .lines()
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap().clone();
    let ms = |cell: &str| -> f64 { cell.trim_end_matches(" ms").parse().unwrap() };
    let (a, b, c) = (ms(row("A")[4]), ms(row("B")[4]), ms(row("C")[4]));
    assert!(a * 2.0 < c && c * 10.0 < b, "{a} {b} {c}");
    for (policy, place) in [
        ("least_request", "C"),
        ("least_outstanding_tokens", "C"),
        ("prefix_hash, no bound", "A"),
        ("prefix_hash, bound in tokens", "A"),
        ("cache_aware", "A"),
        ("expected_latency", "A"),
    ] {
        assert_eq!(row(policy)[1], place, "{policy}");
    }
    for policy in [
        "prefix_hash, bound in requests",
        "round_robin",
        "consistent_hash",
    ] {
        assert!(row(policy)[1].contains("B "), "{policy}");
        assert!(ms(row(policy)[3]) > 4.0 * c, "{policy}");
    }
    assert!(!row("power_of_two, by tokens")[1].contains('B'));
    let by_requests = row("power_of_two, by requests")[1];
    assert!(by_requests.contains('B') && !by_requests.contains('A'));
    let varied = |short: &str| rows.iter().rfind(|row| row[0] == short).unwrap().clone();
    // Right up to about twenty; both bounds leave before.
    assert!(ms(varied("18")[1]) < c && c < ms(varied("24")[1]));
    assert_eq!((varied("2")[3], varied("6")[4]), ("A", "A"));
    assert!(!varied("3")[3].contains('A') && !varied("18")[4].contains('A'));
    assert!(varied("48")[4].contains("B "));
    let by_time = ["0", "2", "3", "6", "12", "18", "24", "48"].map(|short| varied(short)[5]);
    assert_eq!(by_time, ["A", "A", "A", "A", "C", "C", "C", "C"]);
}
