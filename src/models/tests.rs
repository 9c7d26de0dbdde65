//! Who serves what: from the configuration, from the engines, and with neither.

use super::*;
use crate::config::Config;
use crate::scrape::{self, Engine};
use crate::state::memory::MemoryStore;
use proptest::prelude::*;

const BOTH: &str = r#"{"object":"list","data":[{"id":"base","parent":null},
    {"id":"sql","parent":"base"}]}"#;
const BASE: &str = r#"{"data":[{"id":"base","parent":null}]}"#;

fn config(models: &str) -> Option<ModelsConfig> {
    let json = format!(
        r#"{{"endpoints": [{{"address": "10.0.0.1:80"}}], "scrape": {{"cluster": "c"}},
            "models": {models}}}"#
    );
    Config::parse(json.as_bytes()).unwrap().models
}

/// One that learns at once what is answered.
struct Desk {
    store: MemoryStore,
    catalogue: Catalogue,
}

impl Desk {
    fn new(models: &str) -> Self {
        Self {
            store: MemoryStore::new(),
            catalogue: Catalogue::new(config(models)),
        }
    }

    fn answered(&mut self, number: u8, status: u16, answer: &str) {
        let (id, body) = (endpoint(number).id(), answer.as_bytes());
        self.catalogue
            .answered(&self.store, 1_000, id, status, body);
        self.catalogue.tick(&self.store);
    }

    fn scraped(&mut self, number: u8, max: Option<u32>, active: &[&str]) {
        let mut names: Vec<u64> = active.iter().map(|name| hash(name.as_bytes())).collect();
        names.sort_unstable();
        let active = names.len() as u32;
        let adapters = Adapters { max, active, names };
        let id = endpoint(number).id();
        self.catalogue.scraped(&self.store, 1_000, id, &adapters);
        self.catalogue.tick(&self.store);
    }

    fn serves(&self, number: u8, model: &str) -> Serves {
        self.serves_at(&endpoint(number), model)
    }

    fn serves_at(&self, endpoint: &Endpoint, model: &str) -> Serves {
        let wanted = self.catalogue.wanted(Some(model)).unwrap();
        self.catalogue.serves(endpoint, &wanted)
    }

    fn affinity(&self, number: u8, model: &str) -> Affinity {
        let wanted = self.catalogue.wanted(Some(model)).unwrap();
        self.catalogue.affinity(endpoint(number).id(), &wanted)
    }

    fn merged(&mut self, members: &[Endpoint]) -> Option<serde_json::Value> {
        let members: Vec<&Endpoint> = members.iter().collect();
        let text = self.catalogue.merged(&self.store, &members)?;
        Some(serde_json::from_str(text).unwrap())
    }

