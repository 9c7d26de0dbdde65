//! From the response headers to the end of the stream: who served, how fast, and giving back.

use super::{
    Answer, Effects, Event, Failure, Flight, Input, Moment, Origin, Response, Rest, State,
    StreamView,
};
use crate::balancer::Balancer;
use crate::config::{SteeringMode, Toggle};
use crate::endpoint::EndpointId;
use crate::state::Store;
use crate::tokens::ResponseReader;

pub(super) fn respond<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Box<Flight>,
    input: Input<'_>,
) -> (State, Effects) {
    let mut effects = Effects::pass();
    let ended = match input {
        Input::ResponseHeaders(rest) => {
            response_headers(balancer, moment, &mut flight, &mut effects);
            rest == Rest::End
        }
        Input::ResponseBody(chunk, rest) => {
            response_chunk(balancer, moment, &mut flight, chunk, rest);
            rest == Rest::End
        }
        Input::ResponseTrailers => true,
        Input::Closed => {
            abandon(balancer, moment, *flight, &mut effects);
            return (State::Over, effects);
        }
        _ => false,
    };
    if ended {
        finish(balancer, moment, *flight, &mut effects);
        return (State::Over, effects);
    }
    (State::Flight(flight), effects)
}

fn response_headers<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    effects: &mut Effects,
) {
    let view = moment.view;
    let status = view
        .response_header(":status")
        .and_then(|status| std::str::from_utf8(&status).ok()?.parse().ok())
        .unwrap_or(0_u16);
    let content_type = view.response_header("content-type").unwrap_or_default();
    let reader = ResponseReader::for_content_type(&content_type);
    let streamed = if content_type.starts_with(b"text/event-stream") {
        Toggle::On
    } else {
        Toggle::Off
    };
    let origin = origin(status, view);
    flight.response = Some(Response {
        status,
        origin,
        streamed,
        reader,
    });
    effects.response_header = flight.explanation.take();

    // In the other modes every attempt goes to the one endpoint that was named.
    if balancer.config().steering == SteeringMode::OverrideHost {
        retried(balancer, moment, flight, effects);
    }
}

/// Moves the load to whom Envoy turned to in the end: the next of the list, or its own fallback.
fn retried<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    effects: &mut Effects,
) {
    let Some(mut reservation) = flight.reservation.take() else {
        return;
    };
    let address = moment.view.upstream_address();
    if let Some(address) = address.and_then(|address| String::from_utf8(address).ok()) {
        let now_ms = moment.now_ms();
        reservation = balancer.served_by(moment.store, now_ms, reservation, flight.pool, &address);
    }
    let retries = moment.view.attempts().unwrap_or(1).saturating_sub(1);
    if retries > 0 {
        let endpoint = reservation.endpoint();
        effects.events.push(Event::Retried { endpoint, retries });
    }
    flight.reservation = Some(reservation);
}

/// Only a 5xx may be Envoy's own word on a silent endpoint; other answers need no second look.
fn origin(status: u16, view: &dyn StreamView) -> Origin {
    if status < 500 {
        return Origin::Engine;
    }
    match view.response_details() {
        Some(details) if details == b"via_upstream" => Origin::Engine,
        Some(details) if blames_endpoint(&details) => Origin::NoAnswer,
        _ => Origin::Envoy,
    }
}

/// Whether Envoy's words say that the endpoint broke off, or let a timeout of the route pass. A
/// request that Envoy's own limits kept back (`overflow`) never came to the endpoint.
fn blames_endpoint(details: &[u8]) -> bool {
    let timed_out = details == b"response_timeout" || details.starts_with(b"upstream_per_try");
    let reset = details.starts_with(b"upstream_reset") && !details.ends_with(b"{overflow}");
    timed_out || reset
}

fn response_chunk<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    chunk: &[u8],
    rest: Rest,
) {
    if let Some(response) = &mut flight.response {
        response.reader.push(chunk);
    }
    if chunk.is_empty() || flight.first_chunk_us.is_some() {
        return;
    }
    // Response headers of a stream come before its prefill; the first chunk is the sign.
    flight.first_chunk_us = Some(moment.now_us());
    if rest == Rest::Open
        && let Some(reservation) = &mut flight.reservation
    {
        balancer.prefill_done(moment.store, moment.now_ms(), reservation);
    }
}

/// The response came to its end.
fn finish<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Flight,
    effects: &mut Effects,
) {
    let Some(reservation) = flight.reservation.take() else {
        return;
    };
    let endpoint = reservation.endpoint();
    balancer.complete(moment.store, moment.now_ms(), reservation);
    let Some(mut response) = flight.response.take() else {
        return;
    };
    response.reader.finish();
    let failure = match (
        response.origin,
        response.status,
        response.reader.error_code(),
    ) {
        (Origin::NoAnswer, ..) => Some(Failure::Unreachable),
        (Origin::Envoy, ..) => None,
        (Origin::Engine, 429 | 503, _) | (Origin::Engine, 200, Some(429 | 503)) => {
            Some(Failure::Overloaded)
        }
        (Origin::Engine, 200, Some(500..)) => Some(Failure::StreamError),
        (Origin::Engine, 500.., _) => Some(Failure::ServerError),
        (Origin::Engine, ..) => None,
    };
    if let Some(failure) = failure {
        effects.events.push(Event::Failed { endpoint, failure });
    }
    if response.origin == Origin::Engine {
        let good = response.status == 200 && response.reader.error_code().is_none();
        effects.events.push(Event::Answered(Answer {
            endpoint,
            e2e_us: good.then(|| moment.now_us().saturating_sub(flight.started_us)),
            ..answer(endpoint, &flight, &response, moment.now_us())
        }));
    }
}

/// What is known of the answer apart from its total time.
fn answer(endpoint: EndpointId, flight: &Flight, response: &Response, now_us: u64) -> Answer {
    let usage = response.reader.usage();
    let good = response.status == 200
        && response.reader.error_code().is_none()
        && response.streamed == Toggle::On;
    let first_us = flight.first_chunk_us.filter(|_| good);
    let output_tokens = usage.map_or(response.reader.events(), |usage| usage.completion_tokens);
    Answer {
        endpoint,
        ttft_us: first_us.map(|first_us| first_us.saturating_sub(flight.started_us)),
        e2e_us: None,
        tpot_us: first_us
            .filter(|_| output_tokens >= 2)
            .map(|first_us| now_us.saturating_sub(first_us) / (output_tokens - 1)),
        usage,
    }
}

/// The stream is gone before the response came to its end: the client left, or the endpoint did.
fn abandon<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Flight,
    effects: &mut Effects,
) {
    let Some(reservation) = flight.reservation.take() else {
        return;
    };
    let endpoint = reservation.endpoint();
    balancer.complete(moment.store, moment.now_ms(), reservation);
    let broken = moment
        .view
        .response_details()
        .is_some_and(|details| blames_endpoint(&details));
    if broken {
        effects.events.push(Event::Failed {
            endpoint,
            failure: Failure::BrokenStream,
        });
    }
    if let Some(mut response) = flight.response.take() {
        response.reader.finish();
        let answer = Answer {
            tpot_us: None,
            ..answer(endpoint, &flight, &response, moment.now_us())
        };
        effects.events.push(Event::Answered(answer));
    }
}
