//! What the host is told, and when.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::config::Config;
use crate::health::Signal;
use crate::policy::Load;

/// Writes down what the host is told.
#[derive(Default)]
struct Notes {
    names: RefCell<Vec<String>>,
    told: RefCell<Vec<(String, u64)>>,
}

impl Meter for &Notes {
    fn define(&self, _: MetricKind, name: &str) -> Option<u32> {
        let mut names = self.names.borrow_mut();
        assert!(!names.iter().any(|known| known == name), "{name} twice");
        names.push(name.to_owned());
        u32::try_from(names.len() - 1).ok()
    }

    fn increment(&self, id: u32, by: u64) {
        self.record(id, by);
    }

    fn record(&self, id: u32, value: u64) {
        let name = self.names.borrow()[id as usize].clone();
        self.told.borrow_mut().push((name, value));
    }
}

#[test]
fn counters_are_added_up_and_told_once_a_flush_and_samples_at_once() {
    let config = Config::parse(br#"{"endpoints": [{"address": "10.0.0.1:80"}]}"#).unwrap();
    let balancer = Balancer::new(Rc::new(config), 1);
    let endpoint = *balancer.endpoints().keys().next().unwrap();
    let notes = Notes::default();
    let mut metrics = Metrics::new(&notes, &balancer);
    for _ in 0..3 {
        metrics.event(Event::Picked {
            policy: "prefix_hash",
            endpoint,
            reason: Reason::Overflow,
        });
    }
    let answer = Answer {
        endpoint,
        ttft_us: Some(2_500),
        e2e_us: None,
        tpot_us: None,
        usage: None,
    };
    metrics.event(Event::Answered(answer));
    let ttft = "endpoint=.=10.0.0.1:80;.;warmroute_ttft_ms".to_owned();
    assert_eq!(notes.told.take(), [(ttft, 2)]);
    metrics.flush();
    metrics.flush();
    let mut told = notes.told.take();
    told.sort();
    let picks =
        "endpoint=.=10.0.0.1:80;.;policy=.=prefix_hash;.;reason=.=overflow;.;warmroute_picks_total";
    let overflow = "endpoint=.=10.0.0.1:80;.;warmroute_overflow_total";
    assert_eq!(told, [(picks.to_owned(), 3), (overflow.to_owned(), 3)]);
}

#[test]
fn an_endpoint_is_in_one_state_and_ejections_are_counted_by_their_cause() {
    let config = Config::parse(br#"{"endpoints": [{"address": "10.0.0.1:80"}]}"#).unwrap();
    let mut balancer = Balancer::new(Rc::new(config), 1);
    let endpoint = *balancer.endpoints().keys().next().unwrap();
    let notes = Notes::default();
    let mut metrics = Metrics::new(&notes, &balancer);
    let mut states = |balancer: &Balancer, now_ms| -> Vec<String> {
        metrics.gauges(balancer, &BTreeMap::new(), now_ms);
        let told = notes.told.take().into_iter();
        let set = told.filter(|(name, value)| name.contains("state=.=") && *value == 1);
        set.map(|(name, _)| name).collect()
    };
    let named = |state| {
        [format!(
            "endpoint=.=10.0.0.1:80;.;state=.={state};.;warmroute_endpoint_state"
        )]
    };
    assert_eq!(states(&balancer, 1_000), named("ready"));
    assert_eq!(states(&balancer, 1_000), [""; 0], "as before");
    let store = crate::state::memory::MemoryStore::new();
    balancer.heard(&store, 1_000, endpoint, Signal::Refused);
    assert_eq!(states(&balancer, 1_001), named("ejected"));
    assert_eq!(states(&balancer, 2_000), named("probing"));
    for turn in balancer.take_turns() {
        metrics.turned(&turn);
    }
    metrics.flush();
    let ejections = "endpoint=.=10.0.0.1:80;.;cause=.=refused;.;warmroute_ejections_total";
    assert_eq!(notes.told.take(), [(ejections.to_owned(), 1)]);
}

/// With these endpoints, which are scraped.
fn balancer(addresses: &[&str]) -> Balancer {
    let list = |address: &&str| format!(r#"{{"address": "{address}"}}"#);
    let endpoints: Vec<String> = addresses.iter().map(list).collect();
    let json = format!(
        r#"{{"endpoints": [{}], "scrape": {{"cluster": "c"}}}}"#,
        endpoints.join(",")
    );
    Balancer::new(Rc::new(Config::parse(json.as_bytes()).unwrap()), 1)
}

fn carrying(id: EndpointId, requests: u32) -> BTreeMap<EndpointId, Load> {
    let load = Load {
        requests,
        ..Load::default()
    };
    BTreeMap::from([(id, load)])
}

#[test]
fn a_gauge_is_set_when_it_changes_again_after_a_while_and_after_a_break() {
    let balancer = balancer(&["10.0.0.1:80"]);
    let id = *balancer.endpoints().keys().next().unwrap();
    let notes = Notes::default();
    let mut metrics = Metrics::new(&notes, &balancer);
    let mut told = |requests, now_ms| {
        metrics.gauges(&balancer, &carrying(id, requests), now_ms);
        notes.told.take()
    };
    let all = told(1, 10_000).len();
    assert_eq!(all, 3 + State::ALL.len());
    let inflight = "endpoint=.=10.0.0.1:80;.;warmroute_inflight_requests";
    let mut again = Vec::new();
    for tick in 1..=250 {
        let told = told(1, 10_000 + tick * 100);
        if !told.is_empty() {
            assert_eq!(told.len(), all);
            again.push(tick);
        }
    }
    // Once in ten seconds.
    assert!((2..=3).contains(&again.len()), "{again:?}");
    assert!(again.windows(2).all(|two| two[1] - two[0] == 100));
    let last = again.last().unwrap();
    assert!(*last < 250, "the next one is not due");
    assert_eq!(told(2, 35_100), [(inflight.to_owned(), 2)]);
    // Another VM did it for a while.
    assert_eq!(told(2, 37_200).len(), all);
    assert_eq!(told(2, 36_000).len(), all, "a clock that was set back");
}

#[test]
fn gauges_of_who_left_go_to_zero_with_the_last_that_it_holds_and_are_left_alone() {
    let both = balancer(&["10.0.0.1:80", "10.0.0.2:80"]);
    let one = balancer(&["10.0.0.1:80"]);
    let stays = *one.endpoints().keys().next().unwrap();
    let left = both.endpoints().into_keys().find(|id| *id != stays);
    let left = left.unwrap();
    let notes = Notes::default();
    let mut metrics = Metrics::new(&notes, &both);
    metrics.gauges(&both, &carrying(left, 1), 1_000);
    let values = RefCell::new(BTreeMap::new());
    let told = |metrics: &mut Metrics<&Notes>, requests, now_ms| {
        metrics.gauges(&one, &carrying(left, requests), now_ms);
        let told = notes.told.take().into_iter();
        let of_it: Vec<_> = told.filter(|(name, _)| name.contains("0.0.2")).collect();
        values.borrow_mut().extend(of_it.iter().cloned());
        of_it.len()
    };
    metrics.follow(&one);
    assert!(told(&mut metrics, 1, 1_100) > 0);
    let value = |name: &str| {
        let name = format!("endpoint=.=10.0.0.2:80;.;{name}");
        values.borrow().get(&name).copied()
    };
    assert_eq!(value("warmroute_scrape_age_ms"), Some(0));
    assert_eq!(
        value("state=.=draining;.;warmroute_endpoint_state"),
        Some(1)
    );
    assert_eq!(told(&mut metrics, 0, 1_200), 2);
    assert_eq!(value("warmroute_inflight_requests"), Some(0));
    assert!(values.borrow().values().all(|value| *value == 0));
    for tick in 1..200 {
        assert_eq!(told(&mut metrics, 0, 1_200 + tick * 100), 0);
    }
    // It holds something once more, as another VM found out.
    assert_eq!(told(&mut metrics, 1, 21_200), 2);
    assert_eq!(told(&mut metrics, 0, 21_300), 2);
    // The next one to do it makes sure of it once.
    assert!(told(&mut metrics, 0, 30_000) > 2);
    assert_eq!(told(&mut metrics, 0, 30_100), 0);
}
