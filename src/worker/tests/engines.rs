//! What engines are asked, and what is read of their answers.

use super::*;
use crate::scrape::prometheus::MAX_TEXT_BYTES;

const SCRAPED: &str = r#", "scrape": {"cluster": "engines"}, "health": {"path": ""}"#;
const FAILURES: &str = "endpoint=.=10.0.0.1:80;.;warmroute_scrape_failures_total";

/// A page of an engine that started at this second.
fn page(start_s: u64) -> String {
    format!(
        "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n\
         process_start_time_seconds {start_s}\n"
    )
}

#[test]
fn every_engine_is_asked_by_its_address_through_the_cluster() {
    let fake = Fake::default();
    let mut worker = one(&fake, r#", "scrape": {"cluster": "engines"}"#);
    worker.tick();
    let at = |path: &str| {
        format!(
            "engines 800 ms [:method: GET, :path: {path}, :authority: {ONE}, \
             x-envoy-original-dst-host: {ONE}]"
        )
    };
    assert_eq!(fake.asked.take(), [at("/metrics"), at("/health")]);
    worker.tick_after(100);
    assert_eq!(fake.asked.take(), [""; 0]);
}

#[test]
fn without_scrape_nobody_is_asked() {
    let fake = Fake::default();
    let mut worker = one(&fake, "");
    worker.tick();
    assert_eq!(fake.asked.take(), [""; 0]);
    // An answer to nobody knows what.
    worker.answer(0, 200, b"vllm:num_requests_running 3\n");
    assert_eq!(fake.read.take(), []);
}

#[test]
fn a_host_that_would_not_ask_is_complained_of_once_and_asked_again() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    fake.refuses.set(true);
    worker.tick();
    worker.tick_after(1_000);
    let lines = fake.lines.take();
    assert_eq!(
        lines,
        ["error: no scrape through cluster `engines`: BadArgument"]
    );
    assert_eq!(fake.metric(FAILURES), 2);
    fake.refuses.set(false);
    worker.tick_after(1_000);
    assert_eq!(fake.asked.borrow().len(), 1);
}

#[test]
fn no_more_is_read_of_an_answer_than_is_of_use() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    let body = vec![b'\n'; MAX_TEXT_BYTES + 1];
    for (token, (status, expected)) in [
        (200, Some(MAX_TEXT_BYTES)),
        (503, Some(512)),
        (504, Some(512)),
        (404, None),
        (500, None),
    ]
    .into_iter()
    .enumerate()
    {
        worker.tick_after(1_000);
        worker.answer(token as u32, status, &body);
        let expected = expected.map(|length| (Buffer::CalloutBody, 0, length));
        assert_eq!(fake.read.take(), Vec::from_iter(expected), "{status}");
    }
    worker.tick_after(1_000);
    // The last status is still there to be read, but the connection broke.
    worker.answered(5, 0, 7);
    assert_eq!(fake.read.take(), []);
    worker.tick();
    assert_eq!(fake.metric(FAILURES), 6, "none of them was a report");
}

#[test]
fn an_answer_is_taken_once() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    worker.tick();
    worker.answer(0, 200, page(1).as_bytes());
    assert_eq!(fake.read.take().len(), 1);
    worker.answer(0, 200, page(1).as_bytes());
    worker.answer(7, 200, page(1).as_bytes());
    assert_eq!(fake.read.take(), []);
}

#[test]
fn a_report_is_for_all_workers_and_a_restart_is_counted() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    let other = fake.twin();
    let mut other = one(&other, SCRAPED);
    for (token, start_s) in [(0, 100), (1, 100), (2, 500)] {
        worker.tick_after(1_000);
        worker.answer(token, 200, page(start_s).as_bytes());
    }
    worker.tick();
    let name = "endpoint=.=10.0.0.1:80;.;warmroute_engine_restarts_total";
    assert_eq!(fake.metric(name), 1);
    assert_eq!(fake.metric(FAILURES), 0);
    other.tick_after(3_000);
    let report = other.vm.balancer.reports()[&id(ONE)];
    assert_eq!((report.running, report.waiting), (3, 2));
}

#[test]
fn a_refused_scrape_is_told_as_what_it_does_to_the_endpoint() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    let refused = b"upstream connect error. reset reason: remote connection failure";
    for token in 0..8 {
        worker.tick_after(1_000);
        worker.answer(token, 503, refused);
    }
    worker.tick();
    let lines = fake.lines.take();
    assert_eq!(
        lines,
        [format!("info: endpoint {ONE}: ready -> resting (refused)")]
    );
}

#[test]
fn a_list_of_models_is_what_the_engine_serves() {
    let fake = Fake::default();
    let rest = r#", "scrape": {"cluster": "engines"}, "health": {"path": ""}, "models": {}"#;
    let mut worker = one(&fake, rest);
    worker.tick();
    let asked = fake.asked.borrow().clone();
    let is_list = |line: &String| line.contains(":path: /v1/models,");
    let token = asked.iter().position(is_list).unwrap();
    let list = br#"{"object": "list", "data": [{"id": "llama", "object": "model"}]}"#;
    worker.answer(token as u32, 200, list);
    worker.tick();
    fake.header_is(Headers::Request, ":method", "GET");
    fake.header_is(Headers::Request, ":path", "/v1/models");
    Stream::new(7).request_headers(&mut worker, Rest::End);
    let done = fake.done.take();
    let reply = done.last().unwrap();
    assert!(
        reply.starts_with("reply 200 warmroute_models") && reply.contains("llama"),
        "{done:?}"
    );
}
