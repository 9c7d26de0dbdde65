//! What is known of a body that has not ended.

use super::*;

#[test]
fn a_decision_before_the_end_uses_what_is_there() {
    let long = "z".repeat(200);
    let body = format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"{long}"}}]}}"#);
    let whole = scan(Api::ChatCompletions, &body);
    let early = |body: &str, bytes: usize| {
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &OPTIONS);
        scanner.push(&body.as_bytes()[..bytes]);
        assert!(!scanner.is_settled());
        scanner.finish_early()
    };
    let partial = early(&body, 150);
    assert_eq!(partial.scan, Scan::Partial);
    assert_eq!(partial.model.as_deref(), Some("tiny"));
    assert_eq!(partial.prompt.routing, whole.prompt.routing);
    assert!(whole.prompt.blocks.starts_with(&partial.prompt.blocks));
    let role_last = format!(
        r#"{{"model":"tiny","messages":[{{"content":[{{"text":"{long}"}}],"role":"user"}}]}}"#
    );
    assert_eq!(early(&role_last, 150).prompt.routing, whole.prompt.routing);

    let mut scanner = RequestScanner::new(Api::ChatCompletions, &OPTIONS);
    scanner.push(b"{]");
    assert_eq!(scanner.finish_early().scan, Scan::Malformed);
}

#[test]
fn b5_an_image_that_is_cut_off_counts_as_one() {
    let read = |text: &str| {
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &OPTIONS);
        scanner.push(text.as_bytes());
        scanner.finish_early().prompt
    };
    let image = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"#;
    let only = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{image}"#
    ));
    assert_eq!((only.images, only.text_bytes, only.routing), (1, 0, None));
    let second = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{image}"}}}},{{"type":"text","text":"Hm"}},{image}"#
    ));
    assert_eq!((second.images, second.text_bytes), (2, 2));
    let between = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{image}"}}}},{{"type":"te"#
    ));
    assert_eq!(between.images, 1);
}
