//! Requests that come before it is known which endpoints there are.

use super::*;

const FOUND: &str = r#"{"clusters": ["vllm"], "policy": {"name": "round_robin"},
    "discovery": {"cluster": "admin", "interval_ms": 1000, "timeout_ms": 500}}"#;
const LIST: &[u8] = br#"{"cluster_statuses": [{"name": "vllm", "host_statuses": [{"address":
    {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}]}]}"#;
const DESTINATION: &str = "set Request x-envoy-original-dst-host: 10.0.0.1:80";

/// A worker that a chat comes to.
fn asked(fake: &Fake, json: &str) -> Worker<Fake> {
    fake.header_is(Headers::Request, ":method", "POST");
    fake.header_is(Headers::Request, ":path", "/v1/chat/completions");
    started(fake, json)
}

fn come(worker: &mut Worker<Fake>, context: u32) -> Stream {
    let mut stream = Stream::new(context);
    assert_eq!(stream.request_headers(worker, Rest::Open), Flow::Hold);
    stream
}

#[test]
fn who_comes_before_the_list_waits_for_it_and_goes_with_it() {
    let fake = Fake::default();
    let mut worker = asked(&fake, FOUND);
    let mut first = come(&mut worker, 7);
    worker.tick();
    let second = come(&mut worker, 8);
    let mut gone = come(&mut worker, 9);
    assert_eq!(first.request_body(&mut worker, 5, Rest::Open), Flow::Hold);
    assert_eq!(first.request_body(&mut worker, 9, Rest::End), Flow::Hold);
    assert_eq!(first.request_trailers(&mut worker), Flow::Hold);
    gone.closed(&mut worker);
    worker.tick_after(100);
    assert_eq!(fake.done.take(), [""; 0]);
    worker.answer(0, 200, LIST);
    assert_eq!(
        fake.done.take(),
        [
            "context 7",
            DESTINATION,
            "resume",
            "context 8",
            DESTINATION,
            "resume",
            "context 1"
        ]
    );
    assert_eq!(worker.in_flight().requests, 2);
    drop((first, second));
    // Who comes later is not held.
    let mut late = Stream::new(10);
    let flow = late.request_headers(&mut worker, Rest::Open);
    assert_eq!(
        (flow, fake.done.take()),
        (Flow::Continue, vec![DESTINATION.into()])
    );
}

#[test]
fn another_workers_reading_will_do() {
    let fake = Fake::default();
    let mut worker = asked(&fake, FOUND);
    worker.tick();
    let twin = fake.twin();
    let mut other = asked(&twin, FOUND);
    let _waits = come(&mut other, 3);
    worker.answer(0, 200, LIST);
    assert_eq!(twin.done.take(), [""; 0]);
    other.tick();
    let done = ["context 3", DESTINATION, "resume", "context 1"];
    assert_eq!(twin.done.take(), done);
}

#[test]
fn nobody_waits_longer_than_two_seconds_after_the_start() {
    let fake = Fake::default();
    let mut worker = asked(&fake, FOUND);
    for _ in 0..10 {
        worker.tick_after(100);
    }
    let _waits = come(&mut worker, 7);
    for _ in 0..10 {
        assert_eq!(fake.done.take(), [""; 0]);
        worker.tick_after(100);
    }
    worker.tick_after(100);
    let done = fake.done.take();
    let replied = |line: &String| line.starts_with("reply 503 warmroute_no_endpoint");
    assert_eq!(
        done.iter().filter(|line| replied(line)).count(),
        1,
        "{done:?}"
    );
    assert!(!done.contains(&"resume".into()), "{done:?}");
    let mut late = Stream::new(8);
    assert_eq!(late.request_headers(&mut worker, Rest::Open), Flow::Hold);
    assert!(fake.done.take().iter().any(replied), "at once");
}

#[test]
fn who_is_answered_by_the_host_waits_no_more() {
    let fake = Fake::default();
    let mut worker = asked(&fake, FOUND);
    let mut stream = come(&mut worker, 7);
    fake.header_is(Headers::Response, ":status", "408");
    assert_eq!(
        stream.response_headers(&mut worker, Rest::End),
        Flow::Continue
    );
    worker.tick();
    worker.answer(0, 200, LIST);
    assert_eq!(fake.done.take(), [""; 0]);
    assert_eq!(worker.in_flight().requests, 0);
}

#[test]
fn where_endpoints_are_configured_nobody_waits() {
    let fake = Fake::default();
    let json = FOUND.replacen('{', r#"{"endpoints": [{"address": "10.0.0.1:80"}], "#, 1);
    let mut worker = asked(&fake, &json);
    let mut stream = Stream::new(7);
    let flow = stream.request_headers(&mut worker, Rest::Open);
    assert_eq!(
        (flow, fake.done.take()),
        (Flow::Continue, vec![DESTINATION.into()])
    );
}

#[test]
fn a_body_that_is_read_is_waited_with_too() {
    let fake = Fake::default();
    let mut worker = asked(&fake, &FOUND.replace("round_robin", "prefix_hash"));
    let mut stream = come(&mut worker, 7);
    let body = br#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#;
    fake.buffer_is(Buffer::RequestBody, body);
    let flow = stream.request_body(&mut worker, body.len(), Rest::End);
    assert_eq!((flow, fake.done.take()), (Flow::Hold, vec![]));
    worker.tick();
    worker.answer(0, 200, LIST);
    let done = ["context 7", DESTINATION, "resume", "context 1"];
    assert_eq!(fake.done.take(), done);
    worker.tick();
    let name = "outcome=.=complete;.;warmroute_parse_total";
    assert_eq!(fake.metric(name), 1);
}
