//! Streams, callback by callback.

use super::*;

const CHAT: &[u8] =
    br#"{"model":"m","messages":[{"role":"user","content":"twelve bytes"}],"max_tokens":9}"#;
const EVENT: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const DESTINATION: &str = "set Request x-envoy-original-dst-host: 10.0.0.1:80";

/// A worker that a chat comes to.
fn asked(fake: &Fake, rest: &str) -> Worker<Fake> {
    let worker = one(fake, rest);
    fake.header_is(Headers::Request, ":method", "POST");
    fake.header_is(Headers::Request, ":path", "/v1/chat/completions");
    worker
}

/// A stream whose request is held.
fn held(worker: &mut Worker<Fake>, context: u32) -> Stream {
    let mut stream = Stream::new(context);
    let flow = stream.request_headers(worker, Rest::Open);
    assert!(flow == Flow::Hold && stream.is_holding());
    stream
}

/// A stream whose request was held and has been let go.
fn sent(worker: &mut Worker<Fake>) -> Stream {
    let mut stream = held(worker, 7);
    worker.vm.host.buffer_is(Buffer::RequestBody, CHAT);
    let flow = stream.request_body(worker, CHAT.len(), Rest::End);
    assert_eq!(flow, Flow::Continue);
    worker.vm.host.read.take();
    stream
}

/// A streamed answer begins.
fn answers(stream: &mut Stream, worker: &mut Worker<Fake>) -> Flow {
    let host = &worker.vm.host;
    host.header_is(Headers::Response, ":status", "200");
    host.header_is(Headers::Response, "content-type", "text/event-stream");
    stream.response_headers(worker, Rest::Open)
}

#[test]
fn only_what_is_new_is_read_while_a_request_is_held() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    let mut stream = held(&mut worker, 7);
    fake.buffer_is(Buffer::RequestBody, CHAT);
    for (size, rest, flow) in [
        (0, Rest::Open, Flow::Hold),
        (30, Rest::Open, Flow::Hold),
        (30, Rest::Open, Flow::Hold),
        (CHAT.len(), Rest::End, Flow::Continue),
        (CHAT.len() + 9, Rest::End, Flow::Continue),
    ] {
        assert_eq!(stream.request_body(&mut worker, size, rest), flow, "{size}");
    }
    let read = [(0, 30), (30, CHAT.len() - 30)];
    assert_eq!(
        fake.read.take(),
        read.map(|(start, length)| (Buffer::RequestBody, start, length))
    );
    assert_eq!(fake.done.take(), [DESTINATION]);
    let name = "outcome=.=complete;.;warmroute_parse_total";
    worker.tick();
    assert_eq!(fake.metric(name), 1, "the pieces were one body");
}

#[test]
fn an_answer_that_passes_counts_from_its_beginning_with_every_piece() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    let mut stream = sent(&mut worker);
    assert_eq!(answers(&mut stream, &mut worker), Flow::Continue);
    fake.buffer_is(Buffer::ResponseBody, EVENT);
    for size in [0, 5, 9] {
        let flow = stream.response_body(&mut worker, size, Rest::Open);
        assert_eq!(flow, Flow::Continue);
    }
    let read = [(0, 5), (0, 9)];
    assert_eq!(
        fake.read.take(),
        read.map(|(start, length)| (Buffer::ResponseBody, start, length))
    );
}

