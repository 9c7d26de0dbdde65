//! From the first header to the moment when enough of a request is known: what to wait for.

use super::depart::{depart, refused, unsteered};
use super::{Effects, Event, Holding, Moment, Patience, Rest, State};
use crate::balancer::Balancer;
use crate::config::{OtherPaths, Toggle};
use crate::request::{Api, InferenceRequest, RequestScanner, Scan};
use crate::state::Store;

pub(super) fn begin<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    rest: Rest,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let path = moment.view.request_header(":path");
    let api = path.as_ref().and_then(|path| Api::from_path(path));
    if api.is_none()
        && let Some(path) = path
        && moment.view.request_header(":method").as_deref() == Some(b"GET")
        && let Some(reply) = balancer.models_reply(moment.store, &path)
    {
        return refused(&config, reply, Vec::new());
    }
    if api.is_none() && config.other_paths == OtherPaths::Pass {
        return (State::Over, unsteered(&config, Vec::new()));
    }
    // A method other than POST has no body, or one that the engine will refuse.
    // Who holds answers must know that bodies come while headers are held, which requests show.
    let reads_body = balancer.reads_body() || config.responses.hold_headers == Toggle::On;
    if let Some(api) = api
        && rest == Rest::Open
        && reads_body
    {
        let scanner = RequestScanner::new(api, &config.scan);
        let holding = Holding {
            api,
            scanner,
            held_bytes: 0,
        };
        return (State::Holding(Box::new(holding)), Effects::hold());
    }
    let request = InferenceRequest::unknown(api.unwrap_or(Api::ChatCompletions), Scan::Unread);
    let parsed = api.map(|_| Event::Parsed(request.scan));
    depart(
        balancer,
        moment,
        api,
        &request,
        parsed.into_iter().collect(),
        Patience::Waits,
    )
}

/// Decides on a request that needs no reading.
pub(super) fn begin_read<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    request: &InferenceRequest,
) -> (State, Effects) {
    let events = vec![Event::Parsed(request.scan)];
    let api = Some(request.api);
    depart(balancer, moment, api, request, events, Patience::Waits)
}

pub(super) fn read<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut held: Box<Holding>,
    chunk: &[u8],
    rest: Rest,
) -> (State, Effects) {
    held.scanner.push(chunk);
    held.held_bytes = held.held_bytes.saturating_add(chunk.len() as u64);
    let enough = held.scanner.is_settled() || held.held_bytes >= balancer.config().hold_max_bytes;
    if rest == Rest::End || enough {
        settle(balancer, moment, *held, rest)
    } else {
        (State::Holding(held), Effects::hold())
    }
}

/// Decides with what is known of the body by now.
pub(super) fn settle<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    held: Holding,
    rest: Rest,
) -> (State, Effects) {
    let mut request = match rest {
        Rest::Open if held.held_bytes == 0 => InferenceRequest::unknown(held.api, Scan::Unread),
        Rest::Open => held.scanner.finish_early(),
        Rest::End => held.scanner.finish(),
    };
    if request.scan == Scan::Malformed && is_encoded(moment.view.request_header("content-encoding"))
    {
        request.scan = Scan::Encoded;
    }
    let events = vec![Event::Parsed(request.scan)];
    let api = Some(held.api);
    depart(balancer, moment, api, &request, events, Patience::Waits)
}

/// Whether a `content-encoding` says that nobody here can read the body.
pub(super) fn is_encoded(content_encoding: Option<Vec<u8>>) -> bool {
    content_encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity"))
}
