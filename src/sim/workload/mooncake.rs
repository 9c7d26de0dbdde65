//! Reader of Mooncake traces (kvcache-ai/Mooncake on GitHub): JSON lines of `timestamp` in
//! milliseconds, `input_length` and `output_length` in tokens, and `hash_ids`.
//!
//! Each of `hash_ids` names a block of 512 prompt tokens; the last may be partial. Equal ids are
//! equal blocks after equal beginnings. The first block becomes the system message (in the
//! published conversation trace it is the same for all requests), the rest the user's; a prompt of
//! one block is the user's. The trace does not name conversations: the session is that of the first
//! two blocks. Times count from the earliest request. Requests out of order are sorted by time, and
//! those of one time keep their order. Members that the format does not know are passed over.

use super::trace::{MAX_ARRIVAL_US, MAX_REQUESTS, MAX_TOKENS, TraceError, unexpected};
use super::{Request, Role, Segment, Start, Workload, mix};
use serde_json::{Map, Value};
use std::io::{BufRead, Read};

/// Prompt tokens that one hash id stands for.
pub const BLOCK_TOKENS: u32 = 512;

const MAX_LINE_BYTES: u64 = 1 << 20;
/// Most blocks of all requests together: 320 MB of segments.
const MAX_BLOCKS: usize = 20_000_000;
/// Keeps segment ids apart from the small numbers of the trace.
const SALT: u64 = 0x6d6f_6f6e_6361_6b65;

/// Reads a whole trace; `file` is its name in errors and in the workload.
pub fn read(mut input: impl BufRead, file: &str) -> Result<Workload, TraceError> {
    let mut requests = Vec::new();
    let mut blocks = 0usize;
    let mut bytes = Vec::new();
    let mut line = 0;
    loop {
        line += 1;
        let fail = |problem: String| TraceError {
            file: file.to_owned(),
            line,
            problem,
        };
        bytes.clear();
        let mut limited = input.by_ref().take(MAX_LINE_BYTES + 1);
        let read = limited.read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| fail(format!("cannot be read: {error}")))?;
        if read == 0 {
            break;
        }
        if read as u64 > MAX_LINE_BYTES {
            let problem = format!("expected at most {MAX_LINE_BYTES} bytes in a line");
            return Err(fail(problem));
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let request = parse(&bytes).map_err(fail)?;
        blocks = blocks.saturating_add(request.1.prompt.len());
        if requests.len() == MAX_REQUESTS || blocks > MAX_BLOCKS {
            return Err(fail(format!(
                "expected at most {MAX_REQUESTS} requests and {MAX_BLOCKS} blocks"
            )));
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err(TraceError {
            file: file.to_owned(),
            line: 0,
            problem: "expected at least one request, found none".to_owned(),
        });
    }
    Ok(Workload::of_arrivals(
        file.to_owned(),
        "Mooncake trace".to_owned(),
        requests,
    ))
}

/// One line, with its time in microseconds as the trace has it.
fn parse(line: &[u8]) -> Result<(u64, Request), String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        // The line that serde_json counts is always 1 here.
        let (text, column) = (error.to_string(), error.column());
        let reason = text.split(" at line").next().unwrap_or_default();
        format!("expected a JSON object, found {reason} at column {column}")
    })?;
    let Value::Object(members) = &value else {
        let found = value.to_string();
        return Err(unexpected("line", "a JSON object", &found));
    };
    let at_us = timestamp_us(members)?;
    let input_tokens = tokens(members, "input_length")?;
    let output_tokens = tokens(members, "output_length")?;
    let hash_ids = hash_ids(members)?;
    let needed = input_tokens.div_ceil(BLOCK_TOKENS) as usize;
    if hash_ids.len() != needed {
        return Err(format!(
            "hash_ids: expected {needed} for an input_length of {input_tokens} ({BLOCK_TOKENS} tokens each), found {}",
            hash_ids.len()
        ));
    }
    let session = hash_ids
        .iter()
        .take(2)
        .fold(SALT, |id, hash| mix(id, *hash));
    let request = Request {
        start: Start::At { us: at_us },
        session,
        adapter: None,
        prompt: segments(&hash_ids, input_tokens),
        output_tokens,
    };
    Ok((at_us, request))
}

fn segments(hash_ids: &[u64], input_tokens: u32) -> Vec<Segment> {
    let mut left = input_tokens;
    let segment = |(index, hash): (usize, &u64)| {
        let tokens = left.min(BLOCK_TOKENS);
        left -= tokens;
        let is_system = index == 0 && hash_ids.len() > 1;
        Segment {
            id: mix(SALT, *hash),
            tokens,
            role: if is_system { Role::System } else { Role::User },
        }
    };
    hash_ids.iter().enumerate().map(segment).collect()
}

fn found(members: &Map<String, Value>, name: &str) -> String {
    members.get(name).map(Value::to_string).unwrap_or_default()
}

fn timestamp_us(members: &Map<String, Value>) -> Result<u64, String> {
    let ms = members.get("timestamp").and_then(Value::as_f64);
    match ms.map(|ms| (ms * 1e3).round()) {
        Some(us) if us >= 0.0 && us <= MAX_ARRIVAL_US as f64 * 10.0 => Ok(us as u64),
        _ => Err(unexpected(
            "timestamp",
            "milliseconds, from 0 on",
            &found(members, "timestamp"),
        )),
    }
}

fn tokens(members: &Map<String, Value>, name: &str) -> Result<u32, String> {
    let number = members.get(name).and_then(Value::as_u64);
    let in_range = number.filter(|tokens| (1..=u64::from(MAX_TOKENS)).contains(tokens));
    let tokens = in_range.and_then(|tokens| u32::try_from(tokens).ok());
    tokens.ok_or_else(|| {
        let expected = format!("a whole number of tokens from 1 to {MAX_TOKENS}");
        unexpected(name, &expected, &found(members, name))
    })
}

fn hash_ids(members: &Map<String, Value>) -> Result<Vec<u64>, String> {
    const EXPECTED: &str = "an array of whole numbers";
    let Some(Value::Array(ids)) = members.get("hash_ids") else {
        return Err(unexpected(
            "hash_ids",
            EXPECTED,
            &found(members, "hash_ids"),
        ));
    };
    let id = |id: &Value| {
        let number = id.as_u64();
        number.ok_or_else(|| unexpected("hash_ids", EXPECTED, &id.to_string()))
    };
    ids.iter().map(id).collect()
}
