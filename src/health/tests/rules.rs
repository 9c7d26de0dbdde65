//! One row at a time.

use super::*;

const START_MS: u64 = 1_000_000;

/// A row that hears things.
struct Heard {
    row: Row,
    now_ms: u64,
    settings: Settings,
}

impl Heard {
    fn new(settings: Settings) -> Self {
        Self {
            row: Row::default(),
            now_ms: START_MS,
            settings,
        }
    }

    fn hear(&mut self, signal: Signal) -> &mut Self {
        self.row.hear(signal, self.now_ms, &self.settings);
        self
    }

    fn wait(&mut self, pause_ms: u64) -> &mut Self {
        self.now_ms += pause_ms;
        self
    }

    fn is(&mut self, state: State, why: Why) -> &mut Self {
        let found = self.row.state(self.now_ms, &self.settings);
        assert_eq!(
            found,
            (state, why),
            "after {} ms",
            self.now_ms.wrapping_sub(START_MS)
        );
        self
    }

    fn is_ready(&mut self) -> &mut Self {
        self.is(State::Ready, Why::Nothing)
    }

    fn claim(&mut self) -> &mut Self {
        let standing = self.row.standing(self.now_ms, &self.settings);
        assert_eq!(standing, Standing::Probing);
        self.row.claim(self.now_ms);
        let standing = self.row.standing(self.now_ms, &self.settings);
        let one_at_a_time = matches!(standing, Standing::Failing | Standing::Out);
        assert!(one_at_a_time, "{standing:?}");
        self
    }
}

fn scraped(kv_permille: u32) -> Signal {
    Signal::Scraped {
        kv_permille,
        awake: None,
    }
}

fn overloaded(retry_after_ms: u64) -> Signal {
    Signal::Overloaded {
        retry_after_ms: Some(retry_after_ms),
    }
}

#[test]
fn good_news_of_a_clean_row_changes_nothing() {
    let mut row = Row::default();
    for signal in [
        Signal::Good,
        Signal::Alive,
        Signal::Unproved,
        scraped(500),
        Signal::EngineHealthy,
        Signal::Awake,
        Signal::Envoy(Verdict::Healthy),
        Signal::Envoy(Verdict::Degraded),
    ] {
        assert!(!row.hear(signal, START_MS, &SCRAPED), "{signal:?}");
    }
    assert_eq!(row, Row::default());
}

#[test]
fn failures_in_a_row_eject_and_a_good_answer_in_between_starts_anew() {
    let mut heard = Heard::new(UNSCRAPED);
    heard.hear(Signal::Failed).hear(Signal::Failed).is_ready();
    heard.hear(Signal::Good).hear(Signal::Failed);
    heard.hear(Signal::Failed).is_ready();
    heard
        .hear(Signal::Failed)
        .is(State::Ejected, Why::Failures)
        .wait(999)
        .is(State::Ejected, Why::Failures)
        .wait(1)
        .is(State::Probing, Why::Failures);
}

#[test]
fn a_probe_that_fails_doubles_the_rest_up_to_the_longest() {
    let mut heard = Heard::new(UNSCRAPED);
    heard.hear(Signal::Refused);
    for rest_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000] {
        // Whoever else fails meanwhile was sent before.
        heard.hear(Signal::Failed).hear(Signal::Refused);
        heard.wait(rest_ms - 1).is(State::Ejected, Why::Refused);
        heard.wait(1).is(State::Probing, Why::Refused);
        heard.claim().hear(Signal::Refused);
    }
    heard.wait(60_000).claim().hear(Signal::Good).is_ready();
    // The next one begins from the shortest.
    heard.hear(Signal::Refused).wait(1_000);
    heard.is(State::Probing, Why::Refused);
}

#[test]
fn what_was_sent_before_neither_closes_a_breaker_nor_makes_its_rest_longer() {
    let mut heard = Heard::new(UNSCRAPED);
    heard.hear(Signal::Refused).wait(500).hear(Signal::Good);
    heard.is(State::Ejected, Why::Refused);
    // A failure that nobody probed for: the same rest again.
    heard.wait(600).hear(Signal::Failed).wait(999);
    heard.is(State::Ejected, Why::Failures);
    heard.wait(1).is(State::Probing, Why::Failures);
}

