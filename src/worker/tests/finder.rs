//! How Envoy is asked for its clusters, and what is said of its answers.

use super::*;

const FOUND: &str = r#"{"clusters": ["vllm"], "scrape": {"cluster": "engines"}, "health": {"path": ""},
    "discovery": {"cluster": "admin", "interval_ms": 1000, "timeout_ms": 500}}"#;
const FAILURES: &str = "warmroute_discovery_failures_total";

/// Envoy's list with one endpoint, and as many bytes of blanks in front of it.
fn list(blanks: usize) -> Vec<u8> {
    let mut text = vec![b' '; blanks];
    text.extend_from_slice(
        br#"{"cluster_statuses": [{"name": "vllm", "host_statuses": [{"address":
            {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}]}]}"#,
    );
    text
}

#[test]
fn a_list_is_read_piece_by_piece_and_all_follow_it() {
    let fake = Fake::default();
    let mut worker = started(&fake, FOUND);
    let twin = fake.twin();
    let mut other = started(&twin, FOUND);
    worker.tick();
    assert_eq!(
        fake.asked.take(),
        [
            "admin 500 ms [:method: GET, :path: /clusters?format=json&filter=%5E(vllm)%24, \
             :authority: localhost]"
        ],
        "and no engine: none is known"
    );
    let list = list((1 << 17) - 10);
    worker.answer(0, 200, &list);
    let piece = 1 << 16;
    let pieces = [
        (0, piece),
        (piece, piece),
        (2 * piece, list.len() - 2 * piece),
    ];
    let read = fake.read.take();
    assert_eq!(
        read,
        pieces.map(|(start, length)| (Buffer::CalloutBody, start, length))
    );
    worker.tick_after(100);
    let asked = fake.asked.take();
    assert!(asked[0].starts_with("engines ") && asked[0].contains(ONE));
    assert!(
        fake.metric("endpoint=.=10.0.0.1:80;.;state=.=warming;.;warmroute_endpoint_state")
            + fake.metric("endpoint=.=10.0.0.1:80;.;state=.=ready;.;warmroute_endpoint_state")
            == 1,
        "its gauges have its name"
    );
    other.tick();
    assert!(other.vm.balancer.endpoints().contains_key(&id(ONE)));
    // A new configuration begins with what the old one knew, before any tick.
    let next = started(&fake.twin(), &FOUND.replace("1000", "2000"));
    assert!(next.vm.balancer.endpoints().contains_key(&id(ONE)));
    assert_eq!((fake.lines.take(), fake.metric(FAILURES)), (vec![], 0));
}

#[test]
fn what_is_wrong_is_said_once_and_so_is_that_it_is_over() {
    let fake = Fake::default();
    let mut worker = started(&fake, FOUND);
    let wrong = |problem: &str| {
        format!("error: discovery through cluster `admin`: {problem}; what was known stays")
    };
    let mut token = 0;
    let mut said = |status: u16, headers: usize, body: &[u8]| {
        worker.tick_after(1_000);
        fake.header_is(Headers::Callout, ":status", &status.to_string());
        fake.buffer_is(Buffer::CalloutBody, body);
        worker.answered(token, headers, body.len());
        token += 1;
        worker.tick();
        fake.lines.take()
    };
    assert_eq!(said(500, 1, b""), [wrong("status 500")]);
    assert_eq!(said(500, 1, b""), [""; 0]);
    assert_eq!(said(500, 0, b""), [wrong("the connection broke")]);
    assert_eq!(
        said(200, 1, b"{}"),
        [wrong("the answer has no cluster_statuses")]
    );
    let over = "info: discovery through cluster `admin` works again";
    assert_eq!(said(200, 1, &list(0)), [over]);
    assert_eq!(said(200, 1, &list(0)), [""; 0]);
    assert_eq!(fake.metric(FAILURES), 4);
}

#[test]
fn neither_a_host_that_would_not_ask_nor_an_answer_that_never_comes_ends_it() {
    let fake = Fake::default();
    let mut worker = started(&fake, FOUND);
    let wrong = |problem: &str| {
        format!("error: discovery through cluster `admin`: {problem}; what was known stays")
    };
    fake.refuses.set(true);
    worker.tick();
    let refused = wrong("Envoy would not ask: BadArgument");
    assert_eq!(fake.lines.take(), [refused]);
    fake.refuses.set(false);
    worker.tick_after(1_000);
    assert_eq!(fake.asked.borrow().len(), 1);
    worker.tick_after(1_001);
    assert_eq!(fake.lines.take(), [wrong("no answer")]);
    worker.tick_after(100);
    assert_eq!(fake.asked.borrow().len(), 2);
    // The late answer is nobody's.
    worker.answer(0, 200, &list(0));
    assert_eq!(fake.read.take(), []);
    worker.answer(1, 200, &list(0));
    let over = "info: discovery through cluster `admin` works again";
    assert_eq!(fake.lines.take(), [over]);
}
