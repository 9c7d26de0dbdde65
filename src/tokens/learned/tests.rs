use super::*;
use proptest::prelude::*;

const PRIOR: TokenEstimator = TokenEstimator {
    bytes_per_token_milli: 4_000,
    output_tokens: 256,
    image_tokens: 1_024,
};

/// A chat of one prompt under a model; prompts of one `key` begin alike.
fn chat(model: &str, key: u64, text_bytes: u64, limit: Option<u32>) -> InferenceRequest {
    let mut request = InferenceRequest::unknown(Api::ChatCompletions, Scan::Complete);
    request.model = Some(model.to_owned());
    request.max_output_tokens = limit;
    request.prompt.text_bytes = text_bytes;
    request.prompt.items = 1;
    request.prompt.routing = Some(key);
    request
}

fn usage(prompt_tokens: u64, completion_tokens: u64) -> Option<Usage> {
    Some(Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens: None,
    })
}

fn answered(learned: &mut Learned, request: &InferenceRequest, usage: Option<Usage>) {
    learned.learn(&PRIOR, &Lesson::of(request), usage, 0);
}

fn estimator(learned: &Learned, request: &InferenceRequest) -> TokenEstimator {
    learned.estimator(&PRIOR, &Lesson::of(request))
}

fn near(value: u32, truth: u32) -> bool {
    u64::from(value.abs_diff(truth)) * 100 <= u64::from(truth) * 3
}

#[test]
fn before_any_answer_everything_is_as_configured() {
    let learned = Learned::default();
    assert_eq!(estimator(&learned, &chat("m", 1, 5_000, None)), PRIOR);
    assert_eq!(learned.text_estimator(&PRIOR, Some("m")), PRIOR);
}

#[test]
fn each_model_and_adapter_has_its_own_bytes_per_token_after_a_few_answers() {
    let mut learned = Learned::default();
    for _ in 0..4 {
        answered(&mut learned, &chat("m", 1, 8_000, None), usage(2_500, 9));
        answered(&mut learned, &chat("lora", 1, 8_000, None), usage(4_000, 9));
    }
    let milli = |model| estimator(&learned, &chat(model, 9, 1, None)).bytes_per_token_milli;
    assert!(near(milli("m"), 3_200), "{}", milli("m"));
    assert!(near(milli("lora"), 2_000), "{}", milli("lora"));
    assert_eq!(milli("other"), 4_000);
    let lora = learned.text_estimator(&PRIOR, Some("lora"));
    assert_eq!(lora.bytes_per_token_milli, milli("lora"));
}

#[test]
fn what_says_nothing_of_text_teaches_nothing_of_it() {
    let plain = chat("m", 1, 8_000, None);
    let with = |change: fn(&mut InferenceRequest)| {
        let mut request = plain.clone();
        change(&mut request);
        request
    };
    let odd = [
        with(|request| request.prompt.images = 1),
        with(|request| request.prompt.token_ids = 1),
        with(|request| request.scan = Scan::Partial),
        with(|request| request.api = Api::Responses),
        with(|request| request.prompt.text_bytes = 100),
    ];
    for request in odd {
        let mut learned = Learned::default();
        answered(&mut learned, &request, usage(4_000, 9));
        assert_eq!(
            estimator(&learned, &plain).bytes_per_token_milli,
            4_000,
            "{request:?}"
        );
    }
    // Anthropic's own count leaves out what was cached.
    let messages = with(|request| request.api = Api::Messages);
    for (cached_tokens, learns) in [(Some(1_900), false), (Some(0), true), (None, true)] {
        let mut learned = Learned::default();
        let usage = Usage {
            prompt_tokens: 1_000,
            completion_tokens: 9,
            cached_tokens,
        };
        answered(&mut learned, &messages, Some(usage));
        let milli = estimator(&learned, &plain).bytes_per_token_milli;
        assert_eq!(milli != 4_000, learns, "{cached_tokens:?}");
    }
}

