//! What is asked of engines about their models.

use super::*;

const SCRAPE: &str = r#""scrape": {"cluster": "c"}"#;

fn models(value: &str) -> Result<ModelsConfig, String> {
    let config = with(&format!(r#"{SCRAPE}, "models": {value}"#));
    let config = config.map_err(|error| error.to_string())?;
    Ok(config.models.unwrap())
}

#[test]
fn models_are_asked_for_only_where_it_is_said() {
    assert_eq!(valid(SCRAPE).models, None);
    let config = models("{}").unwrap();
    assert_eq!(
        (config.path.as_str(), config.interval_ms),
        ("/v1/models", 5_000)
    );
    assert!(!config.is_loadable("") && !config.is_loadable("a"));
    // Where the model decides, more of a body is worth holding.
    let held = |member: &str| valid(member).hold_max_bytes;
    assert_eq!(held(&format!(r#"{SCRAPE}, "models": {{}}"#)), 3_000_000);
    assert_eq!(held(SCRAPE), 1_000_000);
}

#[test]
fn loadable_adapters_are_names_or_beginnings() {
    let config = models(r#"{"loadable": ["sql-*", "chat"]}"#).unwrap();
    for (name, loadable) in [
        ("sql-", true),
        ("sql-1", true),
        ("sql", false),
        ("chat", true),
        ("chat-1", false),
    ] {
        assert_eq!(config.is_loadable(name), loadable, "{name}");
    }
    assert!(models(r#"{"loadable": ["*"]}"#).unwrap().is_loadable("any"));
}

#[test]
fn who_asks_the_same_engines_in_the_same_way_shares_the_answers() {
    let group = |value: &str| models(value).unwrap().group;
    let other = |cluster: &str| {
        let config = valid(&format!(
            r#""scrape": {{"cluster": "{cluster}"}}, "models": {{}}"#
        ));
        config.models.unwrap().group
    };
    assert_eq!(
        group("{}"),
        group(r#"{"interval_ms": 100, "loadable": ["a"]}"#)
    );
    assert_eq!(group("{}"), other("c"));
    assert_ne!(group("{}"), other("d"));
    assert_ne!(group("{}"), group(r#"{"path": "/models"}"#));
}

#[test]
fn errors_of_models() {
    const LOADABLE: &str =
        "models.loadable: must be at most 64 names, or beginnings and `*`, of 1 to 256 bytes";
    assert_eq!(
        error(r#""models": {}"#),
        "models: engines are asked through `scrape.cluster`: give `scrape`, too"
    );
    for (value, text) in [
        (
            r#"{"path": "models"}"#,
            "models.path: `models` must be a path that starts with `/`",
        ),
        (
            r#"{"interval_ms": 99}"#,
            "models.interval_ms: must be between 100 and 3600000, not 99",
        ),
        (r#"{"loadable": ["a", "b*c"]}"#, LOADABLE),
        (r#"{"loadable": [""]}"#, LOADABLE),
    ] {
        assert_eq!(models(value).unwrap_err(), text, "{value}");
    }
    let many = vec![r#""a""#; 65].join(",");
    let many = models(&format!(r#"{{"loadable": [{many}]}}"#));
    assert_eq!(many.unwrap_err(), LOADABLE);
}
