//! When which engine is asked what, and what the answers become.
//!
//! Every VM has a poller, but only the one that holds the lease lets it run.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::endpoint::EndpointId;
use crate::models::adapters_of;
use crate::policy::Load;
use crate::scrape::{self, Life};
use crate::state::models::Adapters;
use crate::state::snapshots::Report;

/// What an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// How loaded it is: its metrics.
    Metrics,
    /// Whether it is well.
    Health,
    /// Whether it sleeps.
    Sleeping,
    /// What it serves.
    Models,
}

/// How often a question is asked, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Which.
    pub question: Question,
    /// Path of the answer.
    pub path: String,
    /// Time between two askings of one endpoint.
    pub interval_ms: u64,
}

/// One endpoint's schedule for one question.
#[derive(Clone, Copy, Debug, Default)]
struct Schedule {
    due_ms: u64,
    asked: Option<Asked>,
}

/// A question that is under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at_ms: u64,
    ours: u32,
}

/// What an answer comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The engine says how it is.
    Report {
        /// When it was asked, in milliseconds.
        asked_ms: u64,
        /// What it says.
        report: Report,
        /// Whether it is awake, if it says so.
        awake: Option<bool>,
        /// The adapters that have requests there.
        adapters: Adapters,
    },
    /// The endpoint has answered; what it says is for others to read. Never to [`Question::Metrics`].
    Page,
    /// Nobody listens there.
    Refused,
    /// It has not answered in time.
    Silent,
    /// It has answered [`Question::Metrics`], but there are none that we know.
    Unread,
    /// Envoy has answered in its place, or the connection broke.
    Nothing,
}

/// What Envoy answers in an engine's place, with status 503, if a connection was refused. It tells a
/// timeout of the connection apart.
const REFUSED: &[u8] = b"reset reason: remote connection failure";
/// The same if there was no connection in time.
const NO_CONNECTION: &[u8] = b"reset reason: connection timeout";
/// What else Envoy answers in an engine's place begins so.
const NO_ANSWER: &[u8] = b"upstream ";

/// What `config` wants to know of every endpoint.
pub fn questions(config: &Config) -> Vec<Asking> {
    let metrics = config.scrape.iter().map(|scrape| Asking {
        question: Question::Metrics,
        path: scrape.path.clone(),
        interval_ms: scrape.interval_ms,
    });
    let asked = |question, path: &Option<String>| {
        let (scrape, path) = config.scrape.as_ref().zip(path.as_ref())?;
        Some(Asking {
            question,
            path: path.clone(),
            interval_ms: scrape.interval_ms,
        })
    };
    let health = asked(Question::Health, &config.health.path);
    let sleeping = asked(Question::Sleeping, &config.health.sleep_path);
    let models = config.models.iter().map(|models| Asking {
        question: Question::Models,
        path: models.path.clone(),
        interval_ms: models.interval_ms,
    });
    metrics
        .chain(health)
        .chain(sleeping)
        .chain(models)
        .collect()
}

/// The schedule of all endpoints.
#[derive(Debug)]
pub struct Poller {
    askings: Vec<Asking>,
    timeout_ms: u64,
    schedules: BTreeMap<(EndpointId, Question), Schedule>,
}

impl Poller {
    /// All endpoints are due at once, for every question.
    pub fn new(
        askings: Vec<Asking>,
        timeout_ms: u64,
        endpoints: impl IntoIterator<Item = EndpointId>,
    ) -> Self {
        let mut poller = Self {
            askings,
            timeout_ms,
            schedules: BTreeMap::new(),
        };
        poller.follow(endpoints);
        poller
    }

    /// Asks these endpoints from now on, and no others. New ones are due at once.
    pub fn follow(&mut self, endpoints: impl IntoIterator<Item = EndpointId>) {
        let before = std::mem::take(&mut self.schedules);
        for id in endpoints {
            for asking in &self.askings {
                let key = (id, asking.question);
                let schedule = before.get(&key).copied().unwrap_or_default();
                self.schedules.insert(key, schedule);
            }
        }
    }

    /// Where the answer to a question is.
    pub fn path(&self, question: Question) -> Option<&str> {
        let asking = self.askings.iter().find(|one| one.question == question);
        asking.map(|asking| asking.path.as_str())
    }

