//! Whether an engine was restarted between two readings of its `/metrics`.

use super::Snapshot;

/// By how much a start time may differ from reading to reading: some libraries work it out anew from
/// clocks that are being adjusted. In seconds; no engine restarts within that.
const JITTER_S: u64 = 1;

/// Figures that only a restart sets back. `None` where the engine says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// When the process started, in seconds since 1970; of several processes the latest.
    pub started_s: Option<u64>,
    /// Prompt tokens since then.
    pub prompt_tokens: Option<u64>,
    /// Output tokens since then.
    pub output_tokens: Option<u64>,
}

impl Life {
    /// What a reading says of it.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self {
            started_s: snapshot.start_time_seconds,
            prompt_tokens: snapshot.prompt_tokens,
            output_tokens: snapshot.output_tokens,
        }
    }

    /// Whether the engine was restarted since `earlier`: it started later, or counted backwards. A
    /// figure that is missing in either is no sign.
    ///
    /// An earlier start time is none, either: where several processes answer in turn, each with a
    /// start time of its own, that would be a restart with every second reading.
    pub fn is_new_since(&self, earlier: &Self) -> bool {
        let later = |old: u64, new: u64| new > old.saturating_add(JITTER_S);
        let both = |new: Option<u64>, old: Option<u64>| old.zip(new);
        let set_back = |(old, new)| new < old;
        both(self.started_s, earlier.started_s).is_some_and(|(old, new)| later(old, new))
            || both(self.prompt_tokens, earlier.prompt_tokens).is_some_and(set_back)
            || both(self.output_tokens, earlier.output_tokens).is_some_and(set_back)
    }

    /// What later readings are to be compared with. What is missing here is as it was in the same
    /// life.
    #[must_use]
    pub fn following(self, earlier: &Self) -> Self {
        let started_s = self.started_s.max(earlier.started_s);
        if self.is_new_since(earlier) {
            return Self { started_s, ..self };
        }
        Self {
            started_s,
            prompt_tokens: self.prompt_tokens.or(earlier.prompt_tokens),
            output_tokens: self.output_tokens.or(earlier.output_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::parse;
    use proptest::prelude::*;

    fn life(started_s: u64, prompt_tokens: u64, output_tokens: u64) -> Life {
        Life {
            started_s: Some(started_s),
            prompt_tokens: Some(prompt_tokens),
            output_tokens: Some(output_tokens),
        }
    }

    fn of_page(page: &str) -> Life {
        Life::of(&parse(page.as_bytes()).unwrap())
    }

    #[test]
    fn counting_backwards_is_a_restart_and_counting_on_is_none() {
        let earlier = life(100, 5_000, 700);
        assert!(!life(100, 5_000, 700).is_new_since(&earlier));
        assert!(!life(100, 9_000, 900).is_new_since(&earlier));
        assert!(life(100, 4_999, 900).is_new_since(&earlier));
        assert!(life(100, 9_000, 0).is_new_since(&earlier));
    }

    #[test]
    fn a_later_start_is_a_restart_and_one_that_jitters_or_goes_back_is_none() {
        let earlier = life(100, 0, 0);
        assert!(life(102, 0, 0).is_new_since(&earlier));
        for started_s in [99, 100, 101, 3] {
            assert!(!life(started_s, 0, 0).is_new_since(&earlier), "{started_s}");
        }
        // Two processes that answer in turn: a restart with the first word of the younger at most.
        let mut known = earlier;
        let mut restarts = 0;
        for started_s in [50, 200, 100, 200, 100, 200] {
            let next = life(started_s, 0, 0);
            restarts += u32::from(next.is_new_since(&known));
            known = next.following(&known);
        }
        assert_eq!(restarts, 1);
    }

    #[test]
    fn what_is_missing_or_not_a_number_is_no_sign_and_is_remembered() {
        let earlier = life(100, 5_000, 700);
        let silent = of_page("vllm:num_requests_running 1\n");
        assert_eq!(silent, Life::default());
        let odd = of_page(
            "vllm:num_requests_running 1\nvllm:prompt_tokens_total NaN\n\
             vllm:generation_tokens_total -3\nprocess_start_time_seconds +Inf\n",
        );
        assert_eq!(odd, Life::default());
        assert!(!silent.is_new_since(&earlier) && !earlier.is_new_since(&silent));
        let known = silent.following(&earlier);
        assert_eq!(known, earlier);
        assert!(life(100, 10, 1).is_new_since(&known));
    }

    #[test]
    fn after_a_restart_nothing_of_the_old_life_is_compared_with() {
        let restarted = Life {
            started_s: Some(200),
            ..Life::default()
        };
        let known = restarted.following(&life(100, 5_000, 700));
        assert_eq!(known, restarted);
        assert!(!life(200, 10, 1).is_new_since(&known));
    }

    #[test]
    fn both_engines_tell() {
        let pages = [
            "vllm:prompt_tokens_total{engine=\"0\"} 1.5e3\nvllm:generation_tokens_total 20\n",
            "sglang:prompt_tokens_total 1500\nsglang:generation_tokens_total 20\n",
        ];
        for page in pages {
            let page = format!("{page}process_start_time_seconds 1.7648e9\n");
            assert_eq!(of_page(&page), life(1_764_800_000, 1_500, 20));
        }
    }

    proptest! {
        /// However the readings go, a reading is never new since itself.
        #[test]
        fn a_reading_is_not_new_since_what_it_left_behind(
            readings in proptest::collection::vec(
                (any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u64>>()), 1..20)
        ) {
            let mut known = Life::default();
            for (started_s, prompt_tokens, output_tokens) in readings {
                let reading = Life { started_s, prompt_tokens, output_tokens };
                known = reading.following(&known);
                prop_assert!(!reading.is_new_since(&known));
            }
        }
    }
}
