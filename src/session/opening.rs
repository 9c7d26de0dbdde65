//! How a streamed answer begins, and what is done about one that begins with an error.
//!
//! An engine may refuse a streamed request inside a 200, when the headers have long been sent. With
//! `responses.hold_headers` they are held until the first event. An error then becomes an answer that
//! says what it is; anything else goes on as it came.

use super::request::is_encoded;
use super::{Effects, Flight, Flow, Rest, StreamView};
use crate::config::{Config, Toggle};
use crate::reply::Reply;
use crate::tokens::FirstEvent;

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Holds the headers of a streamed answer, if that is wanted.
pub(super) fn hold(
    config: &Config,
    view: &dyn StreamView,
    flight: &mut Flight,
    effects: &mut Effects,
) {
    if config.responses.hold_headers == Toggle::Off || flight.api.is_none() {
        return;
    }
    let kind = view.response_header("content-type").unwrap_or_default();
    let kind = kind.get(..EVENT_STREAM.len()).unwrap_or_default();
    if !kind.eq_ignore_ascii_case(EVENT_STREAM) || view.response_status() != Some(200) {
        return;
    }
    if is_encoded(view.response_header("content-encoding")) {
        return;
    }
    flight.opening = Some(FirstEvent::default());
    // An answer in its place shows it too.
    flight.explanation.clone_from(&effects.response_header);
    effects.flow = Flow::Hold;
}

/// Reads on in an answer that is held. Gives what is to be said in its place, if it begins with an error.
pub(super) fn read(
    flight: &mut Flight,
    chunk: &[u8],
    rest: Rest,
    effects: &mut Effects,
) -> Option<Reply> {
    let first = flight.opening.as_mut()?;
    first.push(chunk);
    if rest == Rest::End {
        first.finish();
    }
    if !first.is_settled() {
        effects.flow = Flow::Hold;
        return None;
    }
    let first = flight.opening.take()?;
    let code = first.error_code()?;
    let text = String::from_utf8_lossy(first.data()?);
    Some(Reply::stream_error(code, text.into_owned()))
}
