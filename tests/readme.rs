//! The README's tables against the code, in both directions, and its links against the files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use warmroute::config::Config;
use warmroute::policy::Reason;
use warmroute::session::reason_name;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// The rows of the table behind the comment `<!-- NAME: … -->`, cells trimmed.
fn table(name: &str) -> Vec<Vec<String>> {
    let readme = read("README.md");
    let (_, behind) = readme.split_once(&format!("<!-- {name}:")).unwrap();
    let rows: Vec<Vec<String>> = behind
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .collect();
    assert!(rows.len() > 5, "table {name}: {} rows", rows.len());
    rows
}

/// The texts in backticks.
fn code(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('`').collect();
    parts
        .iter()
        .skip(1)
        .step_by(2)
        .map(|part| (*part).to_owned())
        .collect()
}

fn plain(cell: &str) -> String {
    match code(cell).as_slice() {
        [only] => only.clone(),
        _ => panic!("`{cell}` is not one text in backticks"),
    }
}

fn error(config: &Value) -> String {
    Config::parse(config.to_string().as_bytes())
        .unwrap_err()
        .to_string()
}

/// What a parser's error says it had expected.
fn expected(error: &str) -> BTreeSet<String> {
    let (_, list) = error
        .split_once(", expected ")
        .unwrap_or_else(|| panic!("{error}"));
    code(list).into_iter().collect()
}

fn endpoint() -> Value {
    json!({"address": "10.0.0.1:8000"})
}

/// A valid configuration in which every object of the table is present.
fn base(policy: &Value) -> Value {
    json!({
        "policy": policy, "endpoints": [endpoint()],
        "prefix": {}, "index": {}, "tokens": {}, "hold": {}, "scrape": {"cluster": "c"}, "health": {}, "explain": {},
        "responses": {},
        "saturation": {"priority": {"header": "x", "shares": {"batch": 0.5}}},
    })
}

fn base_of_pools() -> Value {
    json!({"pools": [{"name": "a", "policy": {"name": "random"}, "endpoints": [endpoint()]}]})
}

/// The configuration in which `key` may stand.
fn base_for(key: &str) -> Value {
    match key {
        key if key == "clusters" || key.starts_with("discovery") => {
            let mut base = base(&json!({"name": "prefix_hash"}));
            base["clusters"] = json!(["x"]);
            base["discovery"] = json!({"cluster": "c", "verdicts": ["v"]});
            base
        }
        "policy.load" => base(&json!({"name": "power_of_two"})),
        "policy.preset" | "policy.match_threshold" => base(&json!({"name": "cache_aware"})),
        key if key.starts_with("policy.imbalance") => base(&json!({"name": "cache_aware"})),
        key if key.starts_with("policy.keys") => {
            base(&json!({"name": "consistent_hash", "keys": [{"header": "x"}]}))
        }
        key if key.starts_with("pools") => base_of_pools(),
        // Where the model decides, another default is in force.
        key if key.starts_with("models") => {
            with(base(&json!({"name": "prefix_hash"})), "models", json!({}))
        }
        _ => base(&json!({"name": "prefix_hash"})),
    }
}

/// JSON pointer of the object that holds `key`, and the last part of `key`.
fn split(key: &str) -> (String, &str) {
    let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
    let pointer = parent.replace("[]", "/0").replace('.', "/");
    let slash = if pointer.is_empty() { "" } else { "/" };
    (format!("{slash}{pointer}"), name)
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    let (pointer, name) = split(key);
    let object = config
        .pointer_mut(&pointer)
        .unwrap_or_else(|| panic!("{key}"));
    object.as_object_mut().unwrap().insert(name.into(), value);
    config
}

/// A configuration without its fingerprint.
fn meaning(config: &Value) -> Result<String, String> {
    let mut parsed = Config::parse(config.to_string().as_bytes()).map_err(|e| e.to_string())?;
    parsed.fingerprint = 0;
    parsed.health.settings.configuration = 0;
    Ok(format!("{parsed:?}"))
}

/// Each row: key, what is allowed, default.
fn keys() -> Vec<(String, String, String)> {
    table("configuration")
        .into_iter()
        .map(|row| (plain(&row[0]), row[1].clone(), row[2].clone()))
        .collect()
}

