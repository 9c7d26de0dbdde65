//! What one request came to, as its client saw it.

use crate::event::{Stream, Usage, excerpt};
use crate::support::check::decided;
use crate::support::client::{Call, HttpClient, Streaming};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A whole, good answer.
    Good,
    /// Another status than 200.
    Status(u16),
    /// No answer had begun when it ended.
    Unanswered(String),
    /// The answer had begun, and broke off for the client to see, or told an error.
    Broken(String),
    /// The answer ended as if it were whole, and was not.
    Truncated(String),
    /// It had not ended when the scenario could wait no longer.
    Hung,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When it was due, after the beginning of the load.
    pub due: Duration,
    /// The status it was meant to have.
    pub meant: u16,
    /// How it ended.
    pub end: End,
    /// Who served it, as the replica says.
    pub endpoint: String,
    /// The filter's first choice.
    pub picked: String,
    /// The header of that name.
    pub retry_after: String,
    /// From the due time to the end, whatever it was; 0 if it hung.
    pub took: Duration,
    /// From the due time to the first output; of good ones that were streamed.
    pub ttft: Option<Duration>,
    /// What the engine counted.
    pub usage: Option<Usage>,
}

impl Outcome {
    /// Nothing has come yet.
    pub fn new(due: Duration, meant: u16) -> Self {
        Self {
            due,
            meant,
            end: End::Hung,
            endpoint: String::new(),
            picked: String::new(),
            retry_after: String::new(),
            took: Duration::ZERO,
            ttft: None,
            usage: None,
        }
    }

    /// Whether it was under way at this time after the beginning of the load.
    pub fn spans(&self, at: Duration) -> bool {
        self.due < at && at <= self.due + self.took
    }

    /// Whether it ended as it was meant to.
    pub fn is_as_meant(&self) -> bool {
        match &self.end {
            End::Good => self.meant == 200,
            End::Status(status) => self.meant == *status,
            _ => false,
        }
    }

    /// Whether it failed though no answer had begun, so that another endpoint could have served it.
    /// Whom every engine would refuse, nobody could.
    pub fn is_failed_unstarted(&self) -> bool {
        let is_unstarted = matches!(self.end, End::Status(_) | End::Unanswered(_) | End::Hung);
        is_unstarted && self.meant != 429 && !self.is_as_meant()
    }

    /// Sends `call` and reads the whole answer; the request was due at `due`.
    pub async fn fill(&mut self, client: &HttpClient, call: Call, due: Instant) {
        match client.open(call).await {
            Ok(answer) => self.read(answer, due).await,
            Err(why) => self.end = End::Unanswered(why),
        }
        self.took = due.elapsed();
    }

    async fn read(&mut self, answer: Streaming, due: Instant) {
        self.endpoint = answer.header("x-mock-endpoint");
        self.picked = decided(&answer.headers, "endpoint");
        self.retry_after = answer.header("retry-after");
        if answer.status != 200 {
            self.end = End::Status(answer.status);
            return;
        }
        let is_stream = answer
            .header("content-type")
            .starts_with("text/event-stream");
        self.end = match is_stream {
            true => self.read_stream(answer, due).await,
            false => read_whole(answer).await,
        };
    }

    async fn read_stream(&mut self, mut answer: Streaming, due: Instant) -> End {
        let mut stream = Stream::default();
        while let Some(piece) = answer.next().await {
            match piece.and_then(|piece| stream.take(&piece)) {
                Ok(true) => _ = self.ttft.get_or_insert_with(|| due.elapsed()),
                Ok(false) => {}
                Err(why) => return End::Broken(why),
            }
        }
        self.usage = stream.usage;
        stream.finish().map_or_else(End::Truncated, |()| End::Good)
    }
}

async fn read_whole(answer: Streaming) -> End {
    match answer.finish().await {
        Ok(whole) if whole.json().get("choices").is_some() => End::Good,
        Ok(whole) => End::Truncated(excerpt(&whole.body)),
        Err(why) => End::Broken(why),
    }
}

/// How many of `all` are `wanted`.
pub fn count(all: &[Outcome], wanted: impl Fn(&Outcome) -> bool) -> usize {
    all.iter().filter(|outcome| wanted(outcome)).count()
}

