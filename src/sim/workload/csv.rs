//! Reader of traces in CSV, for those who have lengths but no hashes.
//!
//! The first line names the columns, in any order: `arrival_s` (decimal seconds), `input_tokens`,
//! `output_tokens` and, if prompts share beginnings, `prefix_group` (any text) and `prefix_tokens`
//! (how much of the prompt all requests of the group begin with). Both are left empty for a request
//! that shares nothing.
//!
//! A prompt is one message of the user that begins with the group's text. The session is the group,
//! or the request itself. Times count from the earliest request. Requests out of order are sorted by
//! time, and those of one time keep their order.

use super::trace::{MAX_ARRIVAL_US, MAX_REQUESTS, MAX_TOKENS, TraceError, unexpected};
use super::{Request, Role, Segment, Start, Workload, mix};
use ::csv::{ErrorKind, ReaderBuilder, StringRecord, Trim};
use std::io::BufRead;
use xxhash_rust::xxh64::xxh64;

/// The columns that a trace may have; the first three it must have.
pub const COLUMNS: [&str; 5] = [
    "arrival_s",
    "input_tokens",
    "output_tokens",
    "prefix_group",
    "prefix_tokens",
];
const REQUIRED: usize = 3;
/// Limits a record too, which quotes could stretch over the whole file.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Seeds of the texts: of groups, and of what is a request's own.
const GROUP_SEED: u64 = 1;
const OWN_SEED: u64 = 2;

/// Reads a whole trace; `file` is its name in errors and in the workload.
pub fn read(input: impl BufRead, file: &str) -> Result<Workload, TraceError> {
    let fail = |line: u64, problem: String| TraceError {
        file: file.to_owned(),
        line,
        problem,
    };
    let mut reader = ReaderBuilder::new()
        .flexible(true)
        .trim(Trim::All)
        .from_reader(input.take(MAX_FILE_BYTES));
    let header = reader.headers().map_err(|error| fail(1, reason(&error)))?;
    let columns = Columns::new(header).map_err(|problem| fail(1, problem))?;
    let mut requests = Vec::new();
    let mut record = StringRecord::new();
    loop {
        let at = reader.position().line();
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                let line = error.position().map_or(at, ::csv::Position::line);
                return Err(fail(line, reason(&error)));
            }
        }
        let line = record.position().map_or(at, ::csv::Position::line);
        if requests.len() == MAX_REQUESTS {
            let problem = format!("expected at most {MAX_REQUESTS} requests");
            return Err(fail(line, problem));
        }
        let own = mix(OWN_SEED, requests.len() as u64);
        let request = columns.request(&record, own);
        requests.push(request.map_err(|problem| fail(line, problem))?);
    }
    if reader.get_ref().limit() == 0 {
        let problem = format!("expected at most {MAX_FILE_BYTES} bytes");
        return Err(fail(0, problem));
    }
    if requests.is_empty() {
        let problem = "expected at least one request, found none".to_owned();
        return Err(fail(0, problem));
    }
    let about = "CSV trace".to_owned();
    Ok(Workload::of_arrivals(file.to_owned(), about, requests))
}

fn reason(error: &::csv::Error) -> String {
    match error.kind() {
        ErrorKind::Utf8 { .. } => "expected UTF-8 text".to_owned(),
        ErrorKind::Io(error) => format!("cannot be read: {error}"),
        _ => format!("cannot be read: {error}"),
    }
}

/// Where each of [`COLUMNS`] stands in a record.
struct Columns {
    places: [Option<usize>; COLUMNS.len()],
    count: usize,
}

impl Columns {
    fn new(header: &StringRecord) -> Result<Self, String> {
        let list = COLUMNS.join(", ");
        let mut places = [None; COLUMNS.len()];
        for (index, name) in header.iter().enumerate() {
            // A byte order mark is what spreadsheets put before the first column.
            let name = name.trim_start_matches('\u{feff}').trim();
            let known = COLUMNS.iter().position(|column| *column == name);
            let Some(place) = known.and_then(|known| places.get_mut(known)) else {
                return Err(unexpected("header", &format!("columns of {list}"), name));
            };
            if place.replace(index).is_some() {
                return Err(format!("header: expected {name} once, found it again"));
            }
        }
        for (name, place) in COLUMNS.iter().zip(places).take(REQUIRED) {
            if place.is_none() {
                return Err(format!("header: expected a column {name}, found none"));
            }
        }
        let count = header.len();
        Ok(Self { places, count })
    }

    fn request(&self, record: &StringRecord, own: u64) -> Result<(u64, Request), String> {
        if record.len() != self.count {
            let (expected, found) = (self.count, record.len());
            return Err(format!("expected {expected} fields, found {found}"));
        }
        let [arrival, input, output, group, prefix] = self
            .places
            .map(|place| place.and_then(|place| record.get(place)));
        let at_us = arrival_us(arrival.unwrap_or_default())?;
        let input_tokens = tokens("input_tokens", input.unwrap_or_default(), MAX_TOKENS)?;
        let output_tokens = tokens("output_tokens", output.unwrap_or_default(), MAX_TOKENS)?;
        let shared = shared(
            group.unwrap_or_default(),
            prefix.unwrap_or_default(),
            input_tokens,
        )?;
        let (group, prefix_tokens) = shared.unwrap_or((own, 0));
        let stretches = [(group, prefix_tokens), (own, input_tokens - prefix_tokens)];
        let request = Request {
            start: Start::At { us: at_us },
            session: group,
            adapter: None,
            prompt: stretches
                .into_iter()
                .filter(|(_, tokens)| *tokens > 0)
                .map(|(id, tokens)| Segment {
                    id,
                    tokens,
                    role: Role::User,
                })
                .collect(),
            output_tokens,
        };
        Ok((at_us, request))
    }
}

/// The group's text and how much of it, or nothing if both fields are empty.
fn shared(group: &str, prefix: &str, input_tokens: u32) -> Result<Option<(u64, u32)>, String> {
    match (group.is_empty(), prefix.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => Err(unexpected(
            "prefix_group",
            "a name, since prefix_tokens is given",
            "",
        )),
        _ => {
            let prefix_tokens = tokens("prefix_tokens", prefix, input_tokens)?;
            Ok(Some((xxh64(group.as_bytes(), GROUP_SEED), prefix_tokens)))
        }
    }
}

fn arrival_us(text: &str) -> Result<u64, String> {
    let us = text.parse::<f64>().map(|seconds| (seconds * 1e6).round());
    match us {
        Ok(us) if us >= 0.0 && us <= MAX_ARRIVAL_US as f64 * 10.0 => Ok(us as u64),
        _ => Err(unexpected("arrival_s", "decimal seconds, from 0 on", text)),
    }
}

fn tokens(column: &str, text: &str, most: u32) -> Result<u32, String> {
    let number = text.parse::<u32>().ok();
    let in_range = number.filter(|tokens| (1..=most).contains(tokens));
    in_range.ok_or_else(|| {
        let expected = format!("a whole number of tokens from 1 to {most}");
        unexpected(column, &expected, text)
    })
}
