//! The faults a mock replica shows on demand, and their grammar.
//!
//! `kind=value` items, separated by commas: `status=503,retry-after=1`. The same text goes into
//! the request header `x-mock-fault`, into the body of `POST /mock/faults` and, parsed, into
//! `Mock::set_faults`.

use std::fmt;

/// One deviation from a good answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `status=N`: this status instead of an answer, with an error body.
    Status(u16),
    /// `retry-after=S`: this header on whatever is answered.
    RetryAfter(u32),
    /// `delay-headers=MS`: nothing for so long.
    DelayHeaders(u64),
    /// `delay-first=MS`: headers at once, the body so much later.
    DelayFirst(u64),
    /// `reset=headers`: a TCP reset instead of an answer.
    ResetHeaders,
    /// `reset=after:N`: a TCP reset after N events (half of a body that is not a stream).
    ResetAfter(u32),
    /// `stall=N`: silence after N events (half of a body that is not a stream), connection open.
    Stall(u32),
    /// `error-in-stream=CODE`: an error event inside the 200, and `[DONE]`; an answer that is not
    /// streamed gets the status and the error body. 429 and 503 are refusals and come as the
    /// first event; anything else is a dead engine and comes after the first token.
    ErrorInStream(u16),
    /// `error-in-stream=CODE:N`: the same, after N events.
    ErrorInStreamAfter(u16, u32),
    /// `json-error`: a stream is answered by a JSON error body with status 200.
    JsonError,
    /// `usage=none|split|null-cached`: see [`UsageFault`].
    Usage(UsageFault),
    /// `chunk=N`: written N bytes at a time.
    Chunk(u32),
    /// `health=N`: this status of `/health`; the rest works.
    Health(u16),
    /// `asleep`: `/is_sleeping` and the metrics say so; what is asked of it is answered all the same.
    Asleep,
}

/// What is wrong with the reported usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageFault {
    /// Not there.
    None,
    /// Cut in two writes, in the middle of a number's name.
    Split,
    /// `prompt_tokens_details` is null.
    NullCached,
}

/// An item that is no fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultError(String);

impl fmt::Display for FaultError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "not a fault: {:?}", self.0)
    }
}

impl std::error::Error for FaultError {}

impl Fault {
    /// Reads a list of faults; blank text is an empty list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, FaultError> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(Self::parse)
            .collect()
    }

    fn parse(item: &str) -> Result<Self, FaultError> {
        let bad = || FaultError(item.to_owned());
        let (kind, value) = item.split_once('=').unwrap_or((item, ""));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        let status = |text: &str| {
            let code = text.trim().parse::<u16>().map_err(|_| bad())?;
            if (200..600).contains(&code) {
                Ok(code)
            } else {
                Err(bad())
            }
        };
        Ok(match kind.trim() {
            "status" => Self::Status(status(value)?),
            "retry-after" => Self::RetryAfter(number(value)?),
            "delay-headers" => Self::DelayHeaders(number(value)?.into()),
            "delay-first" => Self::DelayFirst(number(value)?.into()),
            "reset" if value.trim() == "headers" => Self::ResetHeaders,
            "reset" => Self::ResetAfter(number(
                value.trim().strip_prefix("after:").ok_or_else(bad)?,
            )?),
            "stall" => Self::Stall(number(value)?),
            "error-in-stream" => match value.split_once(':') {
                Some((code, events)) => Self::ErrorInStreamAfter(status(code)?, number(events)?),
                None => Self::ErrorInStream(status(value)?),
            },
            "health" => Self::Health(status(value)?),
            "asleep" if value.is_empty() => Self::Asleep,
            "json-error" if value.is_empty() => Self::JsonError,
            "usage" => Self::Usage(match value.trim() {
                "none" => UsageFault::None,
                "split" => UsageFault::Split,
                "null-cached" => UsageFault::NullCached,
                _ => return Err(bad()),
            }),
            "chunk" => match number(value)? {
                0 => return Err(bad()),
                bytes => Self::Chunk(bytes),
            },
            _ => return Err(bad()),
        })
    }
}

/// An error inside a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorInStream {
    pub status: u16,
    /// After the first token, if nothing is said.
    pub after_events: Option<u32>,
}

/// The faults of one request, one of each kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan {
    pub status: Option<u16>,
    pub retry_after_s: Option<u32>,
    pub delay_headers_ms: Option<u64>,
    pub delay_first_ms: Option<u64>,
    pub reset_headers: bool,
    pub reset_after_events: Option<u32>,
    pub stall_after_events: Option<u32>,
    pub error_in_stream: Option<ErrorInStream>,
    pub json_error: bool,
    pub usage: Option<UsageFault>,
    pub chunk_bytes: Option<u32>,
    pub health: Option<u16>,
    pub asleep: bool,
}

impl Plan {
    /// The last fault of a kind wins.
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> Self {
        let mut plan = Self::default();
        for fault in faults {
            match fault {
                Fault::Status(code) => plan.status = Some(code),
                Fault::RetryAfter(seconds) => plan.retry_after_s = Some(seconds),
                Fault::DelayHeaders(ms) => plan.delay_headers_ms = Some(ms),
                Fault::DelayFirst(ms) => plan.delay_first_ms = Some(ms),
                Fault::ResetHeaders => plan.reset_headers = true,
                Fault::ResetAfter(events) => plan.reset_after_events = Some(events),
                Fault::Stall(events) => plan.stall_after_events = Some(events),
                Fault::ErrorInStream(status) => {
                    let is_refusal = matches!(status, 429 | 503);
                    let after_events = is_refusal.then_some(0);
                    plan.error_in_stream = Some(ErrorInStream {
                        status,
                        after_events,
                    });
                }
                Fault::ErrorInStreamAfter(status, events) => {
                    let after_events = Some(events);
                    plan.error_in_stream = Some(ErrorInStream {
                        status,
                        after_events,
                    });
                }
                Fault::JsonError => plan.json_error = true,
                Fault::Usage(usage) => plan.usage = Some(usage),
                Fault::Chunk(bytes) => plan.chunk_bytes = Some(bytes),
                Fault::Health(status) => plan.health = Some(status),
                Fault::Asleep => plan.asleep = true,
            }
        }
        plan
    }
}