#[test]
fn the_table_of_keys_is_what_the_parser_knows() {
    let levels = [
        "",
        "policy",
        "policy.keys[]",
        "endpoints[]",
        "pools[]",
        "prefix",
        "index",
        "tokens",
        "hold",
        "scrape",
        "discovery",
        "models",
        "saturation",
        "saturation.priority",
        "health",
        "explain",
        "responses",
    ];
    let mut known = BTreeSet::new();
    for level in levels {
        let unknown = if level.is_empty() {
            "?".into()
        } else {
            format!("{level}.?")
        };
        let fields = expected(&error(&with(base_for(level), &unknown, json!(1))));
        let dot = if level.is_empty() { "" } else { "." };
        known.extend(fields.iter().map(|field| format!("{level}{dot}{field}")));
    }
    let named: Vec<String> = keys().into_iter().map(|(key, ..)| key).collect();
    let set: BTreeSet<String> = named.iter().cloned().collect();
    assert_eq!(set.len(), named.len(), "a key is named twice");
    assert_eq!(set, known);
    // No level was forgotten: these share their types with levels that are checked.
    for (key, same) in [
        ("pools[].policy", "policy"),
        ("pools[].endpoints[]", "endpoints[]"),
    ] {
        let one = expected(&error(&with(
            base_of_pools(),
            &format!("{key}.?"),
            json!(1),
        )));
        let other = expected(&error(&with(
            base_for(same),
            &format!("{same}.?"),
            json!(1),
        )));
        assert_eq!(one, other, "{key}");
    }
}

#[test]
fn the_defaults_are_the_parsers() {
    let mut checked = 0;
    for (key, _, default) in keys() {
        if default.starts_with("required") || default == "none" || default.starts_with("as ") {
            continue;
        }
        let value: Value = serde_json::from_str(&plain(&default)).unwrap();
        let base = base_for(&key);
        let mut without = base.clone();
        let (pointer, name) = split(&key);
        let object = without
            .pointer_mut(&pointer)
            .unwrap()
            .as_object_mut()
            .unwrap();
        object.remove(name);
        assert_eq!(
            meaning(&without).unwrap(),
            meaning(&with(base, &key, value)).unwrap(),
            "{key}"
        );
        checked += 1;
    }
    assert_eq!(checked, 49);
}

#[test]
fn what_is_required_is_missed() {
    let required: Vec<String> = keys()
        .into_iter()
        .filter(|(.., default)| default == "required")
        .map(|(key, ..)| key)
        .collect();
    assert_eq!(
        required,
        [
            "policy.name",
            "policy.keys",
            "endpoints[].address",
            "pools[].name",
            "discovery.cluster",
            "scrape.cluster",
            "saturation.priority.header",
            "saturation.priority.shares",
        ]
    );
    for key in required {
        let mut config = base_for(&key);
        let (pointer, name) = split(&key);
        let object = config
            .pointer_mut(&pointer)
            .unwrap()
            .as_object_mut()
            .unwrap();
        object.remove(name).unwrap();
        let message = error(&config);
        let said = message.contains(&format!("missing field `{name}`"))
            || message.contains("needs 1 to 8 sources");
        assert!(said, "{key}: {message}");
    }
}

#[test]
fn the_ranges_are_the_parsers() {
    let mut checked = 0;
    for (key, allowed, _) in keys() {
        let numbers = allowed.strip_prefix("whole number, ").unwrap_or(&allowed);
        let Some((low, high)) = numbers.split_once(" to ") else {
            continue;
        };
        let (Ok(low), Ok(high)) = (low.parse::<f64>(), high.parse::<f64>()) else {
            continue;
        };
        let step = if numbers == allowed { 0.01 } else { 1.0 };
        // Both ends belong to the range, and nothing beyond; a reading must not go stale between two.
        let base = match key.as_str() {
            "scrape.interval_ms" => with(base_for(&key), "scrape.stale_after_ms", json!(u32::MAX)),
            "scrape.stale_after_ms" => with(base_for(&key), "scrape.interval_ms", json!(100)),
            _ => base_for(&key),
        };
        for value in [low, high] {
            meaning(&with(base.clone(), &key, json!(value))).unwrap();
        }
        for value in [low - step, high + step] {
            let refused = meaning(&with(base.clone(), &key, json!(value))).unwrap_err();
            assert!(
                refused.starts_with(&key.replace("[]", "[0]")),
                "{key}: {refused}"
            );
        }
        checked += 1;
    }
    assert_eq!(checked, 28);
}

