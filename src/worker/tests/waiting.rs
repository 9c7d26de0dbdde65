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

/// The same, for a model, with a body that is read.
fn come_for(worker: &mut Worker<Fake>, context: u32, model: &str) -> Stream {
    let mut stream = come(worker, context);
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"Hi"}}]}}"#);
    worker
        .vm
        .host
        .buffer_is(Buffer::RequestBody, body.as_bytes());
    let flow = stream.request_body(worker, body.len(), Rest::End);
    assert_eq!(flow, Flow::Hold);
    stream
}

/// Envoy's list comes, to the first question.
fn list_comes(worker: &mut Worker<Fake>) {
    worker.tick();
    worker.answer(0, 200, LIST);
    worker.tick();
}

/// Who comes now goes at once.
fn nobody_is_held(fake: &Fake, worker: &mut Worker<Fake>) {
    let mut stream = Stream::new(900);
    let flow = stream.request_headers(worker, Rest::Open);
    assert_eq!(
        (flow, fake.done.take()),
        (Flow::Continue, vec![DESTINATION.into()])
    );
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
    assert_eq!(first.request_body(&mut worker, 9, Rest::Open), Flow::Hold);
    assert_eq!(first.request_trailers(&mut worker), Flow::Hold);
    gone.closed(&mut worker);
    worker.tick_after(100);
    assert_eq!(fake.done.take(), [""; 0]);
    worker.answer(0, 200, LIST);
    worker.tick();
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
    nobody_is_held(&fake, &mut worker);
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
fn who_finds_no_room_or_has_too_long_a_body_is_refused_at_once() {
    let fake = Fake::default();
    let mut worker = asked(
        &fake,
        &FOUND.replacen('{', r#"{"hold": {"max_bytes": 1000}, "#, 1),
    );
    let mut streams: Vec<Stream> = (0..1_024).map(|one| come(&mut worker, 10 + one)).collect();
    assert_eq!(fake.done.take(), [""; 0]);
    let refused = |done: Vec<String>| {
        let mut replies = done
            .iter()
            .filter(|line| line.starts_with("reply 503 warmroute_no_endpoint"));
        (replies.next().is_some(), replies.count())
    };
    streams.push(come(&mut worker, 9));
    assert_eq!(refused(fake.done.take()), (true, 0));
    let mut first = streams.swap_remove(0);
    let flow = first.request_body(&mut worker, 1_000, Rest::Open);
    assert_eq!((flow, fake.done.take()), (Flow::Hold, vec![]));
    let flow = first.request_body(&mut worker, 1_001, Rest::Open);
    assert_eq!((flow, refused(fake.done.take())), (Flow::Hold, (true, 0)));
    // Its place is free.
    streams.push(come(&mut worker, 8));
    assert_eq!(fake.done.take(), [""; 0]);
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
    nobody_is_held(&fake, &mut worker);
}

#[test]
fn a_body_that_is_read_is_waited_with_too() {
    let fake = Fake::default();
    let mut worker = asked(&fake, &FOUND.replace("round_robin", "prefix_hash"));
    let _waits = come_for(&mut worker, 7, "m");
    assert_eq!(fake.done.take(), [""; 0]);
    list_comes(&mut worker);
    let done = ["context 7", DESTINATION, "resume", "context 1"];
    assert_eq!(fake.done.take(), done);
    worker.tick();
    let name = "outcome=.=complete;.;warmroute_parse_total";
    assert_eq!(fake.metric(name), 1);
}

#[test]
fn amid_a_body_a_request_goes_with_the_next_piece() {
    for policy in ["round_robin", "prefix_hash"] {
        let fake = Fake::default();
        let json = FOUND.replace("round_robin", policy);
        let json = json.replacen('{', r#"{"hold": {"max_bytes": 10}, "#, 1);
        let mut worker = asked(&fake, &json);
        let mut stream = come(&mut worker, 7);
        fake.buffer_is(Buffer::RequestBody, b"{\"model\": \"m\", ");
        let flow = stream.request_body(&mut worker, 10, Rest::Open);
        assert_eq!(flow, Flow::Hold, "{policy}");
        list_comes(&mut worker);
        assert_eq!(fake.done.take(), [""; 0], "{policy}");
        let flow = stream.request_body(&mut worker, 14, Rest::Open);
        assert_eq!(flow, Flow::Continue, "{policy}");
        assert_eq!(fake.done.take(), [DESTINATION], "{policy}");
        worker.tick();
        assert_eq!(fake.done.take(), [""; 0], "{policy}");
    }
}

#[test]
fn a_list_without_endpoints_is_no_reason_to_give_up() {
    let fake = Fake::default();
    let mut worker = asked(
        &fake,
        &FOUND.replace(
            r#""timeout_ms""#,
            r#""verdicts": ["engines"], "timeout_ms""#,
        ),
    );
    let _waits = come(&mut worker, 7);
    let empty = [
        &br#"{"cluster_statuses": [{"name": "engines"}]}"#[..],
        br#"{"cluster_statuses": [{"name": "vllm"}, {"name": "engines"}]}"#,
        br#"{"cluster_statuses": [{"name": "vllm"}, {"name": "engines"}]}"#,
    ];
    for (token, empty) in (0..).zip(empty) {
        worker.tick_after(200);
        worker.answer(token, 200, empty);
        worker.tick();
        let done = fake.done.take();
        let quiet = |line: &String| line.starts_with("context ");
        assert!(done.iter().all(quiet), "{done:?}");
    }
    // A worker that begins with what others have heard waits too.
    let twin = fake.twin();
    let mut late = asked(&twin, FOUND);
    let _waits_too = come(&mut late, 8);
    worker.tick_after(200);
    worker.answer(3, 200, LIST);
    worker.tick();
    late.tick();
    for done in [fake.done.take(), twin.done.take()] {
        assert!(done.contains(&DESTINATION.into()), "{done:?}");
    }
}

#[test]
fn each_pool_is_awaited_for_itself() {
    let fake = Fake::default();
    let mut worker = asked(
        &fake,
        r#"{"pools": [
            {"name": "a", "models": ["a"], "clusters": ["vllm"], "policy": {"name": "round_robin"}},
            {"name": "b", "clusters": ["other"], "policy": {"name": "round_robin"}}
        ], "discovery": {"cluster": "admin", "interval_ms": 1000, "timeout_ms": 500}}"#,
    );
    // More of the one that is awaited for longer than are answered at once.
    let models = (100..240).map(|context| ("b", context));
    let models = models.chain([("a", 300)]);
    let sent = models.map(|(model, context)| come_for(&mut worker, context, model));
    let mut sent: Vec<Stream> = sent.collect();
    let resumed = |done: Vec<String>| done.iter().filter(|line| *line == "resume").count();
    list_comes(&mut worker);
    let done = fake.done.take();
    let last = ["context 300", DESTINATION, "resume", "context 1"];
    assert_eq!(done[done.len() - 4..], last);
    assert_eq!(resumed(done), 1);
    sent.pop().unwrap().closed(&mut worker);
    let other = String::from_utf8_lossy(LIST).replace("vllm", "other");
    worker.tick_after(1_000);
    worker.answer(1, 200, other.as_bytes());
    let rounds = [(); 3].map(|()| {
        worker.tick();
        resumed(fake.done.take())
    });
    assert_eq!(rounds, [128, 12, 0], "so many at once");
}

#[test]
fn a_model_that_nobody_serves_yet_is_waited_for() {
    let fake = Fake::default();
    let mut worker = asked(
        &fake,
        &FOUND.replacen(
            '{',
            r#"{"endpoints": [{"address": "10.0.0.9:80", "models": ["other"]}], "#,
            1,
        ),
    );
    let _waits = come_for(&mut worker, 7, "m");
    assert_eq!(fake.done.take(), [""; 0]);
    list_comes(&mut worker);
    let done = ["context 7", DESTINATION, "resume", "context 1"];
    assert_eq!(fake.done.take(), done);
}

#[test]
fn so_are_those_that_the_watchdog_finds() {
    let fake = Fake::default();
    let json = FOUND.replace("round_robin", "prefix_hash");
    let mut worker = asked(
        &fake,
        &json.replacen('{', r#"{"hold": {"watchdog_ms": 3000}, "#, 1),
    );
    let streams: Vec<Stream> = (0..100).map(|one| come(&mut worker, 10 + one)).collect();
    let refused = refusals(&mut worker, 40);
    assert_eq!(refused[31..36], [32, 32, 32, 4, 0], "{refused:?}");
    drop(streams);
}

/// How many are refused with each of so many ticks.
fn refusals(worker: &mut Worker<Fake>, ticks: usize) -> Vec<usize> {
    let counts = (0..ticks).map(|_| {
        worker.tick_after(100);
        let done = worker.vm.host.done.take();
        let replies = done.iter().filter(|line| line.starts_with("reply 503"));
        replies.count()
    });
    counts.collect()
}

#[test]
fn many_are_refused_a_few_at_a_time() {
    let fake = Fake::default();
    let mut worker = asked(&fake, FOUND);
    let streams: Vec<Stream> = (0..100).map(|one| come(&mut worker, 10 + one)).collect();
    let refused = refusals(&mut worker, 24);
    assert_eq!(refused[19..], [32, 32, 32, 4, 0], "{refused:?}");
    drop(streams);
}

#[test]
fn those_that_waited_and_those_that_the_watchdog_finds_are_counted_together() {
    let fake = Fake::default();
    let json = FOUND.replace("round_robin", "prefix_hash");
    let mut worker = asked(&fake, &json);
    let body = br#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#;
    let early: Vec<Stream> = (0..40).map(|one| come(&mut worker, 10 + one)).collect();
    // By its watchdog, after a quarter of a second.
    for _ in 0..17 {
        worker.tick_after(100);
    }
    fake.buffer_is(Buffer::RequestBody, body);
    let late: Vec<Stream> = (0..40).map(|one| come(&mut worker, 60 + one)).collect();
    let refused = refusals(&mut worker, 7);
    assert_eq!(refused.iter().sum::<usize>(), 80, "{refused:?}");
    assert!(refused.iter().all(|count| *count <= 32), "{refused:?}");
    drop((early, late));
}

#[test]
fn who_cannot_wait_for_a_model_is_told_to_come_again() {
    let fake = Fake::default();
    let json = FOUND.replacen(
        '{',
        r#"{"endpoints": [{"address": "10.0.0.9:80", "models": ["other"]}], "hold": {"max_bytes": 30}, "#,
        1,
    );
    let mut worker = asked(&fake, &json);
    let mut stream = come(&mut worker, 7);
    let body = br#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#;
    fake.buffer_is(Buffer::RequestBody, body);
    let flow = stream.request_body(&mut worker, body.len(), Rest::Open);
    let done = fake.done.take();
    let replied = |line: &String| line.starts_with("reply 503 warmroute_no_endpoint");
    assert!(flow == Flow::Hold && done.iter().any(replied), "{done:?}");
    // Once it is known who there is, nobody serves it for good.
    for _ in 0..20 {
        worker.tick_after(100);
    }
    fake.done.take();
    let mut late = come(&mut worker, 8);
    late.request_body(&mut worker, body.len(), Rest::End);
    let done = fake.done.take();
    let unknown = |line: &String| line.starts_with("reply 404 warmroute_unknown_model");
    assert!(done.iter().any(unknown), "{done:?}");
}

#[test]
fn a_list_that_adds_nobody_ends_the_wait_too() {
    let fake = Fake::default();
    let json = FOUND.replacen(
        '{',
        r#"{"endpoints": [{"address": "10.0.0.1:80", "models": ["other"]}], "#,
        1,
    );
    let mut worker = asked(&fake, &json);
    let _waits = come_for(&mut worker, 7, "m");
    assert_eq!(fake.done.take(), [""; 0]);
    list_comes(&mut worker);
    let done = fake.done.take();
    let unknown = |line: &String| line.starts_with("reply 404 warmroute_unknown_model");
    assert!(done.iter().any(unknown), "{done:?}");
}
