//! Adapters that only some of the engines serve: never sent to another one.

use super::{Context, Result};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::replica::{Kind, Replica};
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::config::Mode;
use futures_util::StreamExt;
use serde_json::json;
use std::time::Duration;

const REQUESTS: usize = 10_000;
const CONCURRENT: usize = 32;
const CLIENTS: usize = 8;
/// By replica; one has none.
const SERVED: [&[&str]; 4] = [
    &["lora-0", "lora-1"],
    &["lora-1", "lora-2"],
    &["lora-3"],
    &[],
];
const MODELS: [&str; 5] = ["tiny", "lora-0", "lora-1", "lora-2", "lora-3"];
/// For the filter to ask every engine what it serves.
const NOTICE: Duration = Duration::from_secs(3);

/// Nothing is configured but where to ask.
pub async fn run(context: &Context) -> Result {
    let mut replicas = Vec::new();
    for adapters in SERVED {
        let mut kind = Kind::fast();
        kind.adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
        replicas.push(Replica::start(&kind).await?);
    }
    let setup = Setup::new(Mode::OriginalDst, context.workers).plugin(json!({
        "models": {"path": "/v1/models", "interval_ms": 1_000},
    }));
    let addresses = crate::replica::addresses(&replicas);
    let front = Front::listed(&setup, &addresses).await?;
    tokio::time::sleep(NOTICE).await;
    let clients: Vec<HttpClient> = Protocol::ALL
        .iter()
        .cycle()
        .take(CLIENTS)
        .map(|protocol| HttpClient::new(front.listener(), *protocol))
        .collect();
    let turns = (0..REQUESTS)
        .zip(clients.iter().cycle())
        .zip(MODELS.iter().cycle());
    let (wrong, by_base) = futures_util::stream::iter(turns)
        .map(|((number, client), model)| ask(client, number, model))
        .buffer_unordered(CONCURRENT)
        .fold((0, 0), |(wrong, by_base), answer| async move {
            let base = usize::from(answer == Answer::Right("tiny"));
            (wrong + usize::from(answer == Answer::Wrong), by_base + base)
        })
        .await;
    Ok(vec![
        Measured::none("adapter_wrong_endpoint", wrong),
        Measured::new(
            "adapter_base_model_requests",
            by_base as f64,
            Bar::AtLeast((REQUESTS / MODELS.len()) as f64),
        ),
    ])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer<'a> {
    /// Served, as this model.
    Right(&'a str),
    /// An engine that does not serve the model says 404; anything else is no better.
    Wrong,
}

async fn ask<'a>(client: &HttpClient, number: usize, model: &'a str) -> Answer<'a> {
    let text = format!("Question {} of many: why is the sky blue?", number % 501);
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
    });
    let answer = client.send(Call::chat(&body)).await;
    let is_of = |body: serde_json::Value| body.get("model").is_some_and(|name| name == model);
    let served = answer.is_ok_and(|answer| answer.status == 200 && is_of(answer.json()));
    if served {
        Answer::Right(model)
    } else {
        Answer::Wrong
    }
}