#[test]
fn the_names_that_a_key_takes_are_the_parsers() {
    for key in [
        "steering",
        "other_paths",
        "policy.load",
        "policy.bound",
        "policy.preset",
    ] {
        let (_, allowed, _) = keys().into_iter().find(|(known, ..)| known == key).unwrap();
        let named: BTreeSet<String> = code(&allowed).into_iter().collect();
        assert_eq!(
            named,
            expected(&error(&with(base_for(key), key, json!("?")))),
            "{key}"
        );
    }
}

#[test]
fn the_table_of_policies_is_what_the_parser_knows() {
    let named: Vec<String> = table("policies").iter().map(|row| plain(&row[0])).collect();
    let known = expected(&error(&with(base_for("policy"), "policy.name", json!("?"))));
    assert_eq!(named.len(), known.len());
    assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), known);
}

/// The string literals of a text.
fn literals(source: &str) -> Vec<String> {
    let mut parts = source.split('"');
    parts.next();
    parts.step_by(2).map(str::to_owned).collect()
}

/// The files that name metrics.
fn sources_of_metrics() -> Vec<String> {
    let parts = std::fs::read_dir(root().join("src/metrics")).unwrap();
    let names = parts.map(|part| part.unwrap().file_name().into_string().unwrap());
    let parts = names.filter(|name| name.ends_with(".rs") && name != "tests.rs");
    let parts: Vec<String> = parts.map(|name| format!("src/metrics/{name}")).collect();
    assert!(!parts.is_empty());
    std::iter::once("src/metrics.rs".to_owned())
        .chain(parts)
        .collect()
}

#[test]
fn the_table_of_metrics_is_what_the_filter_defines() {
    let defined: BTreeSet<String> = sources_of_metrics()
        .iter()
        .flat_map(|file| literals(&read(file)))
        .filter(|text| text.starts_with("warmroute_"))
        .collect();
    let rows = table("metrics");
    let named: BTreeSet<String> = rows.iter().map(|row| plain(&row[0])).collect();
    assert_eq!(named.len(), rows.len(), "a metric is named twice");
    assert_eq!(named, defined);
    for row in &rows {
        let name = plain(&row[0]);
        let counts = name.ends_with("_total");
        assert_eq!(row[1] == "counter", counts, "{name}");
    }
}

/// The literals in the body of a function.
fn literals_of(file: &str, function: &str) -> BTreeSet<String> {
    let source = read(file);
    let (_, behind) = source.split_once(&format!("fn {function}(")).unwrap();
    let (body, _) = behind.split_once("\n}\n").unwrap_or((behind, ""));
    literals(body).into_iter().collect()
}

#[test]
fn the_values_of_labels_are_those_of_the_code() {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in table("label values") {
        let fresh = named
            .entry(plain(&row[0]))
            .or_default()
            .insert(plain(&row[1]));
        assert!(fresh, "{row:?} is named twice");
    }
    let metrics = "src/metrics.rs";
    let known = BTreeMap::from([
        (
            "reason".to_owned(),
            literals_of("src/session/explain.rs", "reason_name"),
        ),
        ("outcome".to_owned(), literals_of(metrics, "scan_name")),
        ("kind".to_owned(), literals_of(metrics, "failure_name")),
        (
            "state".to_owned(),
            literals_of("src/health/state.rs", "name"),
        ),
        ("cause".to_owned(), literals_of("src/health/why.rs", "name")),
    ]);
    assert_eq!(named, known);
    assert!(named["reason"].contains(reason_name(Reason::Overflow)));
    // Labels that a metric has, and the rules that make labels of them, are the same.
    let labels: BTreeSet<String> = table("metrics")
        .iter()
        .flat_map(|row| code(&row[2]))
        .collect();
    for file in [
        "original_dst",
        "filter_state",
        "override_host",
        "composite",
        "discovery",
    ] {
        let envoy = read(&format!("envoy/{file}.yaml"));
        let rules: BTreeSet<String> = envoy
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- { tag_name: "))
            .filter_map(|rule| Some(rule.split_once(',')?.0.to_owned()))
            .collect();
        assert_eq!(rules, labels, "envoy/{file}.yaml");
    }
}

/// Every text in the repository that people read.
fn documents() -> Vec<PathBuf> {
    [
        "README.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "examples/istio/README.md",
    ]
    .map(|file| root().join(file))
    .into()
}

#[test]
fn every_link_leads_somewhere() {
    let mut links = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap();
            if target.contains("://") || target.starts_with('#') {
                continue;
            }
            let file = document
                .parent()
                .unwrap()
                .join(target.split('#').next().unwrap());
            assert!(file.exists(), "{} links to {target}", document.display());
            links += 1;
        }
    }
    assert!(links > 10, "{links} links");
}

