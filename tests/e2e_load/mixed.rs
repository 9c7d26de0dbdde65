//! Requests that end in every way there is.
// The figures use a part of it.
#![allow(dead_code)]
// As in a test, to panic is a way to fail.
#![allow(clippy::expect_used, clippy::indexing_slicing)]

use crate::decision::{Decision, HEADER, chat, explained, with};
use crate::support::client::{Answer, Call, HttpClient};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::{Fleet, FleetOptions, patient};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

/// Replicas that answer; one more endpoint refuses connections.
const ALIVE: usize = 4;
const CONCURRENT: usize = 64;
/// Chosen by this header, some requests meet a route of their own.
const CASE: &str = "x-case";
const BUFFER_BYTES: u32 = 64 << 10;
const TOO_LARGE_BYTES: usize = 300 << 10;

/// A way to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Whole,
    Streamed,
    /// The engine answers with this status.
    Status(u16),
    /// Envoy finds the body too large to hold, over HTTP/1.1. HTTP/2 has larger buffers, and the
    /// engine finds no messages in it.
    TooLarge,
    /// The engine resets the connection instead of answering.
    ResetBeforeHeaders,
    ResetMidStream,
    ResetMidBody,
    /// The client leaves while it sends.
    LeaveWhileSending,
    LeaveBeforeHeaders,
    /// The client leaves while the stream is quiet.
    LeaveQuietStream,
    /// The client leaves while chunks come.
    LeaveBusyStream,
    /// Envoy answers by itself.
    LocalReply,
    /// Envoy's patience ends.
    Timeout,
    /// The engine reports an error inside a stream.
    ErrorInStream(u16),
    /// A stream is answered by one JSON error.
    JsonError,
    /// A status on which Envoy tries other endpoints, if the mode has others.
    RetriedStatus,
}

/// Every way, the common ones more often.
const ENDINGS: [Ending; 26] = [
    Ending::Whole,
    Ending::Streamed,
    Ending::Status(400),
    Ending::LeaveQuietStream,
    Ending::Whole,
    Ending::Status(413),
    Ending::ResetBeforeHeaders,
    Ending::Streamed,
    Ending::Status(429),
    Ending::TooLarge,
    Ending::ResetMidStream,
    Ending::Status(500),
    Ending::LeaveWhileSending,
    Ending::Whole,
    Ending::LeaveBeforeHeaders,
    Ending::Status(503),
    Ending::LocalReply,
    Ending::Streamed,
    Ending::ResetMidBody,
    Ending::Timeout,
    Ending::LeaveBusyStream,
    Ending::ErrorInStream(500),
    Ending::RetriedStatus,
    Ending::ErrorInStream(503),
    Ending::JsonError,
    Ending::Status(404),
];

/// What all requests came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests sent.
    pub requests: u64,
    /// Those of which the filter cannot have seen enough to pick.
    pub without_pick: u64,
    /// Those that ended so early that there may have been no pick.
    pub perhaps_without_pick: u64,
    /// Those that Envoy answered because the endpoint refuses connections.
    pub refused: u64,
    /// Those that Envoy answered because it could not hold the body.
    pub too_large: u64,
}

/// How a request ended, apart from the way it was meant to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    AsMeant,
    Refused,
    TooLarge,
}

/// Starts the fleet, with one endpoint more that refuses connections.
pub async fn start(mode: Mode, workers: u32) -> Result<Fleet, String> {
    let options: FleetOptions = explained(mode, workers, ALIVE + 1);
    let mut options = options.plugin(json!({ "health": patient() }));
    options.adjust = routes;
    let mut fleet = Fleet::try_start(options).await?;
    fleet.stop(ALIVE).await;
    Ok(fleet)
}