    fn merged_ids(&mut self, members: &[Endpoint]) -> Vec<String> {
        let merged = self.merged(members).unwrap();
        assert_eq!(merged["object"], "list");
        let cards = merged["data"].as_array().unwrap().iter();
        cards
            .map(|card| card["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn endpoint(number: u8) -> Endpoint {
    Endpoint::new(format!("10.0.0.{number}:80").parse().unwrap())
}

fn listing(number: u8, models: &[&str]) -> Endpoint {
    let mut endpoint = endpoint(number);
    endpoint.models = models.iter().map(|model| (*model).to_owned()).collect();
    endpoint
}

#[test]
fn f4_an_engine_serves_what_it_lists_and_nothing_else() {
    let mut desk = Desk::new("{}");
    assert_eq!(desk.serves(1, "sql"), Serves::Unknown);
    desk.answered(1, 200, BOTH);
    desk.answered(2, 200, BASE);
    assert_eq!(
        (desk.serves(1, "sql"), desk.serves(2, "sql")),
        (Serves::Yes, Serves::No)
    );
    assert_eq!(
        (desk.serves(1, "base"), desk.serves(2, "base")),
        (Serves::Yes, Serves::Yes)
    );
    assert_eq!(
        (desk.serves(1, "other"), desk.serves(3, "sql")),
        (Serves::No, Serves::Unknown)
    );
    // It is loaded there, too, and unloaded here.
    desk.answered(1, 200, BASE);
    desk.answered(2, 200, BOTH);
    assert_eq!(
        (desk.serves(1, "sql"), desk.serves(2, "sql")),
        (Serves::No, Serves::Yes)
    );
}

#[test]
fn a_request_that_names_no_model_may_go_anywhere() {
    let mut desk = Desk::new("{}");
    desk.answered(1, 200, BASE);
    assert!(desk.catalogue.wanted(None).is_none() && desk.catalogue.wanted(Some("")).is_none());
}

#[test]
fn the_list_of_the_configuration_counts_more_than_the_engines_own() {
    let mut desk = Desk::new(r#"{"loadable": ["sql*"]}"#);
    desk.answered(1, 200, BOTH);
    let fixed = listing(1, &["other"]);
    assert_eq!(desk.serves_at(&fixed, "other"), Serves::Yes);
    assert_eq!(desk.serves_at(&fixed, "sql"), Serves::No);
    // Without `models` nobody is asked, and who has no list serves everything.
    let without = Catalogue::new(None);
    let wanted = without.wanted(Some("sql")).unwrap();
    assert_eq!(without.serves(&endpoint(1), &wanted), Serves::Yes);
    assert_eq!(without.serves(&fixed, &wanted), Serves::No);
}

#[test]
fn what_an_engine_listed_stands_while_it_does_not_answer() {
    let mut desk = Desk::new("{}");
    desk.answered(1, 200, BOTH);
    let group = desk.catalogue.config.as_ref().unwrap().group;
    let table = desk.catalogue.table;
    for (status, answer) in [(0, ""), (503, ""), (404, ""), (200, "<html>"), (200, "{}")] {
        desk.answered(1, status, answer);
        assert_eq!(models::load(&desk.store, group, table), None, "{status}");
        assert_eq!(desk.serves(1, "sql"), Serves::Yes, "{status}");
        assert_eq!(desk.serves(1, "other"), Serves::No, "{status}");
    }
}

#[test]
fn an_engine_that_has_no_list_serves_everything_and_one_in_trouble_has_not_said() {
    let mut desk = Desk::new("{}");
    desk.answered(1, 404, "");
    desk.answered(2, 500, "");
    assert_eq!(
        (desk.serves(1, "sql"), desk.serves(2, "sql")),
        (Serves::Yes, Serves::Unknown)
    );
    desk.answered(1, 200, BASE);
    assert_eq!(desk.serves(1, "sql"), Serves::No);
}

#[test]
fn what_can_be_loaded_is_served_by_all_that_load_adapters() {
    let mut desk = Desk::new(r#"{"loadable": ["sql-*", "chat"]}"#);
    for number in [1, 2, 3] {
        desk.answered(number, 200, BASE);
    }
    desk.scraped(1, Some(4), &[]);
    desk.scraped(2, Some(0), &[]);
    let serves = |model| [1, 2, 3].map(|number| desk.serves(number, model));
    assert_eq!(serves("sql-1"), [Serves::Yes, Serves::No, Serves::Yes]);
    assert_eq!(serves("chat"), [Serves::Yes, Serves::No, Serves::Yes]);
    for model in ["chat-1", "sql", "a-sql-1"] {
        assert_eq!(serves(model), [Serves::No; 3], "{model}");
    }
}

#[test]
fn an_adapter_is_best_placed_where_it_is_active_then_loaded_then_where_there_is_room() {
    let mut desk = Desk::new(r#"{"loadable": ["sql", "new"]}"#);
    for number in [1, 2, 3] {
        desk.answered(number, 200, BOTH);
    }
    desk.answered(4, 200, BASE);
    desk.scraped(1, Some(2), &["sql", "chat"]);
    desk.scraped(2, Some(2), &["chat"]);
    desk.scraped(3, Some(1), &["chat"]);
    desk.scraped(4, Some(1), &[]);
    let places = |model| [1, 2, 3, 4, 5].map(|number| desk.affinity(number, model));
    use Affinity::{Active, Full, Loaded, Room};
    assert_eq!(places("sql"), [Active, Loaded, Full, Room, Room]);
    assert_eq!(places("new"), [Full, Room, Full, Room, Room]);
    // A base model needs no place of its own.
    assert_eq!(places("base"), [Room; 5]);
}

#[test]
fn what_is_an_adapter_anywhere_is_gathered_anew_when_a_list_changes_and_not_before() {
    let mut desk = Desk::new("{}");
    desk.answered(1, 200, BOTH);
    desk.answered(2, 200, BASE);
    let sql = vec![hash(b"sql")];
    assert_eq!(desk.catalogue.adapters, sql);
    // A mark that stays shows that nothing was gathered.
    desk.catalogue.adapters.push(u64::MAX);
    desk.scraped(1, Some(4), &["sql"]);
    desk.scraped(2, Some(4), &["other"]);
    assert_eq!(desk.affinity(1, "sql"), Affinity::Active);
    assert_eq!(desk.catalogue.adapters.last(), Some(&u64::MAX));
    desk.answered(2, 200, BOTH);
    assert_eq!(desk.catalogue.adapters, sql);
    desk.answered(1, 200, BASE);
    assert_eq!(desk.catalogue.adapters, sql, "the other still has it");
    // One that nobody names any more takes its adapters along.
    let first = endpoint(1).id();
    desk.catalogue
        .sweep(&desk.store, 900_000, &|id| id == first);
    desk.catalogue.tick(&desk.store);
    assert!(desk.catalogue.adapters.is_empty());
    assert_eq!(desk.serves(2, "sql"), Serves::Unknown);
}

#[test]
fn all_workers_learn_what_one_of_them_heard() {
    let mut desk = Desk::new("{}");
    let mut other = Catalogue::new(config("{}"));
    other.tick(&desk.store);
    desk.answered(1, 200, BOTH);
    desk.scraped(1, Some(1), &["sql"]);
    let place = |catalogue: &Catalogue| {
        let wanted = catalogue.wanted(Some("sql")).unwrap();
        let at = endpoint(1);
        (
            catalogue.serves(&at, &wanted),
            catalogue.affinity(at.id(), &wanted),
        )
    };
    assert_eq!(place(&other), (Serves::Unknown, Affinity::Room));
    other.tick(&desk.store);
    assert_eq!(place(&other), (Serves::Yes, Affinity::Active));
    // As does the next configuration that asks alike, at once.
    let mut next = Catalogue::new(config(r#"{"loadable": ["x"], "interval_ms": 100}"#));
    next.tick(&desk.store);
    assert_eq!(place(&next), (Serves::Yes, Affinity::Active));
    let mut elsewhere = Catalogue::new(config(r#"{"path": "/models"}"#));
    elsewhere.tick(&desk.store);
    assert_eq!(place(&elsewhere), (Serves::Unknown, Affinity::Room));
}

#[test]
fn f3_the_merged_list_names_each_model_once_and_does_not_depend_on_who_answers() {
    let mut desk = Desk::new("{}");
    let members = [endpoint(1), endpoint(2), endpoint(3)];
    assert_eq!(desk.merged(&members), None);
    desk.answered(2, 200, BASE);
    assert_eq!(desk.merged_ids(&members), ["base"]);
    desk.answered(
        1,
        200,
        r#"{"data":[{"id":"zz","parent":"base","n":1},{"id":"base","n":1},{"id":"alt"}]}"#,
    );
    // What is an adapter here and a base model there is named once, too.
    desk.answered(
        3,
        200,
        r#"{"data":[{"id":"sql","parent":"base"},{"id":"alt","parent":"base"}]}"#,
    );
    assert_eq!(desk.merged_ids(&members), ["alt", "base", "sql", "zz"]);
    let merged = desk.merged(&members).unwrap();
    assert_eq!(merged["data"][1]["n"], 1, "the first member's card");
    assert_eq!(merged["data"][2]["parent"], "base");
    // One that is down stays in it, one that left does not.
    desk.answered(3, 0, "");
    assert_eq!(desk.merged(&members), Some(merged));
    assert_eq!(desk.merged_ids(&members[..2]), ["alt", "base", "zz"]);
    // One that may not be used for it does not bring it in.
    desk.catalogue.merged = Default::default();
    let fixed = [listing(1, &["zz"]), endpoint(2)];
    assert_eq!(desk.merged_ids(&fixed), ["base", "zz"]);
}

#[test]
fn a_card_is_that_of_an_endpoint_which_serves_it() {
    let mut desk = Desk::new("{}");
    desk.answered(1, 200, BASE);
    desk.answered(2, 200, BOTH);
    let members = [endpoint(1), endpoint(2), listing(3, &["fixed"])];
    let members: Vec<&Endpoint> = members.iter().collect();
    let card = |model| desk.catalogue.card(&desk.store, &members, model);
    assert_eq!(card("sql").unwrap().json, r#"{"id":"sql","parent":"base"}"#);
    assert_eq!(card("other"), None);
    assert!(desk.catalogue.is_unknown(&members, "other"));
    assert!(!desk.catalogue.is_unknown(&members, "sql"));
    assert!(!desk.catalogue.is_unknown(&members, "fixed"));
}

#[test]
fn adapters_are_counted_once_each_and_only_so_many_are_told_apart() {
    let text = |running: &str, waiting: &str| {
        format!(
            "vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"{running}\",\
             waiting_lora_adapters=\"{waiting}\"}} 1.0\n"
        )
    };
    let read = |text: String| adapters_of(&scrape::parse(text.as_bytes()).unwrap());
    let adapters = read(text("b,a", "a,c"));
    assert_eq!((adapters.max, adapters.active), (Some(4), 3));
    assert!(adapters.names.is_sorted() && adapters.names.contains(&hash(b"c")));
    let many: Vec<String> = (0..50).map(|number| format!("a{number}")).collect();
    let adapters = read(text(&many.join(","), ""));
    assert_eq!((adapters.active, adapters.names.len()), (50, MAX_ACTIVE));
    let none = read("vllm:num_requests_running 1\n".into());
    assert_eq!(none, Adapters::default());
    assert_eq!(
        scrape::parse(b"vllm:num_requests_running 1\n")
            .unwrap()
            .engine,
        Engine::Vllm
    );
}

proptest! {
    /// Whatever an engine answers, who listed something is never taken to serve what it did not list.
    #[test]
    fn any_answer_is_harmless(answers in proptest::collection::vec((any::<u16>(), ".{0,40}"), 0..6)) {
        let mut desk = Desk::new("{}");
        desk.answered(1, 200, BASE);
        for (status, answer) in answers {
            desk.answered(1, status, &answer);
        }
        prop_assert_eq!(desk.serves(1, "other"), Serves::No);
        prop_assert_eq!(desk.merged_ids(&[endpoint(1)]), ["base"]);
    }
}