#[test]
fn a_claim_runs_out_and_one_that_says_nothing_is_given_back() {
    let mut heard = Heard::new(UNSCRAPED);
    heard.hear(Signal::Refused).wait(1_000).claim();
    heard.wait(PROBE_MS).claim();
    heard.wait(10).hear(Signal::Unproved).claim();
}

#[test]
fn f5_an_overloaded_endpoint_rests_as_long_as_it_asks() {
    let mut heard = Heard::new(UNSCRAPED);
    heard
        .hear(overloaded(3_000))
        .is(State::Resting, Why::Overloaded);
    // Good answers of others do not end it, a shorter wish does not shorten it.
    heard.wait(1_000).hear(Signal::Good).hear(overloaded(10));
    heard.wait(1_999).is(State::Resting, Why::Overloaded);
    heard.wait(1).is_ready();
    // Who asks for years does not get them.
    heard.hear(overloaded(u64::MAX)).wait(600_000 - 1);
    heard.is(State::Resting, Why::Overloaded).wait(1).is_ready();
}

#[test]
fn overloads_that_follow_each_other_rest_longer_and_a_burst_counts_once() {
    let mut heard = Heard::new(UNSCRAPED);
    let overload = Signal::Overloaded {
        retry_after_ms: None,
    };
    for rest_ms in [1_000, 2_000, 4_000] {
        for _ in 0..20 {
            heard.hear(overload);
        }
        heard.wait(rest_ms - 1).is(State::Resting, Why::Overloaded);
        heard.wait(1).is_ready();
    }
    heard.hear(Signal::Good).hear(overload).wait(1_000);
    heard.is_ready().hear(overload).wait(1_999);
    // Not everything is refused: the next rest is short again.
    heard.hear(Signal::Good).wait(1).hear(overload).wait(2_000);
    heard.is_ready();
    assert_eq!(heard.row.failures, 0, "an overload is no failure");
}

#[test]
fn who_was_passed_over_rests_and_is_tried_by_one_request_but_is_never_out() {
    let mut heard = Heard::new(UNSCRAPED);
    for rest_ms in [1_000, 2_000, 4_000, 8_000] {
        // However many are passed on at once.
        for _ in 0..20 {
            heard.hear(Signal::Blamed).is(State::Resting, Why::Blamed);
        }
        heard.wait(rest_ms - 1).is(State::Resting, Why::Blamed);
        heard.wait(1).is(State::Probing, Why::Blamed);
        heard.row.claim(heard.now_ms);
        let standing = heard.row.standing(heard.now_ms, &heard.settings);
        assert_eq!(standing, Standing::Resting, "still the last resort");
    }
    heard.hear(Signal::Good).is_ready();
    assert_eq!(heard.row, Row::default());
    // It says that it is overloaded: then that is what it rests for.
    heard.hear(Signal::Blamed).wait(1_000);
    heard.hear(overloaded(500)).wait(500).is_ready();
    // It fails in another way.
    heard.hear(Signal::Blamed).wait(2_000).hear(Signal::Failed);
    heard.is(State::Resting, Why::Blamed).hear(Signal::Failed);
    heard.hear(Signal::Failed).is(State::Ejected, Why::Failures);
}

#[test]
fn a_refused_endpoint_is_tried_as_soon_as_it_answers_a_scrape_and_not_before() {
    let mut heard = Heard::new(SCRAPED);
    heard.hear(Signal::Refused).wait(100);
    heard.hear(scraped(0)).is(State::Probing, Why::Refused);
    heard.claim().hear(Signal::Good).is_ready();
    // While scrapes are refused, no request of a client is spent on it for long.
    heard.hear(Signal::Refused);
    for _ in 0..59 {
        heard.wait(1_000).hear(Signal::ScrapeRefused);
        heard.is(State::Ejected, Why::Refused);
    }
    heard.hear(scraped(0)).is(State::Probing, Why::Refused);
}

