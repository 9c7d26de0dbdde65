//! Chats in open loop, and when each of them began, ended, and how.

use crate::support::client::{Call, HttpClient};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A chat of its own prompt.
pub fn chat(number: usize, stream: bool) -> Call {
    let body: Value = json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": format!("Prompt number {number}")}],
        "max_tokens": 8,
        "stream": stream,
    });
    Call::chat(&body)
}

/// What became of a request.
#[derive(Debug)]
pub struct Outcome {
    pub begun: Instant,
    pub ended: Instant,
    /// A whole answer; else in one line what came in its place.
    pub answer: Result<(), String>,
}

impl Outcome {
    /// Whether it was under way at this time.
    pub fn spans(&self, time: Instant) -> bool {
        self.begun <= time && time <= self.ended
    }
}

/// Sends `call` and reads its answer to the end.
pub async fn carried(client: &HttpClient, call: Call) -> Outcome {
    let begun = Instant::now();
    let answer = client.send(call).await.and_then(|answer| {
        let text = answer.text();
        let whole = text.ends_with("data: [DONE]\n\n") || answer.json()["choices"].is_array();
        match answer.status {
            200 if whole => Ok(()),
            status => Err(format!("{status}: {text}")),
        }
    });
    Outcome {
        begun,
        ended: Instant::now(),
        answer,
    }
}

/// One chat every `pause` for so long; see [`open_loop_until`].
pub async fn open_loop(clients: Vec<HttpClient>, pause: Duration, long: Duration) -> Vec<Outcome> {
    let begun = Instant::now();
    open_loop_until(move || begun.elapsed() >= long, clients, pause).await
}

/// One chat every `pause` until it is over, whatever becomes of the others: streamed and not, some of
/// them under way for a while. The clients take turns. Returns when the last is answered.
pub async fn open_loop_until(
    is_over: impl Fn() -> bool,
    clients: Vec<HttpClient>,
    pause: Duration,
) -> Vec<Outcome> {
    let mut running = JoinSet::new();
    let begun = Instant::now();
    let mut number = 0_usize;
    while !is_over() {
        let client = clients[number % clients.len()].clone();
        // In pairs, so that each protocol has all of them, and at any time some are under way.
        let fault = match number / 2 % 4 {
            0 => "delay-first=300",
            1 => "delay-headers=200",
            _ => "delay-first=5",
        };
        let call = chat(number, !number.is_multiple_of(3)).header("x-mock-fault", fault);
        running.spawn(async move { carried(&client, call).await });
        number += 1;
        let due = pause * u32::try_from(number).unwrap();
        tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
    }
    running.join_all().await
}

/// The requests without a whole answer.
pub fn failed(outcomes: &[Outcome]) -> Vec<&Outcome> {
    outcomes.iter().filter(|o| o.answer.is_err()).collect()
}
