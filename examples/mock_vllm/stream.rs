//! The body of an answer as it leaves: events when their tokens are there, and the faults that
//! happen on the way.

use super::answer::{Answer, DONE, error_event};
use super::call::Call;
use super::conn::Resetter;
use super::engine::Ticket;
use super::error::ApiError;
use super::faults::{Plan, UsageFault};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// The body type of every answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Between two writes that must not become one.
const GAP: Duration = Duration::from_millis(20);
/// Before a reset, so that what was written is read first, on a busy machine too: a reset drops what
/// is still in the socket's buffer.
const RESET_GAP: Duration = Duration::from_millis(200);

/// A body known in full.
pub fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

/// One write.
struct Piece {
    gap_before: bool,
    bytes: Bytes,
}

/// What comes after the last piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Close,
    Stall,
    Reset,
}

/// What cuts a stream short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Reset,
    Stall,
    Error { status: u16 },
}

/// After how many events a stream is cut, and how.
fn cut_of(plan: &Plan, answer: &Answer) -> Option<(u32, Cut)> {
    if let Some(events) = plan.reset_after_events {
        return Some((events, Cut::Reset));
    }
    if let Some(events) = plan.stall_after_events {
        return Some((events, Cut::Stall));
    }
    let error = plan.error_in_stream?;
    let events = error.after_events.unwrap_or_else(|| answer.head_len() + 1);
    Some((
        events,
        Cut::Error {
            status: error.status,
        },
    ))
}

/// Cuts bytes into writes as the plan says.
fn pieces(plan: &Plan, bytes: Bytes, out: &mut VecDeque<Piece>) {
    let mut parts = Vec::new();
    let cut = (plan.usage == Some(UsageFault::Split))
        .then(|| usage_middle(&bytes))
        .flatten();
    match cut {
        Some(at) => parts.extend([bytes.slice(..at), bytes.slice(at..)]),
        None => parts.push(bytes),
    }
    for (index, part) in parts.into_iter().enumerate() {
        let size = plan
            .chunk_bytes
            .map_or(part.len(), |bytes| bytes as usize)
            .max(1);
        let mut rest = part;
        let mut first = true;
        while !rest.is_empty() {
            let bytes = rest.split_to(size.min(rest.len()));
            let gap_before = first && index > 0;
            out.push_back(Piece { gap_before, bytes });
            first = false;
        }
    }
}

/// Where to cut so that a reader of whole writes misses the usage.
fn usage_middle(bytes: &[u8]) -> Option<usize> {
    let names: [&[u8]; 2] = [b"\"prompt_tokens\"", b"\"input_tokens\""];
    names
        .iter()
        .filter_map(|name| bytes.windows(name.len()).position(|window| window == *name))
        .min()
        .map(|at| at + 8)
}

/// Called once all tokens are there.
pub type OnEnd = Box<dyn FnOnce(&[Ticket], &Answer) + Send>;

/// The state of a streamed body.
pub struct Streamed {
    pub answer: Answer,
    pub tickets: Vec<Ticket>,
    pub plan: Plan,
    pub resetter: Resetter,
    /// Dropped with the body, however it ends.
    pub guard: Box<dyn Send>,
    sent_tokens: Vec<u32>,
    started: bool,
    cut: Option<(u32, Cut)>,
    events: u32,
    ready: VecDeque<Piece>,
    end: End,
    on_end: Option<OnEnd>,
}

impl Streamed {
    pub fn new(
        answer: Answer,
        tickets: Vec<Ticket>,
        plan: Plan,
        resetter: Resetter,
        guard: Box<dyn Send>,
        on_end: OnEnd,
    ) -> Self {
        Self {
            sent_tokens: vec![0; tickets.len()],
            cut: cut_of(&plan, &answer),
            answer,
            tickets,
            plan,
            resetter,
            guard,
            started: false,
            events: 0,
            ready: VecDeque::new(),
            end: End::Open,
            on_end: Some(on_end),
        }
    }