/// Gives some requests a route of their own, and makes Envoy hold less.
fn routes(config: &mut EnvoyConfig) {
    let listener = &mut config.0["static_resources"]["listeners"][0];
    listener["per_connection_buffer_limit_bytes"] = json!(BUFFER_BYTES);
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    host["request_body_buffer_limit"] = json!(BUFFER_BYTES);
    let routes = &mut host["routes"];
    let mut shipped = routes[0].clone();
    if let Some(policy) = shipped.pointer_mut("/route/retry_policy") {
        let on = policy["retry_on"].as_str().unwrap_or_default();
        policy["retry_on"] = json!(format!("{on},retriable-status-codes"));
        policy["retriable_status_codes"] = json!([502]);
    }
    let of_case = |case: &str| {
        let header = json!({"name": CASE, "string_match": {"exact": case}});
        json!({"prefix": "/", "headers": [header]})
    };
    let mut impatient = shipped.clone();
    impatient["match"] = of_case("timeout");
    impatient["route"]["timeout"] = json!("0.2s");
    let local = json!({"match": of_case("local_reply"), "direct_response": {"status": 418}});
    *routes = json!([local, impatient, shipped]);
}

/// Sends `requests` requests, many at a time, and checks how each one ends for its client.
pub async fn run(fleet: &Fleet, clients: &[HttpClient], requests: u64) -> Result<Tally, String> {
    let alive = fleet.endpoints();
    let endings = (0..requests).zip(ENDINGS.iter().cycle());
    let mut ends = futures_util::stream::iter(endings)
        .map(|(number, ending)| {
            // Shifted by one in each round of the endings, so that each meets every client.
            let turn = number as usize + number as usize / ENDINGS.len();
            one(&clients[turn % clients.len()], *ending, number, &alive)
        })
        .buffer_unordered(CONCURRENT);
    let mut tally = Tally::default();
    while let Some(end) = ends.next().await {
        let (ending, end) = end?;
        tally.requests += 1;
        tally.refused += u64::from(end == End::Refused);
        tally.too_large += u64::from(end == End::TooLarge);
        match ending {
            Ending::LeaveWhileSending => tally.without_pick += 1,
            Ending::TooLarge | Ending::LeaveBeforeHeaders => tally.perhaps_without_pick += 1,
            _ => {}
        }
    }
    Ok(tally)
}

/// Sends one request and checks how it ends.
async fn one(
    client: &HttpClient,
    ending: Ending,
    number: u64,
    alive: &[String],
) -> Result<(Ending, End), String> {
    let call = call(ending, number);
    let end = match ending {
        Ending::LeaveBeforeHeaders | Ending::LeaveWhileSending => {
            // Whatever comes within this time is dropped with the rest.
            let _ = tokio::time::timeout(Duration::from_millis(40), client.send(call)).await;
            Ok(End::AsMeant)
        }
        Ending::LeaveQuietStream | Ending::LeaveBusyStream => leave(client, call, alive).await,
        _ => {
            let answer = client.send(call).await;
            let refused =
                |answer: &Answer| is_refused(answer.status, &answer.header(HEADER), alive);
            match answer {
                // Meant to be a 503, so that it makes no difference.
                answer if expected(ending) == 503 => check(ending, answer).map(|()| End::AsMeant),
                // Envoy has not kept so much of it that it could try elsewhere.
                Ok(answer) if ending == Ending::TooLarge && refused(&answer) => Ok(End::AsMeant),
                Ok(answer) if refused(&answer) => Ok(End::Refused),
                Ok(answer) if ending == Ending::TooLarge && answer.status == 413 => {
                    Ok(End::TooLarge)
                }
                // The connection closed under the client's hands, before it could read the answer.
                Err(_) if ending == Ending::TooLarge => Ok(End::TooLarge),
                // The last of its three tries came to the one that refuses.
                Ok(answer) if ending == Ending::RetriedStatus && answer.status == 503 => {
                    ranks_refusing(&answer.header(HEADER), alive)
                }
                answer => check(ending, answer).map(|()| End::AsMeant),
            }
        }
    };
    match end {
        Ok(end) => Ok((ending, end)),
        Err(why) => Err(format!("request {number}, {ending:?}: {why}")),
    }
}

/// Leaves after the first chunk.
async fn leave(client: &HttpClient, call: Call, alive: &[String]) -> Result<End, String> {
    let mut stream = client.open(call).await?;
    if is_refused(stream.status, &stream.header(HEADER), alive) {
        return Ok(End::Refused);
    }
    if stream.status != 200 {
        return Err(format!("status {}", stream.status));
    }
    stream.next().await.ok_or("no first chunk")??;
    Ok(End::AsMeant)
}

