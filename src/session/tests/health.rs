//! What the outcomes of requests say of their endpoints' health, and what picks make of it.

use super::*;
use crate::balancer::tests::ASK;
use crate::balancer::{Overload, Refusal};
use crate::endpoint::Endpoint;
use crate::health::{Signal, State, Why};

const REFUSED: &str = "upstream_reset_before_response_started{remote_connection_failure|\
                       delayed_connect_error:_Connection_refused}";
const OVERRIDE: &str = r#", "steering": "override_host", "policy": {"name": "round_robin"}"#;
const TURNS: &str = r#", "policy": {"name": "round_robin"}"#;

/// How an answer comes about.
struct Told {
    status: u16,
    details: &'static str,
    retry_after: Option<&'static str>,
    body: &'static [u8],
}

const GOOD: Told = Told {
    status: 200,
    details: "via_upstream",
    retry_after: None,
    body: br#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}"#,
};

/// An error that the endpoint answers.
fn error(status: u16) -> Told {
    Told {
        status,
        body: br#"{"error":{"message":"m"}}"#,
        ..GOOD
    }
}

impl Bench {
    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// A request that has been let go, and where to; or why not.
    fn sent(&mut self) -> (Session, Stub, Vec<String>, Effects) {
        let view = chat();
        // Whose turn it is does not depend on the body.
        let mut session = Session::default();
        let effects = self.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
        let ranked = match &effects.steer {
            Some(crate::steer::Steer::Header { value, .. }) => {
                value.split(',').map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        (session, view, ranked, effects)
    }

    fn answer(&mut self, session: &mut Session, view: &Stub, told: &Told) -> Effects {
        view.status.set(Some(told.status));
        *view.details.borrow_mut() = Some(told.details.into());
        if let Some(text) = told.retry_after {
            let mut headers = view.response.borrow_mut();
            headers.insert("retry-after", text.into());
        }
        self.handle(session, view, Input::ResponseHeaders(Rest::Open));
        // Afterwards they are gone.
        view.response.borrow_mut().clear();
        self.handle(session, view, Input::ResponseBody(told.body, Rest::End))
    }

    /// Sends one and answers it; where it went.
    fn served(&mut self, told: &Told) -> String {
        let (mut session, view, ranked, _) = self.sent();
        self.answer(&mut session, &view, told);
        assert!(self.in_flight().is_zero());
        ranked[0].clone()
    }

    fn state(&self, endpoint: &str) -> (State, Why) {
        let id = Endpoint::new(endpoint.parse().unwrap()).id();
        self.balancer.state(id, self.now_ms())
    }
}

const ONE: &str = "10.0.0.1:80";
const TWO: &str = "10.0.0.2:80";

#[test]
fn f1_client_errors_say_nothing_of_an_endpoint() {
    let mut bench = Bench::two(TURNS);
    for status in [400, 401, 404, 408, 413, 422, 499] {
        for _ in 0..20 {
            bench.served(&error(status));
        }
    }
    for endpoint in [ONE, TWO] {
        assert_eq!(bench.state(endpoint), (State::Ready, Why::Nothing));
    }
    assert_eq!(bench.balancer.take_turns(), []);
}

#[test]
fn f5_an_endpoint_that_asks_to_be_spared_is_spared_and_the_last_resort() {
    let mut bench = Bench::two(OVERRIDE);
    let busy = Told {
        status: 429,
        retry_after: Some("2"),
        body: b"{}",
        ..GOOD
    };
    let spared = bench.served(&busy);
    let other = if spared == ONE { TWO } else { ONE };
    assert_eq!(bench.state(&spared), (State::Resting, Why::Overloaded));
    for _ in 0..6 {
        let (mut session, view, ranked, effects) = bench.sent();
        assert_eq!(ranked, [other, spared.as_str()]);
        assert_eq!(effects.retry_on, None, "an overload does not go on there");
        bench.answer(&mut session, &view, &GOOD);
        bench.now_us += 300_000;
    }
    assert_eq!(bench.served(&busy), other);
    // Now both: one of them, and no overload goes on to the other.
    let (mut session, view, _, effects) = bench.sent();
    assert_eq!(effects.retry_on, None);
    bench.answer(&mut session, &view, &GOOD);
    bench.now_us += 2_000_000;
    let (_, _, ranked, effects) = bench.sent();
    assert_eq!(ranked.len(), 2);
    assert_eq!(effects.retry_on, Some("retriable-status-codes"));
}

#[test]
fn f8_a_refusal_inside_a_200_makes_the_endpoint_rest_and_f9_an_error_is_a_failure() {
    let mut bench = Bench::two(TURNS);
    let refusal = Told {
        body: b"data: {\"error\":{\"message\":\"m\",\"code\":503}}\n\ndata: [DONE]\n\n",
        ..GOOD
    };
    let spared = bench.served(&refusal);
    assert_eq!(bench.state(&spared), (State::Resting, Why::Overloaded));
    let broken = Told {
        body: b"data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\ndata: [DONE]\n\n",
        ..GOOD
    };
    let failing = [0; 3].map(|_| bench.served(&broken));
    assert!(
        failing
            .iter()
            .all(|one| *one == failing[0] && *one != spared)
    );
    assert_eq!(bench.state(&failing[0]), (State::Ejected, Why::Failures));
}

#[test]
fn who_refuses_a_connection_is_out_at_once_and_nobody_left_is_told_to_come_back() {
    let mut bench = Bench::two(TURNS);
    let refused = Told {
        status: 503,
        details: REFUSED,
        body: b"upstream connect error",
        ..GOOD
    };
    let first = bench.served(&refused);
    assert_eq!(bench.state(&first), (State::Ejected, Why::Refused));
    let second = bench.served(&refused);
    assert_ne!(first, second);
    bench.now_us += 200_000;
    let (session, _, ranked, effects) = bench.sent();
    assert!(ranked.is_empty() && !session.is_in_flight());
    let reply = effects.reply.unwrap();
    assert_eq!((reply.status, reply.retry_after_s), (503, Some(1)));
    assert_eq!(effects.flow, Flow::Hold);
    let turns = bench.balancer.take_turns();
    assert_eq!(turns.len(), 2);
    assert!(turns.iter().all(|turn| turn.to == State::Ejected));
}

/// One endpoint whose breaker is half open, and a request that probes it.
fn probing(rest: &str) -> (Bench, Session, Stub) {
    let mut bench = Bench::two(rest);
    let id = Endpoint::new(ONE.parse().unwrap()).id();
    let now_ms = bench.now_ms();
    bench
        .balancer
        .heard(&bench.store, now_ms, id, Signal::Refused);
    bench.now_us += 1_000_000;
    for _ in 0..2 {
        let (mut session, view, ranked, _) = bench.sent();
        if ranked[0] == ONE {
            return (bench, session, view);
        }
        bench.answer(&mut session, &view, &GOOD);
    }
    panic!("nobody probes");
}

#[test]
fn one_request_probes_and_its_first_output_opens_the_door() {
    let (mut bench, mut probe, view) = probing(OVERRIDE);
    for _ in 0..4 {
        let (mut session, view, ranked, _) = bench.sent();
        assert_eq!(ranked, [TWO]);
        bench.answer(&mut session, &view, &GOOD);
    }
    view.status.set(Some(200));
    bench.handle(&mut probe, &view, Input::ResponseHeaders(Rest::Open));
    assert_eq!(bench.state(ONE).0, State::Probing);
    let event = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    bench.handle(&mut probe, &view, Input::ResponseBody(event, Rest::Open));
    assert_eq!(bench.state(ONE), (State::Ready, Why::Nothing));
}

#[test]
fn a_probe_that_says_nothing_lets_the_next_one_try_and_one_that_fails_does_not() {
    // The client leaves, or errs.
    for status in [None, Some(400)] {
        let (mut bench, mut probe, view) = probing(TURNS);
        match status {
            None => {
                *view.details.borrow_mut() = Some("downstream_remote_disconnect".into());
                bench.handle(&mut probe, &view, Input::Closed);
            }
            Some(status) => {
                bench.answer(&mut probe, &view, &error(status));
            }
        }
        assert_eq!(bench.state(ONE).0, State::Probing);
        let next = [bench.served(&GOOD), bench.served(&GOOD)];
        assert!(next.iter().any(|one| one == ONE), "{next:?}");
        assert_eq!(bench.state(ONE).0, State::Ready);
    }
    let (mut bench, mut probe, view) = probing(TURNS);
    bench.answer(&mut probe, &view, &error(500));
    assert_eq!(bench.state(ONE), (State::Ejected, Why::Failures));
    bench.now_us += 1_999_000;
    assert_eq!(bench.state(ONE).0, State::Ejected, "twice as long");
    bench.now_us += 1_000;
    assert_eq!(bench.state(ONE).0, State::Probing);
}

#[test]
fn a_list_with_a_probe_has_no_second_one_and_who_is_passed_over_is_blamed() {
    let (mut bench, mut probe, view) = probing(OVERRIDE);
    // Envoy found it dead and went on.
    *view.upstream.borrow_mut() = Some(TWO.into());
    *view.attempts.borrow_mut() = Some(2);
    bench.answer(&mut probe, &view, &GOOD);
    assert_eq!(bench.state(ONE), (State::Ejected, Why::Failures));
    assert_eq!(bench.state(TWO), (State::Ready, Why::Nothing));

    let mut bench = Bench::two(OVERRIDE);
    let (mut session, view, ranked, _) = bench.sent();
    *view.upstream.borrow_mut() = Some(ranked[1].clone().into());
    *view.attempts.borrow_mut() = Some(2);
    bench.answer(&mut session, &view, &GOOD);
    assert_eq!(bench.state(&ranked[0]), (State::Resting, Why::Blamed));
    assert_eq!(bench.state(&ranked[1]), (State::Ready, Why::Nothing));
    // A single request tries it first.
    bench.now_us += 1_000_000;
    let (mut other, other_view, ranked, _) = bench.sent();
    let (mut probe, probe_view, probed, _) = bench.sent();
    assert_eq!((ranked.len(), probed.len()), (2, 2));
    assert_ne!(ranked[0], probed[0]);
    bench.answer(&mut other, &other_view, &GOOD);
    bench.answer(&mut probe, &probe_view, &GOOD);
    assert_eq!(bench.state(&probed[0]), (State::Ready, Why::Nothing));
    // Both were tried in vain: the last one is the one that Envoy's answer is about.
    let (mut session, view, ranked, _) = bench.sent();
    *view.upstream.borrow_mut() = Some(ranked[1].clone().into());
    *view.attempts.borrow_mut() = Some(2);
    let refused = Told {
        status: 503,
        details: REFUSED,
        body: b"upstream connect error",
        ..GOOD
    };
    bench.answer(&mut session, &view, &refused);
    assert_eq!(bench.state(&ranked[0]), (State::Resting, Why::Blamed));
    assert_eq!(bench.state(&ranked[1]), (State::Ejected, Why::Refused));
}

#[test]
fn f5_a_fleet_that_is_full_to_the_last_endpoint_is_not_taken_to_be_dead() {
    let mut bench = Bench::two(OVERRIDE);
    for status in [429, 503] {
        for _ in 0..20 {
            let (mut session, view, ranked, _) = bench.sent();
            assert_ne!(ranked, [""; 0], "somebody is the last resort");
            *view.upstream.borrow_mut() = ranked.last().map(|last| last.clone().into());
            *view.attempts.borrow_mut() = u64::try_from(ranked.len()).ok();
            bench.answer(&mut session, &view, &error(status));
            for endpoint in &ranked {
                assert_eq!(bench.state(endpoint), (State::Resting, Why::Overloaded));
            }
            bench.now_us += 10_000;
        }
    }
}

#[test]
fn an_answer_under_way_outweighs_silence_and_envoys_own_words_do_not() {
    let mut bench = Bench::two(TURNS);
    let (mut session, view, ranked, _) = bench.sent();
    let endpoint = ranked[0].as_str();
    let id = Endpoint::new(endpoint.parse().unwrap()).id();
    view.status.set(Some(200));
    *view.details.borrow_mut() = Some("via_upstream".into());
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    let now_ms = bench.now_ms();
    bench
        .balancer
        .heard(&bench.store, now_ms, id, Signal::ScrapeSilent);
    assert_eq!(bench.state(endpoint), (State::Resting, Why::Silent));
    bench.handle(
        &mut session,
        &view,
        Input::ResponseBody(b"data: ", Rest::Open),
    );
    assert_eq!(bench.state(endpoint).0, State::Ready);

    let mut bench = Bench::two(TURNS);
    let (mut session, view, ranked, _) = bench.sent();
    let endpoint = ranked[0].as_str();
    let id = Endpoint::new(endpoint.parse().unwrap()).id();
    bench
        .balancer
        .heard(&bench.store, now_ms, id, Signal::ScrapeSilent);
    let timeout = Told {
        status: 504,
        details: "response_timeout",
        body: b"upstream request timeout",
        ..GOOD
    };
    bench.answer(&mut session, &view, &timeout);
    assert_eq!(bench.state(endpoint), (State::Resting, Why::Silent));
}

#[test]
fn a_client_that_leaves_before_there_is_output_says_nothing() {
    let mut bench = Bench::two(TURNS);
    let now_ms = bench.now_ms();
    let (mut session, view, ranked, _) = bench.sent();
    let id = Endpoint::new(ranked[0].parse().unwrap()).id();
    for _ in 0..2 {
        bench
            .balancer
            .heard(&bench.store, now_ms, id, Signal::Failed);
    }
    // The headers of a stream come before its prompt is computed.
    view.status.set(Some(200));
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    *view.details.borrow_mut() = Some("downstream_remote_disconnect".into());
    bench.handle(&mut session, &view, Input::Closed);
    bench
        .balancer
        .heard(&bench.store, now_ms, id, Signal::Failed);
    assert_eq!(bench.state(&ranked[0]), (State::Ejected, Why::Failures));
}

/// Requests that make every engine fail take no engine from those that come after.
#[test]
fn where_all_have_failed_one_of_them_is_tried_alone() {
    let mut bench = Bench::two(TURNS);
    let now_ms = bench.now_ms();
    let id = |address: &str| Endpoint::new(address.parse().unwrap()).id();
    for endpoint in [ONE, TWO].map(id) {
        for _ in 0..3 {
            bench
                .balancer
                .heard(&bench.store, now_ms, endpoint, Signal::Failed);
        }
    }
    assert_eq!(bench.state(ONE), (State::Ejected, Why::Failures));
    let mut tried = BTreeMap::new();
    for turn in 0..4 {
        let picked = bench.balancer.pick(&bench.store, now_ms, turn, ASK);
        let (decision, reservation) = picked.unwrap();
        assert_eq!(decision.overload, Overload::Passed);
        *tried.entry(reservation.endpoint()).or_insert(0) += 1;
        bench.balancer.complete(&bench.store, now_ms, reservation);
    }
    assert_eq!(tried.len(), 2, "{tried:?}");
    // Who refused a connection is out all the same.
    bench
        .balancer
        .heard(&bench.store, now_ms, id(TWO), Signal::Refused);
    let (_, reservation) = bench.balancer.pick(&bench.store, now_ms, 5, ASK).unwrap();
    assert_eq!(reservation.endpoint(), id(ONE));
    bench.balancer.complete(&bench.store, now_ms, reservation);
}

#[test]
fn nobody_to_pick_says_when_the_first_one_is_back() {
    let mut bench = Bench::two(TURNS);
    let now_ms = bench.now_ms();
    for (address, asked_ms) in [(ONE, 9_000), (TWO, 5_000)] {
        let id = Endpoint::new(address.parse().unwrap()).id();
        let overloaded = Signal::Overloaded {
            retry_after_ms: Some(asked_ms),
        };
        bench.balancer.heard(&bench.store, now_ms, id, overloaded);
        bench
            .balancer
            .heard(&bench.store, now_ms, id, Signal::Refused);
    }
    let refused = bench.balancer.pick(&bench.store, now_ms + 500, 1, ASK);
    let retry_after_ms = 4_500;
    assert_eq!(refused.unwrap_err(), Refusal::NoEndpoint { retry_after_ms });
}

/// A connection that fails is tried again on an endpoint that rests, an overload is not.
#[test]
fn who_rests_is_tried_after_a_failure_if_there_is_nobody_else_and_never_after_an_overload() {
    let three = r#"{"steering": "override_host", "policy": {"name": "round_robin"}, "endpoints":
        [{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80"}, {"address": "10.0.0.3:80"}]}"#;
    let mut bench = Bench::new(three);
    let id = |address: &str| Endpoint::new(address.parse().unwrap()).id();
    let overloaded = Signal::Overloaded {
        retry_after_ms: Some(9_000),
    };
    let now_ms = bench.now_ms();
    bench
        .balancer
        .heard(&bench.store, now_ms, id("10.0.0.3:80"), overloaded);
    let (_, _, ranked, effects) = bench.sent();
    assert_eq!(ranked.len(), 2);
    assert!(!ranked.contains(&"10.0.0.3:80".to_owned()));
    assert_eq!(effects.retry_on, Some("retriable-status-codes"));
    assert_eq!(effects.max_retries, Some(1));
    bench
        .balancer
        .heard(&bench.store, now_ms, id(TWO), overloaded);
    let (_, _, ranked, effects) = bench.sent();
    assert_eq!((ranked.len(), ranked[0].as_str()), (3, ONE));
    assert_eq!((effects.retry_on, effects.max_retries), (None, None));
}

#[test]
fn who_is_probed_while_all_others_are_spared_has_them_behind() {
    let mut bench = Bench::two(OVERRIDE);
    let now_ms = bench.now_ms();
    let ids = [ONE, TWO].map(|name| Endpoint::new(name.parse().unwrap()).id());
    bench
        .balancer
        .heard(&bench.store, now_ms, ids[0], Signal::Refused);
    let overloaded = Signal::Overloaded {
        retry_after_ms: Some(9_000),
    };
    bench
        .balancer
        .heard(&bench.store, now_ms, ids[1], overloaded);
    bench.now_us += 1_000_000;
    let mut lists = [bench.sent().2, bench.sent().2];
    lists.sort();
    let probe = [ONE, TWO].map(str::to_owned).to_vec();
    assert_eq!(lists, [probe, vec![TWO.to_owned()]]);
}