#[test]
fn scrapes_that_never_reach_an_ejected_endpoint_do_not_keep_it_from_being_tried() {
    for scrape in [Signal::ScrapeSilent, Signal::ScrapeRefused] {
        let mut heard = Heard::new(SCRAPED);
        heard.hear(Signal::Refused);
        // The rest is twice as long the second time.
        for rest_s in [1, 2] {
            for _ in 0..59 + rest_s {
                heard.wait(1_000).hear(scrape);
                heard.is(State::Ejected, Why::Refused);
            }
            heard.wait(1_000).hear(scrape);
            heard.is(State::Probing, Why::Refused).claim();
            heard.hear(Signal::Refused);
        }
        heard.wait(62_000).hear(scrape).hear(Signal::Good);
        assert!(!heard.row.ejected.is_set(), "the breaker closes");
    }
    // What the engine itself says goes on holding it back.
    let told = [Signal::EngineUnhealthy, scraped(1_000)];
    for told in told {
        let mut heard = Heard::new(SCRAPED);
        for _ in 0..20 {
            heard.hear(told).wait(1_000);
        }
        heard.hear(Signal::Refused);
        for _ in 0..200 {
            heard.wait(1_000).hear(told).hear(Signal::ScrapeSilent);
            heard.is(State::Ejected, Why::Refused);
        }
    }
}

#[test]
fn an_engine_that_says_it_is_well_shows_life() {
    let mut heard = Heard::new(SCRAPED);
    heard.hear(Signal::Refused).hear(Signal::ScrapeSilent);
    heard.wait(1_000).is(State::Ejected, Why::Refused);
    heard.hear(Signal::EngineHealthy);
    heard.is(State::Probing, Why::Refused);
    let mut heard = Heard::new(SCRAPED);
    heard.hear(Signal::ScrapeSilent);
    heard.is(State::Resting, Why::Silent);
    heard.wait(100).hear(Signal::EngineHealthy).is_ready();
}

#[test]
fn after_failures_the_rest_runs_out_even_if_scrapes_are_good() {
    let mut heard = Heard::new(SCRAPED);
    for _ in 0..3 {
        heard.hear(Signal::Failed);
    }
    heard.hear(scraped(0)).is(State::Ejected, Why::Failures);
    heard.wait(1_000).is(State::Probing, Why::Failures);
}

#[test]
fn without_any_sign_of_life_it_is_tried_in_the_end() {
    let mut heard = Heard::new(SCRAPED);
    for _ in 0..3 {
        heard.hear(Signal::Failed);
    }
    heard.wait(60_999).is(State::Ejected, Why::Failures);
    heard.wait(1).is(State::Probing, Why::Failures);
}

#[test]
fn a_silent_endpoint_rests_unless_it_shows_life() {
    let mut heard = Heard::new(SCRAPED);
    heard
        .hear(Signal::ScrapeSilent)
        .is(State::Resting, Why::Silent);
    assert!(heard.row.wants_life());
    heard.wait(50).hear(Signal::Alive).is_ready();
    // Scrapes stay silent, and it goes on answering.
    for _ in 0..20 {
        heard
            .wait(900)
            .hear(Signal::ScrapeSilent)
            .hear(Signal::Alive);
        heard.is_ready();
    }
    heard
        .wait(LIFE_MS)
        .hear(Signal::ScrapeSilent)
        .is(State::Resting, Why::Silent);
    heard.hear(scraped(0)).is_ready();
    assert_eq!(heard.row, Row::default());
}

#[test]
fn a_refused_scrape_is_no_silence() {
    let mut heard = Heard::new(SCRAPED);
    heard
        .hear(Signal::ScrapeRefused)
        .is(State::Resting, Why::Refused);
    // An engine that is being stopped finishes what it has.
    heard.hear(Signal::Alive).hear(Signal::Good);
    heard.is(State::Resting, Why::Refused);
    heard.hear(scraped(0)).is_ready();
}

#[test]
fn who_comes_is_warming_until_something_good_is_heard() {
    for (signal, settings) in [
        (scraped(0), SCRAPED),
        (Signal::Good, SCRAPED),
        (Signal::Alive, SCRAPED),
        (Signal::EngineHealthy, SCRAPED),
    ] {
        let mut heard = Heard::new(settings);
        heard
            .hear(Signal::Came)
            .is(State::Warming, Why::Nothing)
            .wait(9_999)
            .is(State::Warming, Why::Nothing)
            .hear(signal)
            .is_ready();
        assert_eq!(heard.row, Row::default());
    }
    // Scrapes say nothing at all, not even that they fail.
    let mut heard = Heard::new(SCRAPED);
    heard.hear(Signal::Came).wait(10_000).is_ready();
    Heard::new(UNSCRAPED).hear(Signal::Came).is_ready();
}

