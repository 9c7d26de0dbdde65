//! What became of a request, and what that says of its endpoint: by the answer, and by Envoy's words.

use super::{Failure, Flight, StreamView};
use crate::health::Signal;
use crate::tokens::ResponseReader;

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The response came to its end.
    Complete,
    /// The stream is gone before that: the client left, or the endpoint did.
    Broken,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An answer.
    Good,
    /// None, or no good one, and the endpoint is to blame.
    Failed(Failure),
    /// No good answer, and nobody's failure: the client's error, or a limit of Envoy's own.
    Refused,
}

/// By what the answer holds; without output, by its status and by Envoy's words.
pub(super) fn outcome(reader: &ResponseReader, view: &dyn StreamView) -> Outcome {
    let error = reader.error_code();
    // Output is proof enough; the host is asked for the status only where there is none.
    if error.is_none() && (reader.events() > 0 || reader.usage().is_some()) {
        return Outcome::Good;
    }
    let status = view.response_status().unwrap_or(0);
    // Envoy may have said so itself: it had no answer, or a limit of its own.
    if status == 429 || status >= 500 {
        match view.response_details() {
            Some(details) if details == b"via_upstream" => {}
            Some(details) if blames_endpoint(&details) => {
                return Outcome::Failed(Failure::Unreachable);
            }
            _ => return Outcome::Refused,
        }
    }
    match (status, error) {
        (429 | 503, _) | (200, Some(429 | 503)) => Outcome::Failed(Failure::Overloaded),
        (200, Some(500..)) => Outcome::Failed(Failure::StreamError),
        (500.., _) => Outcome::Failed(Failure::ServerError),
        (200..300, None) => Outcome::Good,
        _ => Outcome::Refused,
    }
}

/// What became of a request says this of its endpoint's health. Client errors, Envoy's own limits, and clients
/// that leave before there is output, say nothing.
pub(super) fn signal(
    flight: &Flight,
    view: &dyn StreamView,
    ending: Ending,
    outcome: Outcome,
) -> Option<Signal> {
    match outcome {
        Outcome::Good => {
            let reader = &flight.reader;
            let output = reader.events() > 0 || reader.usage().is_some();
            (output || ending == Ending::Complete).then_some(Signal::Good)
        }
        Outcome::Failed(Failure::Overloaded) => Some(Signal::Overloaded {
            retry_after_ms: flight.retry_after_ms,
        }),
        Outcome::Failed(Failure::Unreachable) => {
            let details = view.response_details();
            Some(match details.is_some_and(|words| is_refusal(&words)) {
                true => Signal::Refused,
                false => Signal::Failed,
            })
        }
        Outcome::Failed(_) => Some(Signal::Failed),
        Outcome::Refused => None,
    }
}

/// What to think of those whom Envoy tried before the last one: they have failed, nobody knows how. Where
/// the last one says that it is too busy, so were they, most likely: a fleet that is full must not
/// be taken to be dead.
pub(super) fn passed_over(view: &dyn StreamView) -> Signal {
    let is_busy = matches!(view.response_status(), Some(429 | 503));
    match is_busy && is_the_endpoints(view) {
        true => Signal::Overloaded {
            retry_after_ms: None,
        },
        false => Signal::Blamed,
    }
}

/// Whether the answer is the endpoint's, and not Envoy's own.
pub(super) fn is_the_endpoints(view: &dyn StreamView) -> bool {
    view.response_details()
        .is_some_and(|details| details == b"via_upstream")
}

/// Whether Envoy says that a stream is gone because of its endpoint.
pub(super) fn broke_off(view: &dyn StreamView) -> bool {
    let details = view.response_details();
    details.is_some_and(|details| blames_endpoint(&details))
}

/// Whether Envoy's words say that the endpoint broke off, or let a timeout of the route pass. A
/// request that Envoy's own limits kept back (`overflow`) never came to the endpoint.
fn blames_endpoint(details: &[u8]) -> bool {
    let timed_out = details == b"response_timeout" || details.starts_with(b"upstream_per_try");
    let reset = details.starts_with(b"upstream_reset") && !details.ends_with(b"{overflow}");
    timed_out || reset
}

/// Whether Envoy's words say that nobody listens at the endpoint: no timeout, and no limit of Envoy's.
fn is_refusal(details: &[u8]) -> bool {
    const REFUSED: &[u8] = b"_error:_Connection_refused";
    details.starts_with(b"upstream_reset_before_response_started{")
        && details.windows(REFUSED.len()).any(|part| part == REFUSED)
}