/// Those that did not end as they were meant to, in a few words for the log: of each kind and first
/// choice how many, and when they were due.
pub fn complaints(all: &[Outcome]) -> Vec<String> {
    let mut kinds = BTreeMap::<String, Vec<Duration>>::new();
    for outcome in all.iter().filter(|outcome| !outcome.is_as_meant()) {
        let kind = format!("{:?}, picked {:?}", outcome.end, outcome.picked);
        kinds.entry(kind).or_default().push(outcome.due);
    }
    let line = |(kind, mut due): (String, Vec<Duration>)| {
        due.sort_unstable();
        let ends = [due.first(), due.last()].map(|due| due.copied().unwrap_or_default());
        let [first_s, last_s] = ends.map(|due| due.as_secs_f64());
        format!("{} × {kind}, due {first_s:.2} to {last_s:.2} s", due.len())
    };
    kinds.into_iter().map(line).collect()
}

/// The nearest rank of the times to first token; NaN if there are none.
pub fn ttft_quantile_ms(all: &[Outcome], q: f64) -> f64 {
    let mut sorted: Vec<Duration> = all.iter().filter_map(|outcome| outcome.ttft).collect();
    sorted.sort_unstable();
    let rank = (q * sorted.len() as f64).ceil() as usize;
    let found = sorted.get(rank.saturating_sub(1));
    found.map_or(f64::NAN, |ttft| ttft.as_secs_f64() * 1e3)
}

/// Share of the prompt tokens that engines found in their caches, of the requests due in `span`; NaN
/// if there are none.
pub fn hit_rate(all: &[Outcome], span: &std::ops::Range<Duration>) -> f64 {
    let within = all.iter().filter(|outcome| span.contains(&outcome.due));
    let (mut cached, mut prompt) = (0_u64, 0_u64);
    for usage in within.filter_map(|outcome| outcome.usage) {
        cached += u64::from(usage.cached_tokens.unwrap_or_default());
        prompt += u64::from(usage.prompt_tokens);
    }
    match prompt {
        0 => f64::NAN,
        prompt => cached as f64 / prompt as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(due_s: u64, meant: u16, end: End) -> Outcome {
        let mut outcome = Outcome::new(Duration::from_secs(due_s), meant);
        outcome.end = end;
        outcome
    }

    #[test]
    fn what_was_meant_is_no_failure_and_what_had_begun_is_none_before_the_beginning() {
        let cases = [
            (200, End::Good, true, false),
            (200, End::Status(503), false, true),
            (503, End::Status(503), true, false),
            (400, End::Good, false, false),
            (400, End::Status(503), false, true),
            (429, End::Status(503), false, false),
            (200, End::Unanswered(String::new()), false, true),
            (200, End::Hung, false, true),
            (200, End::Broken(String::new()), false, false),
            (200, End::Truncated(String::new()), false, false),
        ];
        for (meant, end, as_meant, unstarted) in cases {
            let outcome = outcome(0, meant, end);
            assert_eq!(outcome.is_as_meant(), as_meant, "{outcome:?}");
            assert_eq!(outcome.is_failed_unstarted(), unstarted, "{outcome:?}");
        }
    }

    #[test]
    fn a_request_spans_what_lies_between_its_due_time_and_its_end() {
        let mut one = outcome(10, 200, End::Good);
        one.took = Duration::from_secs(20);
        for (at_s, spans) in [(9, false), (10, false), (11, true), (30, true), (31, false)] {
            assert_eq!(one.spans(Duration::from_secs(at_s)), spans, "{at_s}");
        }
    }

    #[test]
    fn rates_and_quantiles_are_of_what_there_is() {
        let mut all = Vec::new();
        for second in 0..10 {
            let mut one = outcome(second, 200, End::Good);
            one.ttft = Some(Duration::from_millis(10 * (second + 1)));
            one.usage = Some(Usage {
                prompt_tokens: 100,
                cached_tokens: Some(if second < 5 { 0 } else { 80 }),
                output_tokens: 1,
            });
            all.push(one);
        }
        let span = |from, to| Duration::from_secs(from)..Duration::from_secs(to);
        assert_eq!(hit_rate(&all, &span(0, 5)), 0.0);
        assert_eq!(hit_rate(&all, &span(5, 10)), 0.8);
        assert_eq!(hit_rate(&all, &span(4, 6)), 0.4);
        assert!(hit_rate(&all, &span(20, 30)).is_nan());
        assert_eq!(ttft_quantile_ms(&all, 0.99), 100.0);
        assert_eq!(ttft_quantile_ms(&all, 0.5), 50.0);
        assert!(ttft_quantile_ms(&[], 0.5).is_nan());
    }
}