#[test]
fn reports_beyond_belief_teach_nothing() {
    let mut learned = Learned::default();
    let request = chat("m", 1, 8_000, None);
    for prompt_tokens in [0, 1, 124, 16_001, 1_000_000_000_000, u64::MAX] {
        answered(&mut learned, &request, usage(prompt_tokens, 0));
        answered(&mut learned, &request, usage(prompt_tokens, u64::MAX));
    }
    assert_eq!(estimator(&learned, &request), PRIOR);
    // The longest that counts is a length that there is.
    answered(&mut learned, &request, usage(2_000, MAX_TOKENS));
    let output_tokens = estimator(&learned, &request).output_tokens;
    assert!(output_tokens < 1 << 15, "{output_tokens}");
}

#[test]
fn outputs_are_those_of_the_key_then_those_of_the_model() {
    let mut learned = Learned::default();
    for _ in 0..40 {
        answered(&mut learned, &chat("m", 1, 2_000, None), usage(500, 20));
        answered(&mut learned, &chat("m", 2, 2_000, None), usage(500, 900));
    }
    let expected = |key| estimator(&learned, &chat("m", key, 1, None)).output_tokens;
    assert!((18..60).contains(&expected(1)), "{}", expected(1));
    assert!((800..910).contains(&expected(2)), "{}", expected(2));
    assert!((300..700).contains(&expected(3)), "{}", expected(3));
    let other = estimator(&learned, &chat("other", 1, 1, None));
    assert_eq!(other.output_tokens, 256, "keys of models are their own");
}

#[test]
fn an_output_that_its_limit_cut_off_is_no_proof_of_short_ones() {
    let mut learned = Learned::default();
    let short = chat("m", 1, 2_000, Some(4));
    for _ in 0..50 {
        answered(&mut learned, &short, usage(500, 4));
    }
    assert_eq!(estimator(&learned, &short).output_tokens, 256);
    assert_eq!(
        estimator(&learned, &short)
            .estimate(&short, None)
            .decode_tokens,
        4
    );
    // One that stopped before its limit is.
    let free = chat("m", 1, 2_000, Some(4_000));
    for _ in 0..50 {
        answered(&mut learned, &free, usage(500, 30));
    }
    let cost = estimator(&learned, &free).estimate(&free, None);
    assert!((30..40).contains(&cost.decode_tokens), "{cost:?}");
    // And one that was cut off above the mean is, too: it is at least that long.
    for _ in 0..50 {
        answered(&mut learned, &free, usage(500, 4_000));
    }
    let cost = estimator(&learned, &free).estimate(&free, None);
    assert!((3_500..=4_000).contains(&cost.decode_tokens), "{cost:?}");
}

/// A body that was not read to its end may set a limit there.
#[test]
fn an_output_whose_limit_is_not_known_teaches_nothing_of_outputs() {
    let mut learned = Learned::default();
    let mut cut = chat("m", 1, 8_000, None);
    cut.scan = Scan::Partial;
    for _ in 0..50 {
        answered(&mut learned, &cut, usage(2_000, 2));
    }
    assert_eq!(estimator(&learned, &cut), PRIOR);
}

#[test]
fn several_outputs_share_what_is_reported_and_events_count_where_nothing_is() {
    let mut learned = Learned::default();
    let mut request = chat("m", 1, 2_000, None);
    request.n = 3;
    request.prompt.items = 2;
    for _ in 0..60 {
        answered(&mut learned, &request, usage(500, 240));
    }
    let expected = estimator(&learned, &request).output_tokens;
    assert!((38..46).contains(&expected), "{expected}");
    let lesson = Lesson::of(&chat("streams", 1, 2_000, None));
    for _ in 0..60 {
        learned.learn(&PRIOR, &lesson, None, 80);
    }
    let expected = learned.estimator(&PRIOR, &lesson).output_tokens;
    assert!((78..86).contains(&expected), "{expected}");
}