    /// The body.
    pub fn into_body(self) -> Body {
        let frames = stream::unfold(self, |mut state| async move {
            let bytes = state.next().await?;
            Some((Ok(Frame::data(bytes)), state))
        });
        BodyExt::boxed_unsync(StreamBody::new(frames))
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(ms) = self.plan.delay_first_ms.take() {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        loop {
            if let Some(piece) = self.ready.pop_front() {
                if piece.gap_before {
                    tokio::time::sleep(GAP).await;
                } else if self.plan.chunk_bytes.is_some() {
                    tokio::task::yield_now().await;
                }
                return Some(piece.bytes);
            }
            match self.end {
                End::Open => self.produce().await,
                End::Close => return None,
                End::Stall => return std::future::pending().await,
                End::Reset => {
                    tokio::time::sleep(RESET_GAP).await;
                    self.resetter.reset();
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Waits for the next tokens and turns them into pieces.
    async fn produce(&mut self) {
        let mut events = Vec::new();
        if self.limit() == Some(0) {
            return self.push(events);
        }
        let pending = self.tickets.iter().zip(&self.sent_tokens);
        let output_tokens = self.answer.call.output_tokens;
        let waiting = pending.into_iter().find(|(_, sent)| **sent < output_tokens);
        if let Some((ticket, sent)) = waiting {
            ticket.more_than(*sent).await;
        }
        let cached_tokens = self.cached_tokens();
        if !self.started {
            self.started = true;
            events.extend(self.answer.head_events(cached_tokens));
        }
        for (choice, (ticket, sent)) in self.tickets.iter().zip(&mut self.sent_tokens).enumerate() {
            let tokens = ticket.progress().tokens.min(output_tokens);
            while *sent < tokens {
                events.push(self.answer.token_event(choice, *sent));
                *sent += 1;
            }
        }
        if self.sent_tokens.iter().all(|sent| *sent >= output_tokens) {
            events.extend(self.answer.tail_events(cached_tokens));
            self.end = End::Close;
            if let Some(on_end) = self.on_end.take() {
                on_end(&self.tickets, &self.answer);
            }
        }
        self.push(events);
    }

    /// Events left before the cut.
    fn limit(&self) -> Option<usize> {
        let (events, _) = self.cut?;
        Some(events.saturating_sub(self.events) as usize)
    }

    fn push(&mut self, mut events: Vec<String>) {
        if let Some(limit) = self.limit()
            && events.len() >= limit
            && let Some((_, cut)) = self.cut.take()
        {
            events.truncate(limit);
            self.end = match cut {
                Cut::Reset => End::Reset,
                Cut::Stall => End::Stall,
                Cut::Error { status } => {
                    events.push(error_event(&ApiError::failed(status)));
                    events.push(DONE.to_owned());
                    End::Close
                }
            };
            if self.end != End::Stall {
                self.tickets.clear();
            }
        }
        let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
        self.events = self.events.saturating_add(count);
        pieces(&self.plan, Bytes::from(events.concat()), &mut self.ready);
    }

    fn cached_tokens(&self) -> u32 {
        cached_tokens(&self.tickets, &self.answer.call)
    }
}

/// Cached tokens of all prompts. The choices of one prompt share it; only the first counts.
pub fn cached_tokens(tickets: &[Ticket], call: &Call) -> u32 {
    let firsts = tickets.iter().step_by(call.choices_per_prompt.max(1));
    firsts.map(|ticket| ticket.progress().cached_tokens).sum()
}

/// A body that is not a stream, with its faults.
pub fn faulty(text: String, plan: Plan, resetter: Resetter, guard: Box<dyn Send>) -> Body {
    let mut bytes = Bytes::from(text);
    let end = match (plan.reset_after_events, plan.stall_after_events) {
        (Some(_), _) => End::Reset,
        (None, Some(_)) => End::Stall,
        (None, None) => End::Close,
    };
    if end != End::Close {
        bytes.truncate(bytes.len() / 2);
    }
    let mut ready = VecDeque::new();
    pieces(&plan, bytes, &mut ready);
    let state = (ready, plan.delay_first_ms, resetter, guard);
    let frames = stream::unfold(
        state,
        move |(mut ready, delay_ms, resetter, guard)| async move {
            if let Some(ms) = delay_ms {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            let Some(piece) = ready.pop_front() else {
                if end == End::Reset {
                    tokio::time::sleep(RESET_GAP).await;
                    resetter.reset();
                }
                if end != End::Close {
                    return std::future::pending().await;
                }
                return None;
            };
            if piece.gap_before {
                tokio::time::sleep(GAP).await;
            } else if plan.chunk_bytes.is_some() {
                tokio::task::yield_now().await;
            }
            Some((Ok(Frame::data(piece.bytes)), (ready, None, resetter, guard)))
        },
    );
    BodyExt::boxed_unsync(StreamBody::new(frames))
}
