//! What an engine's answer to a question says of its health.

use super::Signal;
use crate::poller::{Answer, Question};

const SLEEPING: &[u8] = b"\"is_sleeping\"";

/// The signal of an answer, with what the engine itself sent, if it did. `None` if it says nothing.
pub fn signal_of(question: Question, answer: &Answer, status: u16, body: &[u8]) -> Option<Signal> {
    match (question, answer) {
        (Question::Metrics, Answer::Report { report, awake, .. }) => Some(Signal::Scraped {
            kv_permille: report.kv_usage_permille,
            awake: *awake,
        }),
        (_, Answer::Refused) => Some(Signal::ScrapeRefused),
        (Question::Metrics, Answer::Silent) => Some(Signal::ScrapeSilent),
        // It has no metrics, but it is there.
        (Question::Metrics, Answer::Unread) => Some(Signal::Alive),
        (Question::Health, Answer::Page) => match status {
            200..300 => Some(Signal::EngineHealthy),
            500.. => Some(Signal::EngineUnhealthy),
            // There is no such page.
            _ => None,
        },
        (Question::Sleeping, Answer::Page) if status == 200 => sleeping(body),
        _ => None,
    }
}

/// Reads `{"is_sleeping": true}`.
fn sleeping(body: &[u8]) -> Option<Signal> {
    let mut parts = body.windows(SLEEPING.len());
    let at = parts.position(|part| part == SLEEPING)?;
    let behind = body.get(at.saturating_add(SLEEPING.len())..)?;
    let value = behind.trim_ascii_start().strip_prefix(b":")?;
    let value = value.trim_ascii_start();
    if value.starts_with(b"true") {
        return Some(Signal::Asleep);
    }
    value.starts_with(b"false").then_some(Signal::Awake)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_says_what_it_says() {
        use Question::{Health, Metrics, Sleeping};
        for (question, answer, status, body, signal) in [
            (Health, Answer::Page, 200, "", Some(Signal::EngineHealthy)),
            (Health, Answer::Page, 503, "", Some(Signal::EngineUnhealthy)),
            (Health, Answer::Page, 500, "", Some(Signal::EngineUnhealthy)),
            (Health, Answer::Page, 404, "", None),
            (Health, Answer::Silent, 504, "", None),
            (Health, Answer::Nothing, 0, "", None),
            (
                Health,
                Answer::Refused,
                503,
                "",
                Some(Signal::ScrapeRefused),
            ),
            (
                Sleeping,
                Answer::Page,
                200,
                r#"{"is_sleeping": true}"#,
                Some(Signal::Asleep),
            ),
            (
                Sleeping,
                Answer::Page,
                200,
                r#"{"is_sleeping":false}"#,
                Some(Signal::Awake),
            ),
            (Sleeping, Answer::Page, 200, r#"{"is_sleeping":1}"#, None),
            (Sleeping, Answer::Page, 200, r#"{"is_sleeping""#, None),
            (Sleeping, Answer::Page, 404, r#"{"is_sleeping":true}"#, None),
            (Metrics, Answer::Silent, 504, "", Some(Signal::ScrapeSilent)),
            (Metrics, Answer::Unread, 404, "", Some(Signal::Alive)),
            (Metrics, Answer::Nothing, 0, "", None),
        ] {
            let found = signal_of(question, &answer, status, body.as_bytes());
            assert_eq!(found, signal, "{question:?} {answer:?} {status} {body}");
        }
    }
}