    /// Whom to ask what now: a new endpoint at once, and then once an interval. Endpoints that came together
    /// are drawn apart by a second turn that comes up to half an interval early. `totals` is what this Envoy has in flight.
    pub fn due(
        &mut self,
        now_ms: u64,
        totals: &BTreeMap<EndpointId, Load>,
    ) -> Vec<(EndpointId, Question)> {
        let mut due = Vec::new();
        for ((id, question), schedule) in &mut self.schedules {
            let asking = self.askings.iter().find(|one| one.question == *question);
            let interval_ms = asking.map_or(u64::MAX, |asking| asking.interval_ms);
            // The host drops an answer without a word when its VM dies; give up on it in the end.
            let patience_ms = self.timeout_ms.saturating_mul(2);
            if schedule
                .asked
                .is_some_and(|asked| now_ms.abs_diff(asked.at_ms) > patience_ms)
            {
                schedule.asked = None;
            }
            let set_back = schedule.due_ms > now_ms.saturating_add(interval_ms);
            if schedule.asked.is_none() && (schedule.due_ms <= now_ms || set_back) {
                let early_ms = match schedule.due_ms {
                    0 => early_ms(*id, *question, interval_ms),
                    _ => 0,
                };
                schedule.due_ms = now_ms.saturating_add(interval_ms.saturating_sub(early_ms));
                schedule.asked = Some(Asked {
                    at_ms: now_ms,
                    ours: ours(*id, totals),
                });
                due.push((*id, *question));
            }
        }
        due
    }

    /// The question could not even be asked.
    pub fn failed(&mut self, id: EndpointId, question: Question) {
        if let Some(schedule) = self.schedules.get_mut(&(id, question)) {
            schedule.asked = None;
        }
    }

    /// An answer came.
    ///
    /// The gauges were taken at some time between question and answer, so the larger of what we had
    /// in flight at either moment is taken to be in them: better to miss some of other people's
    /// traffic than to count our own twice.
    pub fn answered(
        &mut self,
        (id, question): (EndpointId, Question),
        now_ms: u64,
        status: u16,
        body: &[u8],
        totals: &BTreeMap<EndpointId, Load>,
    ) -> Answer {
        let schedule = self.schedules.get_mut(&(id, question));
        let Some(asked) = schedule.and_then(|schedule| schedule.asked.take()) else {
            return Answer::Nothing;
        };
        if let Some(answer) = in_place_of(status, body) {
            return answer;
        }
        if question != Question::Metrics {
            return Answer::Page;
        }
        let snapshot = match status {
            200 => scrape::parse(body).ok(),
            _ => None,
        };
        let Some(snapshot) = snapshot else {
            return Answer::Unread;
        };
        let report = Report {
            endpoint: id,
            at_ms: now_ms,
            running: snapshot.running.unwrap_or(0),
            waiting: snapshot.waiting.unwrap_or(0),
            kv_usage_permille: snapshot.kv_usage_permille.unwrap_or(0),
            ours: asked.ours.max(ours(id, totals)),
            ours_held_tokens: totals.get(&id).map_or(0, |load| {
                // Prompts that wait hold nothing yet.
                load.context_tokens.saturating_sub(load.prefill_tokens)
            }),
            // A size is of no use without a fill.
            kv_tokens: snapshot
                .kv_usage_permille
                .and(snapshot.kv_tokens())
                .unwrap_or(0),
            life: Life::of(&snapshot),
        };
        Answer::Report {
            asked_ms: asked.at_ms,
            report,
            awake: snapshot.awake,
            adapters: adapters_of(&snapshot),
        }
    }
}

/// What Envoy's own answer in an engine's place means; `None` if the engine itself answered.
fn in_place_of(status: u16, body: &[u8]) -> Option<Answer> {
    let says = |words: &[u8]| body.windows(words.len()).any(|part| part == words);
    match status {
        0 => Some(Answer::Nothing),
        503 if says(REFUSED) => Some(Answer::Refused),
        503 if says(NO_CONNECTION) => Some(Answer::Silent),
        504 if body.is_empty() || body.starts_with(NO_ANSWER) => Some(Answer::Silent),
        503 if body.starts_with(NO_ANSWER) => Some(Answer::Nothing),
        _ => None,
    }
}

/// By how much the second turn comes early, in milliseconds: at most half an interval. The same in every VM.
fn early_ms(id: EndpointId, question: Question, interval_ms: u64) -> u64 {
    let hash = xxhash_rust::xxh64::xxh64(&id.0.to_le_bytes(), question as u64);
    hash % (interval_ms / 2).saturating_add(1)
}