#[test]
fn every_file_that_is_named_exists() {
    let folders = ["src/", "tests/", "examples/", "envoy/", "docs/"];
    // As `replay --routers` calls Envoy's own balancers.
    let routers = [
        "envoy/round_robin",
        "envoy/least_request",
        "envoy/ring_hash",
    ];
    let mut files = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for word in
            text.split(|letter: char| letter.is_whitespace() || "`()[]|,;\"".contains(letter))
        {
            let word = word.trim_end_matches(['.', ':']);
            if routers.contains(&word) {
                continue;
            }
            if folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(['*', '…'])
            {
                assert!(
                    root().join(word).exists(),
                    "{} names {word}",
                    document.display()
                );
                files += 1;
            }
        }
    }
    assert!(files > 10, "{files} files");
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = read("Makefile");
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .collect();
    let readme = read("README.md");
    let mut named = 0;
    for part in readme.split("make ").skip(1) {
        let target: String = part
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '-')
            .collect();
        if readme.contains(&format!("`make {target}`"))
            || readme.contains(&format!("$ make {target}"))
        {
            assert!(targets.contains(target.as_str()), "make {target}");
            named += 1;
        }
    }
    assert!(named >= 4, "{named} targets");
}

/// Every Rust source of the repository.
fn sources() -> String {
    let mut all = String::new();
    let mut folders = vec![root().join("src"), root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    all
}

#[test]
fn every_test_that_guards_something_exists() {
    let architecture = read("docs/architecture.md");
    let (_, behind) = architecture
        .split_once("| Must hold | Guarded by |")
        .unwrap();
    let sources = sources();
    let mut guards = 0;
    for row in behind
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
    {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let named = code(cells[1]);
        assert!(!named.is_empty(), "{row}");
        for name in named {
            // A macro that makes several tests of one kind lists them as `name: …`.
            let written = [
                format!("fn {name}("),
                format!("\n    {name}: "),
                format!("!({name}: "),
            ];
            assert!(
                written.iter().any(|form| sources.contains(form)),
                "no test is called {name}"
            );
            guards += 1;
        }
    }
    assert!(guards > 30, "{guards} guards");
}

#[test]
fn the_decision_that_is_shown_has_the_fields_of_the_code() {
    let readme = read("README.md");
    let (_, behind) = readme.split_once("\nx-warmroute-decision: ").unwrap();
    let shown: Vec<&str> = behind
        .lines()
        .next()
        .unwrap()
        .split(';')
        .map(|field| field.split('=').next().unwrap())
        .collect();
    let source = read("src/session/explain.rs");
    let written: Vec<String> = literals(&source)
        .iter()
        .filter(|text| text.contains("={"))
        .flat_map(|text| {
            text.trim_start_matches(';')
                .split(';')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|field| field.split('=').next().unwrap().to_owned())
        .collect();
    // The list of loads is written with a bracket.
    assert_eq!(shown.last(), Some(&"loads"));
    assert!(source.contains("loads=["));
    assert_eq!(shown[..shown.len() - 1], written);
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let dashboard: Value = serde_json::from_str(&read("examples/grafana/warmroute.json")).unwrap();
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            shown.extend(
                words
                    .filter(|word| word.starts_with("warmroute_"))
                    .map(|word| word.trim_end_matches("_bucket").to_owned()),
            );
        }
    }
    let named: BTreeSet<String> = table("metrics").iter().map(|row| plain(&row[0])).collect();
    assert_eq!(shown, named);
}