/// Envoy's 503 on behalf of the endpoint that refuses connections.
fn is_refused(status: u16, decision: &str, alive: &[String]) -> bool {
    status == 503
        && Decision::parse(decision).is_ok_and(|decision| !alive.contains(&decision.endpoint))
}

fn ranks_refusing(decision: &str, alive: &[String]) -> Result<End, String> {
    let decision = Decision::parse(decision)?;
    match decision.ranked.iter().all(|ranked| alive.contains(ranked)) {
        true => Err(format!("status 503 from one of {:?}", decision.ranked)),
        false => Ok(End::AsMeant),
    }
}

fn call(ending: Ending, number: u64) -> Call {
    let fault = match ending {
        Ending::Status(status) => format!("status={status}"),
        Ending::RetriedStatus => "status=502".to_owned(),
        Ending::ResetBeforeHeaders => "reset=headers".to_owned(),
        Ending::ResetMidStream => "reset=after:2".to_owned(),
        Ending::ResetMidBody => "reset=after:1".to_owned(),
        Ending::LeaveBeforeHeaders | Ending::Timeout => "delay-headers=3000".to_owned(),
        Ending::LeaveQuietStream => "stall=1".to_owned(),
        Ending::LeaveBusyStream => "chunk=9".to_owned(),
        Ending::ErrorInStream(status) => format!("error-in-stream={status}"),
        Ending::JsonError => "json-error".to_owned(),
        _ => String::new(),
    };
    let streamed = matches!(
        ending,
        Ending::Streamed
            | Ending::ResetMidStream
            | Ending::LeaveQuietStream
            | Ending::LeaveBusyStream
            | Ending::ErrorInStream(_)
            | Ending::JsonError
    );
    let text = format!(
        "Question {} of a few dozen: why is the sky blue?",
        number % 61
    );
    let changes = json!({"stream": streamed, "max_tokens": 8 + number % 40});
    let body = with(chat(&text), changes);
    let path = "/v1/chat/completions";
    let call = match ending {
        Ending::TooLarge => {
            // What the decision needs stands behind more than Envoy may hold.
            let all = json!({"a": "x".repeat(TOO_LARGE_BYTES), "b": body});
            Call::post(path, all.to_string())
        }
        Ending::LeaveWhileSending => {
            let text = body.to_string();
            let (first, second) = text.split_at(text.len() / 2);
            let halves = [first, second].map(|half| bytes::Bytes::from(half.to_owned()));
            Call::trickle(path, halves.to_vec(), Duration::from_secs(3))
        }
        _ => Call::chat(&body),
    };
    let call = match ending {
        Ending::LocalReply => call.header(CASE, "local_reply"),
        Ending::Timeout => call.header(CASE, "timeout"),
        _ => call,
    };
    if fault.is_empty() {
        call
    } else {
        call.header("x-mock-fault", fault)
    }
}

/// The status that the client should see.
fn expected(ending: Ending) -> u16 {
    match ending {
        Ending::TooLarge => 400,
        Ending::Status(status) => status,
        Ending::RetriedStatus => 502,
        Ending::ResetBeforeHeaders => 503,
        Ending::LocalReply => 418,
        Ending::Timeout => 504,
        _ => 200,
    }
}

fn check(ending: Ending, answer: Result<Answer, String>) -> Result<(), String> {
    if matches!(ending, Ending::ResetMidStream | Ending::ResetMidBody) {
        return match answer {
            Ok(answer) => Err(format!("a clean end, status {}", answer.status)),
            Err(_) => Ok(()),
        };
    }
    let answer = answer?;
    if answer.status != expected(ending) {
        return Err(format!("status {}: {}", answer.status, answer.text()));
    }
    let whole = match ending {
        Ending::Whole => answer.json()["object"] == "chat.completion",
        Ending::Streamed | Ending::ErrorInStream(_) => answer.text().ends_with("data: [DONE]\n\n"),
        Ending::JsonError => answer.json()["error"] != Value::Null,
        _ => true,
    };
    if whole {
        Ok(())
    } else {
        Err(format!("not what it should be: {}", answer.text()))
    }
}