fn ours(id: EndpointId, totals: &BTreeMap<EndpointId, Load>) -> u32 {
    totals.get(&id).map_or(0, |load| load.requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &[u8] =
        b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n";

    const METRICS_OF: fn(u64) -> (EndpointId, Question) = |id| (EndpointId(id), Question::Metrics);

    fn poller<const N: usize>(endpoints: [EndpointId; N]) -> Poller {
        let asking = Asking {
            question: Question::Metrics,
            path: "/metrics".into(),
            interval_ms: 1_000,
        };
        Poller::new(vec![asking], 800, endpoints)
    }

    fn reported(answer: Answer) -> Report {
        match answer {
            Answer::Report { report, .. } => report,
            other => panic!("{other:?}"),
        }
    }

    fn totals(requests: u32) -> BTreeMap<EndpointId, Load> {
        BTreeMap::from([(
            EndpointId(1),
            Load {
                requests,
                ..Load::default()
            },
        )])
    }

    #[test]
    fn each_endpoint_is_asked_once_an_interval() {
        let mut poller = poller([EndpointId(1), EndpointId(2)]);
        assert_eq!(poller.due(10, &totals(0)), [METRICS_OF(1), METRICS_OF(2)]);
        assert_eq!(poller.due(110, &totals(0)), []);
        let report = reported(poller.answered(METRICS_OF(1), 120, 200, METRICS, &totals(1)));
        assert_eq!(
            (report.running, report.waiting, report.ours, report.others()),
            (3, 2, 1, 4)
        );
        assert_eq!(
            poller.answered(METRICS_OF(2), 120, 503, METRICS, &totals(1)),
            Answer::Unread
        );
    }

    #[test]
    fn only_the_second_turn_comes_early() {
        for id in 1..=20 {
            let mut poller = poller([EndpointId(id)]);
            let early_ms = early_ms(EndpointId(id), Question::Metrics, 1_000);
            assert!(early_ms <= 500);
            for due_ms in [10, 1_010 - early_ms, 2_010 - early_ms, 3_010 - early_ms] {
                if due_ms > 10 {
                    assert_eq!(poller.due(due_ms - 1, &totals(0)), []);
                }
                assert_eq!(poller.due(due_ms, &totals(0)), [METRICS_OF(id)]);
                poller.failed(EndpointId(id), Question::Metrics);
            }
        }
    }

    #[test]
    fn endpoints_that_came_together_are_not_all_asked_together_again() {
        let mut poller = poller::<1_000>(std::array::from_fn(|id| EndpointId(id as u64)));
        let mut asked = |now_ms| {
            let due = poller.due(now_ms, &totals(0));
            for (id, question) in &due {
                poller.failed(*id, *question);
            }
            due.len()
        };
        assert_eq!(asked(10_000), 1_000);
        let counts: Vec<usize> = (10_100..=15_000).step_by(100).map(asked).collect();
        assert!(counts.iter().all(|count| *count < 300), "{counts:?}");
        assert_eq!(counts.get(..4), Some([0; 4].as_slice()));
        // Each goes on at its own pace.
        let total: usize = counts.iter().sum();
        assert!((5_000..=6_000).contains(&total), "{total}");
    }

    #[test]
    fn what_left_while_the_question_was_under_way_is_not_other_peoples_traffic() {
        let mut poller = poller([EndpointId(1)]);
        poller.due(0, &totals(5));
        let report = reported(poller.answered(METRICS_OF(1), 50, 200, METRICS, &totals(0)));
        assert_eq!(report.others(), 0);
    }

    #[test]
    fn m3_an_answer_that_never_comes_is_given_up_and_asked_for_again() {
        let mut poller = poller([EndpointId(1)]);
        assert_eq!(poller.due(0, &totals(0)).len(), 1);
        assert_eq!(poller.due(1_000, &totals(0)), []);
        assert_eq!(poller.due(1_601, &totals(0)).len(), 1);
        poller.failed(EndpointId(1), Question::Metrics);
        assert_eq!(poller.due(2_601, &totals(0)).len(), 1);
    }

    #[test]
    fn who_comes_is_due_at_once_and_who_leaves_is_not_asked() {
        let mut poller = poller([EndpointId(1), EndpointId(2)]);
        poller.due(0, &totals(0));
        poller.follow([EndpointId(2), EndpointId(3)]);
        assert_eq!(poller.due(100, &totals(0)), [METRICS_OF(3)]);
        // An answer of one that left is nobody's.
        let answer = poller.answered(METRICS_OF(1), 110, 200, METRICS, &totals(0));
        assert_eq!(answer, Answer::Nothing);
        reported(poller.answered(METRICS_OF(2), 110, 200, METRICS, &totals(0)));
    }

    #[test]
    fn an_answer_without_known_families_says_no_more_than_that_there_is_one() {
        for status in [200, 404, 500] {
            let mut poller = poller([EndpointId(1)]);
            poller.due(0, &totals(0));
            let answer = poller.answered(METRICS_OF(1), 5, status, b"<html>", &totals(0));
            assert_eq!(answer, Answer::Unread);
        }
    }

    #[test]
    fn health_is_asked_where_engines_are_scraped() {
        let asked = |rest: &str| {
            let json = format!(r#"{{"endpoints": [{{"address": "10.0.0.1:80"}}]{rest}}}"#);
            let askings = questions(&Config::parse(json.as_bytes()).unwrap());
            let one = |asking: Asking| (asking.question, asking.path, asking.interval_ms);
            askings.into_iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(asked(""), []);
        let all = asked(
            r#", "scrape": {"cluster": "c", "interval_ms": 500}, "health": {"sleep_path": "/s"}"#,
        );
        let expected = [
            (Question::Metrics, "/metrics"),
            (Question::Health, "/health"),
            (Question::Sleeping, "/s"),
        ];
        assert_eq!(
            all,
            expected.map(|(question, path)| (question, path.into(), 500))
        );
        let metrics = asked(r#", "scrape": {"cluster": "c"}, "health": {"path": ""}"#);
        assert_eq!(metrics.len(), 1);
    }

    #[test]
    fn pages_are_for_others_to_read() {
        let asking = Asking {
            question: Question::Health,
            path: "/health".into(),
            interval_ms: 1_000,
        };
        let asked = (EndpointId(1), Question::Health);
        for (status, body, expected) in [
            (200, b"".as_slice(), Answer::Page),
            (503, b"", Answer::Page),
            (404, b"", Answer::Page),
            (504, b"upstream request timeout", Answer::Silent),
            (503, b"upstream connect error", Answer::Nothing),
            (0, b"", Answer::Nothing),
        ] {
            let mut poller = Poller::new(vec![asking.clone()], 800, [EndpointId(1)]);
            assert_eq!(poller.due(0, &totals(0)), [asked]);
            let answer = poller.answered(asked, 5, status, body, &totals(0));
            assert_eq!(answer, expected, "{status}");
        }
    }

    #[test]
    fn a_refused_connection_is_told_from_an_answer_and_from_silence() {
        let ask = |status, body: &[u8]| {
            let mut poller = poller([EndpointId(1)]);
            poller.due(0, &totals(0));
            poller.answered(METRICS_OF(1), 5, status, body, &totals(0))
        };
        // As Envoy 1.40 says it.
        let refused = b"upstream connect error or disconnect/reset before headers. reset reason: \
            remote connection failure";
        assert_eq!(ask(503, refused), Answer::Refused);
        assert_eq!(ask(200, refused), Answer::Unread);
        let timeout = b"upstream connect error or disconnect/reset before headers. reset reason: \
            connection timeout";
        let late = b"upstream request timeout";
        for (status, body) in [(503, timeout.as_slice()), (504, late), (504, b"")] {
            assert_eq!(ask(status, body), Answer::Silent, "{status}");
        }
        for (status, body) in [(503, b"".as_slice()), (504, b"a proxy's")] {
            assert_eq!(ask(status, body), Answer::Unread, "{status}");
        }
        assert_eq!(ask(0, b""), Answer::Nothing);
        // Nobody has asked.
        let mut poller = poller([EndpointId(1)]);
        let answer = poller.answered(METRICS_OF(1), 5, 503, refused, &totals(0));
        assert_eq!(answer, Answer::Nothing);
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_harmless(status: u16, body: Vec<u8>, engine: bool) {
            let mut poller = poller([EndpointId(1)]);
            poller.due(0, &totals(0));
            let mut page = match engine {
                true => METRICS.to_vec(),
                false => Vec::new(),
            };
            page.extend_from_slice(b"vllm:prompt_tokens_total ");
            page.extend_from_slice(&body);
            let answer = poller.answered(METRICS_OF(1), 5, status, &page, &totals(0));
            let read = matches!(answer, Answer::Report { .. });
            proptest::prop_assert!(status == 200 || !read);
        }
    }
}