#[test]
fn who_leaves_gets_nothing_and_comes_back_as_another() {
    let mut heard = Heard::new(SCRAPED);
    heard.hear(Signal::Refused).hear(Signal::Left);
    heard.is(State::Draining, Why::Nothing).wait(1_000);
    heard.hear(Signal::Came).is(State::Warming, Why::Nothing);
    heard.hear(scraped(0)).is_ready();
    // One that another configuration names goes on there.
    heard.hear(Signal::Left).wait(LEFT_MS).is_ready();
}

#[test]
fn what_envoy_says_counts_until_it_says_otherwise_or_nothing_for_long() {
    let mut heard = Heard::new(UNSCRAPED);
    let unhealthy = Signal::Envoy(Verdict::Unhealthy);
    heard.hear(unhealthy).is(State::Ejected, Why::Envoy);
    heard.hear(Signal::Good).is(State::Ejected, Why::Envoy);
    heard.hear(Signal::Envoy(Verdict::Healthy));
    heard.is_ready().hear(Signal::Envoy(Verdict::Draining));
    heard.is(State::Draining, Why::Nothing);
    heard.hear(unhealthy).is(State::Ejected, Why::Envoy);
    heard.wait(VERDICT_MS - 1).is(State::Ejected, Why::Envoy);
    heard.wait(1).is_ready();
}

#[test]
fn what_one_configuration_says_another_does_not_undo() {
    let other = Settings {
        configuration: 8,
        ..UNSCRAPED
    };
    let healthy = Signal::Envoy(Verdict::Healthy);
    for bad in [Verdict::Unhealthy, Verdict::Draining] {
        let mut heard = Heard::new(UNSCRAPED);
        heard.hear(Signal::Envoy(bad));
        let (state, why) = heard.row.state(heard.now_ms, &UNSCRAPED);
        assert_ne!(state, State::Ready);
        for pause_ms in [990, 1_000, 1_010].repeat(20) {
            heard.wait(pause_ms);
            heard.row.hear(healthy, heard.now_ms, &other);
            heard.is(state, why).hear(Signal::Envoy(bad));
        }
        // Once nobody says so any more, it is back within seconds, and at once if who said so says otherwise.
        let mut own = Heard {
            row: heard.row,
            now_ms: heard.now_ms,
            settings: UNSCRAPED,
        };
        own.wait(1).hear(healthy).is_ready();
        assert_eq!(own.row, Row::default());
        heard.wait(2_500);
        heard.row.hear(healthy, heard.now_ms, &other);
        heard.is_ready();
        assert_eq!(heard.row, Row::default());
    }
}

#[test]
fn a_sleeping_engine_is_out_and_an_unwell_one_rests() {
    let mut heard = Heard::new(SCRAPED);
    heard.hear(Signal::Asleep).is(State::Ejected, Why::Asleep);
    heard.hear(scraped(0)).is(State::Ejected, Why::Asleep);
    heard.hear(Signal::Awake).is_ready();
    let told = |awake| Signal::Scraped {
        kv_permille: 0,
        awake: Some(awake),
    };
    heard.hear(told(false)).is(State::Ejected, Why::Asleep);
    heard.hear(told(true)).is_ready();
    heard.hear(Signal::EngineUnhealthy);
    heard.is(State::Resting, Why::Unhealthy).hear(scraped(0));
    heard.is(State::Resting, Why::Unhealthy);
    heard.hear(Signal::EngineHealthy).is_ready();
    // Nobody asks any more: what was said does not count for ever.
    heard.hear(Signal::EngineUnhealthy).hear(Signal::Asleep);
    heard.wait(5_000).is_ready();
}

#[test]
fn a_kv_cache_that_is_full_for_long_rests_until_it_is_not() {
    let mut heard = Heard::new(SCRAPED);
    for _ in 0..10 {
        heard.hear(scraped(980)).is_ready().wait(1_000);
    }
    heard.hear(scraped(990)).is(State::Resting, Why::KvFull);
    heard.hear(scraped(979)).is_ready().hear(scraped(1_000));
    heard.is_ready();
}