#[test]
fn what_was_learned_long_ago_makes_room() {
    let mut learned = Learned::default();
    let model = |number: usize| format!("model-{number}");
    for number in 0..=MODELS {
        answered(
            &mut learned,
            &chat(&model(number), 1, 8_000, None),
            usage(8_000, 9),
        );
    }
    let milli = |number| {
        let request = chat(&model(number), 1, 1, None);
        estimator(&learned, &request).bytes_per_token_milli
    };
    assert_eq!(milli(0), 4_000);
    assert!((1..=MODELS).all(|number| milli(number) < 2_000));
}

fn reported() -> impl Strategy<Value = Option<Usage>> {
    let tokens = || {
        prop_oneof![
            Just(0),
            0..10_000_u64,
            Just(1_000_000_000_000),
            any::<u64>()
        ]
    };
    let one = (tokens(), tokens(), proptest::option::of(tokens()));
    proptest::option::of(
        one.prop_map(|(prompt_tokens, completion_tokens, cached_tokens)| Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        }),
    )
}

fn asked() -> impl Strategy<Value = InferenceRequest> {
    let bytes = prop_oneof![0..20_000_u64, any::<u64>()];
    let limit = proptest::option::of(prop_oneof![0..5_000_u32, any::<u32>()]);
    let counts = (
        prop_oneof![0..4_u32, any::<u32>()],
        prop_oneof![0..4_u32, any::<u32>()],
    );
    (0..3_u8, 0..5_u64, bytes, limit, counts).prop_map(|(model, key, bytes, limit, (n, items))| {
        let mut request = chat(&model.to_string(), key, bytes, limit);
        (request.n, request.prompt.items) = (n, items);
        request
    })
}

proptest! {
    #[test]
    fn any_report_is_harmless_and_no_estimate_is_zero_or_above_its_limit(
        answers in proptest::collection::vec((asked(), reported(), any::<u64>()), 1..40),
        milli in 0_u32..100_000,
        output_tokens in 1_u32..(1 << 24),
    ) {
        let prior = TokenEstimator { bytes_per_token_milli: milli, output_tokens, ..PRIOR };
        let mut learned = Learned::default();
        for (request, usage, events) in &answers {
            let lesson = Lesson::of(request);
            learned.learn(&prior, &lesson, *usage, *events);
            let estimator = learned.estimator(&prior, &lesson);
            let low = milli.clamp(1, 500);
            let high = milli.max(64_000);
            prop_assert!((low..=high).contains(&estimator.bytes_per_token_milli), "{estimator:?}");
            prop_assert!(estimator.output_tokens > 0);
            prop_assert!(u64::from(estimator.output_tokens) <= MOST_OUTPUT_TOKENS.max(output_tokens.into()));
            let cost = estimator.estimate(request, None);
            prop_assert!(cost.prefill_tokens > 0);
            let outputs = u64::from(request.n.max(1)).saturating_mul(request.prompt.items.max(1).into());
            if let Some(limit) = request.max_output_tokens {
                prop_assert!(cost.decode_tokens <= u64::from(limit).saturating_mul(outputs));
                prop_assert_eq!(cost.decode_tokens == 0, limit == 0);
            } else {
                prop_assert!(cost.decode_tokens > 0);
            }
        }
    }

    /// Whatever came before, honest answers win.
    #[test]
    fn the_truth_is_found_after_any_nonsense(
        answers in proptest::collection::vec((asked(), reported(), any::<u64>()), 0..20),
    ) {
        let mut learned = Learned::default();
        for (request, usage, events) in &answers {
            learned.learn(&PRIOR, &Lesson::of(request), *usage, *events);
        }
        let request = chat("0", 0, 32_000, None);
        for _ in 0..600 {
            answered(&mut learned, &request, usage(10_000, 100));
        }
        let estimator = estimator(&learned, &request);
        prop_assert!(near(estimator.bytes_per_token_milli, 3_200), "{estimator:?}");
        prop_assert!(near(estimator.output_tokens, 100), "{estimator:?}");
    }
}