#[test]
fn an_answer_that_is_held_counts_on_until_it_passes() {
    let fake = Fake::default();
    let mut worker = asked(&fake, r#", "responses": {"hold_headers": true}"#);
    let mut stream = sent(&mut worker);
    assert_eq!(answers(&mut stream, &mut worker), Flow::Hold);
    let whole = EVENT.len();
    for (size, flow) in [
        (5, Flow::Hold),
        (whole, Flow::Continue),
        (8, Flow::Continue),
    ] {
        fake.buffer_is(Buffer::ResponseBody, EVENT);
        let found = stream.response_body(&mut worker, size, Rest::Open);
        assert_eq!(found, flow, "{size}");
    }
    let read = [(0, 5), (5, whole - 5), (0, 8)];
    assert_eq!(
        fake.read.take(),
        read.map(|(start, length)| (Buffer::ResponseBody, start, length))
    );
}

#[test]
fn no_answer_is_held_where_no_body_callback_ever_came() {
    let fake = Fake::default();
    let mut worker = asked(&fake, r#", "responses": {"hold_headers": true}"#);
    let mut stream = held(&mut worker, 7);
    for _ in 0..5 {
        worker.tick_after(100);
    }
    assert!(!stream.is_holding(), "the watchdog let it go");
    assert_eq!(answers(&mut stream, &mut worker), Flow::Continue);
    assert_eq!(worker.in_flight().requests, 1, "it goes on");
}

#[test]
fn every_end_gives_back_once_and_what_comes_after_it_is_nothing() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    let mut streams = [held(&mut worker, 6), sent(&mut worker), sent(&mut worker)];
    assert_eq!(worker.in_flight().requests, 2);
    answers(&mut streams[2], &mut worker);
    streams[2].response_trailers(&mut worker);
    assert_eq!(worker.in_flight().requests, 1);
    for stream in &mut streams {
        stream.closed(&mut worker);
        stream.closed(&mut worker);
    }
    assert!(worker.in_flight().is_zero());
    fake.done.take();
    for stream in &mut streams {
        assert_eq!(
            stream.request_body(&mut worker, 9, Rest::End),
            Flow::Continue
        );
        assert_eq!(
            stream.response_body(&mut worker, 9, Rest::End),
            Flow::Continue
        );
    }
    assert_eq!((fake.done.take(), fake.read.take()), (vec![], vec![]));
}

#[test]
fn trailers_end_a_held_request() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    let mut stream = held(&mut worker, 7);
    assert_eq!(stream.request_trailers(&mut worker), Flow::Continue);
    assert_eq!(fake.done.take(), [DESTINATION]);
}

#[test]
fn who_waits_for_a_body_that_never_comes_goes_by_load_and_the_log_says_what_to_set() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    let streams = [5, 6, 7].map(|context| held(&mut worker, context));
    fake.gone.set(Some(6));
    for _ in 0..4 {
        worker.tick_after(100);
    }
    assert_eq!(
        fake.done.take(),
        [""; 0],
        "a limit of 250 ms, begun within a tick"
    );
    worker.tick_after(100);
    let expected = [
        "context 5",
        DESTINATION,
        "resume",
        "context 6",
        "context 7",
        DESTINATION,
        "resume",
        "context 1",
    ];
    assert_eq!(fake.done.take(), expected);
    assert_eq!(
        fake.lines.take(),
        [
            "error: no body callback within 250 ms: 3 requests go by load alone. Set \
          allow_on_headers_stop_iteration: true in the Wasm PluginConfig (Envoy 1.35 or later)"
        ]
    );
    assert_eq!(
        streams.map(|stream| stream.is_holding()),
        [false, true, false]
    );
    worker.tick_after(100);
    assert_eq!(fake.metric("warmroute_watchdog_total"), 2);
    assert_eq!(fake.done.take(), [""; 0]);
}

#[test]
fn who_leaves_first_is_not_let_go() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    held(&mut worker, 5).closed(&mut worker);
    for _ in 0..10 {
        worker.tick_after(100);
    }
    assert_eq!((fake.done.take(), fake.lines.take()), (vec![], vec![]));
}

#[test]
fn a_request_that_the_watchdog_answers_is_not_resumed() {
    let fake = Fake::default();
    let rest = r#", "saturation": {"max_requests": 1}"#;
    let mut worker = asked(&fake, rest);
    let _streams = [5, 6].map(|context| held(&mut worker, context));
    for _ in 0..5 {
        worker.tick_after(100);
    }
    let done = fake.done.take();
    assert_eq!(done.iter().filter(|line| *line == "resume").count(), 1);
    assert!(
        done.iter().any(|line| line.starts_with("reply 429 ")),
        "{done:?}"
    );
}

#[test]
fn nobody_is_let_go_early_once_bodies_come() {
    let fake = Fake::default();
    let mut worker = asked(&fake, "");
    let stream = held(&mut worker, 5);
    sent(&mut worker).closed(&mut worker);
    fake.done.take();
    for _ in 0..100 {
        worker.tick_after(100);
    }
    assert!(stream.is_holding());
    assert_eq!((fake.done.take(), fake.lines.take()), (vec![], vec![]));
}

#[test]
fn refused_destinations_are_told_once_a_tick() {
    let fake = Fake::default();
    let mut worker = asked(&fake, r#", "policy": {"name": "random"}"#);
    fake.refuses.set(true);
    for context in [5, 6] {
        Stream::new(context).request_headers(&mut worker, Rest::Open);
    }
    worker.tick();
    worker.tick();
    let line = "error: the host refused the destination of 2 requests";
    assert_eq!(fake.lines.take(), [line]);
}