#[test]
fn a_clock_that_is_set_back_ends_every_rest() {
    for signal in [
        Signal::Refused,
        overloaded(600_000),
        Signal::Blamed,
        Signal::ScrapeSilent,
        Signal::ScrapeRefused,
        Signal::EngineUnhealthy,
        Signal::Asleep,
        Signal::Envoy(Verdict::Unhealthy),
        Signal::Envoy(Verdict::Draining),
        Signal::Came,
        Signal::Left,
    ] {
        let mut heard = Heard::new(SCRAPED);
        heard.hear(signal);
        heard.now_ms -= 900_000;
        let standing = heard.row.standing(heard.now_ms, &SCRAPED);
        assert!(
            matches!(standing, Standing::Ready | Standing::Probing),
            "{signal:?}"
        );
        // And what is heard then counts from then.
        heard
            .hear(overloaded(1_000))
            .hear(Signal::Scraped {
                kv_permille: 0,
                awake: Some(true),
            })
            .hear(Signal::EngineHealthy)
            .hear(Signal::Envoy(Verdict::Healthy))
            .wait(1_000)
            .hear(Signal::Good)
            .is_ready();
    }
    let mut heard = Heard::new(UNSCRAPED);
    heard.hear(Signal::Refused).wait(1_000).claim();
    heard.now_ms -= 900_000;
    heard.claim();
}

#[test]
fn what_is_left_of_a_rest_is_told() {
    let mut heard = Heard::new(UNSCRAPED);
    let left = |heard: &Heard| heard.row.back_in_ms(heard.now_ms, &heard.settings);
    assert_eq!(left(&heard), 1_000);
    heard.hear(overloaded(3_000)).wait(1_200);
    assert_eq!(left(&heard), 1_800);
    heard.hear(Signal::Refused).wait(1);
    assert_eq!(left(&heard), 1_799);
}

proptest! {
    /// A row is what its bytes say, and whatever bytes there are make a row.
    #[test]
    fn rows_survive_their_bytes(
        bytes in proptest::collection::vec(any::<u8>(), codec::ROW),
        signals in proptest::collection::vec((signals(), pauses()), 0..20),
    ) {
        let mut rows = vec![codec::decode(&bytes), Row::default()];
        let mut written = [0; codec::ROW];
        codec::encode(EndpointId(7), &rows[0], &mut written);
        prop_assert_eq!(codec::decode(&written), rows[0]);
        let mut now_ms = START_MS;
        for row in &mut rows {
            for (signal, pause_ms) in &signals {
                now_ms += pause_ms;
                row.hear(*signal, now_ms, &SCRAPED);
            }
            let mut written = [0; codec::ROW];
            codec::encode(EndpointId(7), row, &mut written);
            prop_assert_eq!(codec::endpoint(&written), Some(EndpointId(7)));
            prop_assert_eq!(codec::decode(&written), *row);
        }
    }

    /// From wherever, time and good news lead back.
    #[test]
    fn nobody_is_out_for_ever(
        bytes in proptest::collection::vec(any::<u8>(), codec::ROW),
        recent in proptest::collection::vec((signals(), pauses()), 0..20),
        start_ms in START_MS..u64::MAX / 2,
        settings in prop_oneof![Just(SCRAPED), Just(UNSCRAPED)],
    ) {
        let asked_ms = settings.max_rest_ms * ASKED_REST_FACTOR;
        // Else nearly all would be too old to count.
        let any = Row { heard_s: 0, ..codec::decode(&bytes) };
        for written in [any, Row::default()] {
            let (mut row, mut now_ms) = (written, start_ms);
            for (signal, pause_ms) in &recent {
                now_ms += pause_ms;
                row.hear(*signal, now_ms, &settings);
            }
            let left_ms = row.back_in_ms(now_ms, &settings);
            prop_assert!((1..=asked_ms).contains(&left_ms), "{left_ms}");
            now_ms += asked_ms;
            if written == Row::default() {
                // Time alone is enough for whatever was heard.
                let standing = row.standing(now_ms, &settings);
                prop_assert!(standing < Standing::Resting, "{row:?}");
            }
            for signal in [
                Signal::Scraped { kv_permille: 0, awake: Some(true) },
                Signal::EngineHealthy,
                Signal::Envoy(Verdict::Healthy),
            ] {
                row.hear(signal, now_ms, &settings);
            }
            // What bytes say was written at just this moment is over by then.
            now_ms += asked_ms;
            row.hear(Signal::Good, now_ms, &settings);
            prop_assert_eq!(row.standing(now_ms, &settings), Standing::Ready);
        }
    }
}
