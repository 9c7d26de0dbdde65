//! What can be done to a workload: check it, cut it, shrink it, speed it up.

use super::{Request, Start, Workload};

impl Workload {
    /// A workload of requests with their times in microseconds: sorted by time (stable), and the
    /// earliest becomes 0. Whatever their `start` was, it is that time now.
    pub(super) fn of_arrivals(
        name: String,
        about: String,
        mut arrivals: Vec<(u64, Request)>,
    ) -> Self {
        arrivals.sort_by_key(|(at_us, _)| *at_us);
        let first_us = arrivals.first().map_or(0, |(at_us, _)| *at_us);
        let started = |(at_us, request): (u64, Request)| Request {
            start: Start::At {
                us: at_us - first_us,
            },
            ..request
        };
        Self {
            name,
            about,
            requests: arrivals.into_iter().map(started).collect(),
        }
    }

    /// Whether it can be run: every prompt and output has tokens, and requests wait for earlier
    /// ones only. The error names the first request at fault, by its index.
    pub fn check(&self) -> Result<(), String> {
        for (index, request) in self.requests.iter().enumerate() {
            if request.prompt_tokens() == 0 {
                return Err(format!("request {index}: the prompt is empty"));
            }
            if request.output_tokens == 0 {
                return Err(format!("request {index}: the output is empty"));
            }
            if let Start::After { request: other, .. } = request.start
                && other as usize >= index
            {
                return Err(format!(
                    "request {index}: waits for request {other}, which is not before it"
                ));
            }
        }
        Ok(())
    }

    /// The first `requests` of it.
    #[must_use]
    pub fn truncated(mut self, requests: usize) -> Self {
        self.requests.truncate(requests);
        self
    }

    /// What comes after the first `requests` of an open loop, from its own beginning on. A request
    /// that waits for another keeps nobody to wait for and comes at once.
    #[must_use]
    pub fn without_first(mut self, requests: usize) -> Self {
        self.requests.drain(..requests.min(self.requests.len()));
        let started = |request: Request| match request.start {
            Start::At { us } => (us, request),
            Start::After { .. } => (0, request),
        };
        let arrivals = self.requests.into_iter().map(started).collect();
        Self::of_arrivals(self.name, self.about, arrivals)
    }

    /// The same in small: all lengths in tokens divided, but at least 1 where there was anything.
    /// What was shared stays shared.
    #[must_use]
    pub fn shrunk(mut self, divisor: u32) -> Self {
        let shrink = |tokens: u32| (tokens / divisor.max(1)).max(tokens.min(1));
        for request in &mut self.requests {
            request.output_tokens = shrink(request.output_tokens);
            for segment in &mut request.prompt {
                segment.tokens = shrink(segment.tokens);
            }
        }
        self
    }

    /// Without the requests whose prompt is longer than `tokens`, and how many those were. Who waited
    /// for one of them waits for what that one waited for.
    #[must_use]
    pub fn without_longer_than(self, tokens: u32) -> (Self, usize) {
        let before = self.requests.len();
        // By old index: when a request that waits for it starts.
        let mut waits: Vec<Start> = Vec::with_capacity(before);
        let mut kept: Vec<Request> = Vec::with_capacity(before);
        for mut request in self.requests {
            if let Start::After {
                request: other,
                pause_us,
            } = request.start
            {
                let wait = waits.get(other as usize).copied();
                request.start = delayed(wait.unwrap_or(Start::At { us: 0 }), pause_us);
            }
            if request.prompt_tokens() > tokens {
                waits.push(request.start);
                continue;
            }
            waits.push(Start::After {
                request: u32::try_from(kept.len()).unwrap_or(u32::MAX),
                pause_us: 0,
            });
            kept.push(request);
        }
        let dropped = before - kept.len();
        let workload = Self {
            requests: kept,
            ..self
        };
        (workload, dropped)
    }

    /// The same with set times divided by `factor`, so that a factor of 2 sends twice the requests
    /// a second. Pauses after other requests stay. A factor that is not positive changes nothing.
    #[must_use]
    pub fn sped_up(mut self, factor: f64) -> Self {
        if factor.is_finite() && factor > 0.0 {
            for request in &mut self.requests {
                if let Start::At { us } = &mut request.start {
                    // A cast of a float to an integer saturates.
                    *us = (*us as f64 / factor).round() as u64;
                }
            }
        }
        self
    }

    /// Mean requests per second of the set times; `None` in a closed loop, or if all come at once.
    pub fn rate_per_s(&self) -> Option<f64> {
        let mut last_us = 0;
        for request in &self.requests {
            let Start::At { us } = request.start else {
                return None;
            };
            last_us = last_us.max(us);
        }
        let gaps = self.requests.len().saturating_sub(1) as f64;
        (last_us > 0).then(|| gaps / (last_us as f64 / 1e6))
    }
}

fn delayed(start: Start, delay_us: u64) -> Start {
    match start {
        Start::At { us } => Start::At {
            us: us.saturating_add(delay_us),
        },
        Start::After { request, pause_us } => Start::After {
            request,
            pause_us: pause_us.saturating_add(delay_us),
        },
    }
}
