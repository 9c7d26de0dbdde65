//! Limits on what each endpoint may have: who comes while there is room is served, and who comes when
//! there is none gets a 429 at once.

use super::{Context, Result};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::replica::{Kind, Replica, addresses};
use crate::support::client::{Answer, Call, HttpClient, Protocol};
use crate::support::config::Mode;
use futures_util::StreamExt;
use serde_json::{Value, json};

const ENDPOINTS: usize = 4;
/// Requests that each may have.
const EACH: usize = 8;
/// One answer may have come to its client before its load is released.
const WITH_ROOM: usize = ENDPOINTS * EACH - 4;
const WITHOUT_ROOM: usize = ENDPOINTS * EACH * 2;
const REQUESTS: usize = 400;

/// Closed loops of so many clients.
pub async fn run(context: &Context) -> Result {
    let kind = Kind::new("l4", 10.0);
    let replicas = Replica::start_all(ENDPOINTS, &kind).await?;
    let setup = Setup::new(Mode::OriginalDst, context.workers).plugin(json!({
        "saturation": {"max_requests": EACH, "retry_after_s": 2},
    }));
    let front = Front::listed(&setup, &addresses(&replicas)).await?;
    let client = HttpClient::new(front.listener(), Protocol::Http1);
    let with_room = answers(&client, WITH_ROOM).await?;
    let without = answers(&client, WITHOUT_ROOM).await?;
    let is_refused = |answer: &&Answer| answer.status == 429;
    let is_proper = |answer: &&Answer| {
        is_refused(answer) && answer.header("retry-after") == "2" && says_why(&answer.json())
    };
    let refused = without.iter().filter(is_refused).count();
    let proper = without.iter().filter(is_proper).count();
    let odd = with_room.iter().chain(&without);
    let odd = odd
        .filter(|answer| !matches!(answer.status, 200 | 429))
        .count();
    Ok(vec![
        Measured::none(
            "saturated_429s_with_headroom",
            with_room.iter().filter(is_refused).count(),
        ),
        Measured::new("saturated_429s_without", refused as f64, Bar::AtLeast(1.0)),
        Measured::none("saturated_429s_not_as_documented", refused - proper),
        Measured::none("saturated_other_statuses", odd),
    ])
}

/// As OpenAI's errors are.
fn says_why(body: &Value) -> bool {
    let is_said = |field: &str| body.pointer(field).is_some_and(Value::is_string);
    is_said("/error/message") && is_said("/error/type")
}

async fn answers(
    client: &HttpClient,
    concurrent: usize,
) -> std::result::Result<Vec<Answer>, String> {
    let asked = futures_util::stream::iter(0..REQUESTS)
        .map(|number| client.send(Call::chat(&chat(number))))
        .buffer_unordered(concurrent);
    let answers: Vec<_> = asked.collect().await;
    answers.into_iter().collect()
}

fn chat(number: usize) -> Value {
    json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": format!("Question {number} of many.")}],
        "max_tokens": 16,
        "ignore_eos": true,
    })
}
