//! Answers of real and imagined engines, read into snapshots.
// The helpers of tests may fail as loudly as the tests themselves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use proptest::prelude::*;
use warmroute::scrape::{
    self, Engine, MAX_ADAPTER_NAME_BYTES, MAX_ADAPTERS, ScrapeError, Snapshot,
};

const IDLE: &[u8] = include_bytes!("data/vllm-0.32.0/metrics_idle.body");
const AFTER: &[u8] = include_bytes!("data/vllm-0.32.0/metrics_after.body");
const BLOCK32: &[u8] = include_bytes!("data/vllm-0.32.0/metrics_after_block32.body");

fn parse(text: &str) -> Snapshot {
    scrape::parse(text.as_bytes()).unwrap()
}

fn after() -> Snapshot {
    Snapshot {
        engine: Engine::Vllm,
        running: Some(0),
        waiting: Some(0),
        kv_usage_permille: Some(0),
        awake: Some(true),
        running_adapters: Some(vec![]),
        waiting_adapters: Some(vec![]),
        max_adapters: Some(2),
        block_size_tokens: Some(128),
        num_blocks: Some(16384),
        start_time_seconds: Some(1_796_010_848),
        prefix_queries_tokens: Some(12_393),
        prefix_hits_tokens: Some(5_760),
        prompt_tokens: Some(12_393),
        output_tokens: Some(126),
        preemptions: Some(0),
        broken_lines: 0,
    }
}

#[test]
fn a_real_vllm_after_some_requests() {
    assert_eq!(scrape::parse(AFTER).unwrap(), after());
}

#[test]
fn a_real_vllm_before_any_request() {
    let idle = Snapshot {
        running_adapters: None,
        waiting_adapters: None,
        max_adapters: None,
        prefix_queries_tokens: Some(0),
        prefix_hits_tokens: Some(0),
        prompt_tokens: Some(0),
        output_tokens: Some(0),
        ..after()
    };
    assert_eq!(scrape::parse(IDLE).unwrap(), idle);
}

#[test]
fn a_real_vllm_with_small_blocks_and_no_adapters() {
    let block32 = Snapshot {
        running_adapters: None,
        waiting_adapters: None,
        max_adapters: None,
        block_size_tokens: Some(32),
        num_blocks: Some(2048),
        start_time_seconds: Some(1_796_011_144),
        prefix_queries_tokens: Some(8_318),
        prefix_hits_tokens: Some(4_032),
        prompt_tokens: Some(8_318),
        output_tokens: Some(1_763),
        ..after()
    };
    assert_eq!(scrape::parse(BLOCK32).unwrap(), block32);
}

#[test]
fn m1_waiting_by_reason_is_not_waiting() {
    let text =
        "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 7\nvllm:num_requests_running 2\n";
    let snapshot = parse(text);
    assert_eq!((snapshot.running, snapshot.waiting), (Some(2), None));
    let snapshot = parse(&format!(
        "{text}vllm:num_requests_waiting{{engine=\"0\"}} 3\n"
    ));
    assert_eq!(snapshot.waiting, Some(3));
}

#[test]
fn m2_engines_are_added_up_and_their_kv_usage_averaged() {
    let snapshot = parse(
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\r\n\
         vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\r\n\
         vllm:num_requests_waiting{engine=\"0\"} 1\r\nvllm:num_requests_waiting{engine=\"1\"} 1e1\r\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\r\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\r\n\
         vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\r\n\
         vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"100\"} 1\r\n",
    );
    assert_eq!(
        (
            snapshot.running,
            snapshot.waiting,
            snapshot.kv_usage_permille
        ),
        (Some(7), Some(11), Some(375))
    );
    assert_eq!(
        (snapshot.block_size_tokens, snapshot.num_blocks),
        (Some(16), Some(200))
    );
}

#[test]
fn m2_an_older_vllm() {
    let snapshot = parse(
        "vllm:num_requests_running{model_name=\"m\"} 1.0\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.0625\n\
         vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 64\nvllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 32\n",
    );
    assert_eq!(snapshot.kv_usage_permille, Some(63));
    assert_eq!(
        (snapshot.prefix_queries_tokens, snapshot.prefix_hits_tokens),
        (Some(64), Some(32))
    );
    assert_eq!(
        (snapshot.waiting, snapshot.running_adapters, snapshot.awake),
        (None, None, None)
    );
}

#[test]
fn m2_the_newer_name_of_the_kv_usage_wins() {
    for text in [
        "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n",
        "vllm:kv_cache_usage_perc 0.2\nvllm:gpu_cache_usage_perc 0.1\n",
    ] {
        assert_eq!(parse(text).kv_usage_permille, Some(200));
    }
}

#[test]
fn m2_values_that_are_no_load_are_missing() {
    let snapshot = parse(
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -0.5\n\
         vllm:num_preemptions_total 1e300 # {trace_id=\"a\"} 1\nvllm:prompt_tokens_total 1 1395066363000\n\
         vllm:generation_tokens_total broken\n",
    );
    assert_eq!(
        (
            snapshot.running,
            snapshot.waiting,
            snapshot.kv_usage_permille
        ),
        (None, None, None)
    );
    assert_eq!(
        (snapshot.preemptions, snapshot.prompt_tokens),
        (Some(u64::MAX), Some(1))
    );
    assert_eq!((snapshot.output_tokens, snapshot.broken_lines), (None, 1));
}

#[test]
fn a_kv_usage_above_all_is_all() {
    assert_eq!(
        parse("vllm:kv_cache_usage_perc 1.7\n").kv_usage_permille,
        Some(1000)
    );
    assert_eq!(
        parse("vllm:num_requests_running 1e10\n").running,
        Some(u32::MAX)
    );
}

#[test]
fn the_newest_set_of_adapters_counts_wherever_it_stands() {
    let old = "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a\",waiting_lora_adapters=\"b,c\"} 100.5";
    let new = "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"b, d\",waiting_lora_adapters=\"\"} 1.005e2";
    let newer = new.replace("1.005e2", "1.006e2");
    for text in [
        format!("{old}\n{newer}\n"),
        format!("{newer}\n{old}\n"),
        format!("{old}\n{new}\n"),
    ] {
        let snapshot = parse(&text);
        assert_eq!(snapshot.running_adapters.unwrap(), ["b", "d"]);
        assert_eq!(
            (snapshot.waiting_adapters, snapshot.max_adapters),
            (Some(vec![]), Some(4))
        );
    }
}

#[test]
fn adapters_are_bounded() {
    let names: Vec<String> = (0..10_000).map(|number| format!("a{number}")).collect();
    let long = "x".repeat(MAX_ADAPTER_NAME_BYTES + 1);
    let snapshot = parse(&format!(
        "vllm:lora_requests_info{{running_lora_adapters=\"{long},{}\"}} 1\n",
        names.join(",")
    ));
    let running = snapshot.running_adapters.unwrap();
    assert_eq!((running.len(), running[0].as_str()), (MAX_ADAPTERS, "a0"));
    assert_eq!(snapshot.waiting_adapters, None);
}

#[test]
fn a_sleeping_engine() {
    let text = "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\n\
                vllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 1.0\n";
    assert_eq!(parse(text).awake, Some(false));
}

#[test]
fn sglang_one_scheduler() {
    let snapshot = parse(
        "# HELP sglang:num_running_reqs The number of running requests.\n\
         sglang:num_running_reqs{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 12.0\n\
         sglang:num_queue_reqs{model_name=\"m\"} 5.0\nsglang:token_usage{model_name=\"m\"} 0.281\n\
         sglang:num_running_reqs_offline_batch{model_name=\"m\"} 99\n\
         sglang:prompt_tokens_total{model_name=\"m\"} 8.128902e+06\n\
         sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 1000\n\
         sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 24\n\
         sglang:generation_tokens_total{model_name=\"m\"} 7.557572e+06\n\
         sglang:cache_config_info{model_name=\"m\",num_pages=\"4096\",page_size=\"64\"} 1.0\n\
         process_start_time_seconds 1.7e+09\n",
    );
    let expected = Snapshot {
        engine: Engine::Sglang,
        running: Some(12),
        waiting: Some(5),
        kv_usage_permille: Some(281),
        awake: None,
        running_adapters: None,
        waiting_adapters: None,
        max_adapters: None,
        block_size_tokens: Some(64),
        num_blocks: Some(4096),
        start_time_seconds: Some(1_700_000_000),
        prefix_queries_tokens: Some(8_128_902),
        prefix_hits_tokens: Some(1_024),
        prompt_tokens: Some(8_128_902),
        output_tokens: Some(7_557_572),
        preemptions: None,
        broken_lines: 0,
    };
    assert_eq!(snapshot, expected);
}

#[test]
fn sglang_ranks_and_priorities_are_not_counted_twice() {
    let snapshot = parse(
        "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 2\nsglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 2\n\
         sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\"} 4\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"3\"} 4\n\
         sglang:num_queue_reqs{dp_rank=\"0\",priority=\"\"} 5\nsglang:num_queue_reqs{dp_rank=\"0\",priority=\"1\"} 3\n\
         sglang:num_queue_reqs{dp_rank=\"0\",priority=\"2\"} 2\n\
         sglang:token_usage{dp_rank=\"0\"} 0.2\nsglang:token_usage{dp_rank=\"1\"} 0.4\n\
         sglang:page_size{tp_rank=\"0\"} 1\nsglang:num_pages{tp_rank=\"0\"} 500\nsglang:num_pages{tp_rank=\"1\"} 500\n",
    );
    assert_eq!(
        (
            snapshot.running,
            snapshot.waiting,
            snapshot.kv_usage_permille
        ),
        (Some(6), Some(5), Some(300))
    );
    assert_eq!(
        (snapshot.block_size_tokens, snapshot.num_blocks),
        (Some(1), Some(500))
    );
}

#[test]
fn an_answer_of_something_else_is_an_error() {
    for text in [
        "",
        "<html><body>404 Not Found</body></html>",
        "process_start_time_seconds 1.7e9\npython_info 1\n",
        "vllm:num_requests_running NaN\n",
        "vllm:a_family_of_tomorrow 1\n",
    ] {
        assert_eq!(
            scrape::parse(text.as_bytes()),
            Err(ScrapeError::NoKnownFamily),
            "{text}"
        );
    }
    assert_eq!(
        ScrapeError::NoKnownFamily.to_string(),
        "no metric of a known engine in the answer"
    );
}

/// Pieces from which hard texts are put together.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "vllm:num_requests_running",
        "vllm:lora_requests_info",
        "vllm:cache_config_info",
        "sglang:token_usage",
        "process_start_time_seconds",
        "{",
        "}",
        "=",
        "\"",
        "\\",
        ",",
        " ",
        "\n",
        "\r\n",
        "# ",
        "1",
        "NaN",
        "-",
        "e9",
        "running_lora_adapters=\"a,b\"",
        "block_size=\"16\"",
        "dp_rank=\"1\"",
    ]);
    prop_oneof![
        8 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = scrape::parse(&bytes);
    }

    #[test]
    fn hard_texts_do_no_harm(pieces in prop::collection::vec(piece(), 0..60)) {
        let _ = scrape::parse(&pieces.concat());
    }

    #[test]
    fn a_text_cut_anywhere_is_read_as_far_as_it_goes(cut in 0..AFTER.len()) {
        if let Ok(snapshot) = scrape::parse(&AFTER[..cut]) {
            prop_assert!(snapshot.broken_lines <= 1);
            prop_assert_eq!(snapshot.running.unwrap_or(0), 0);
            prop_assert!(snapshot.block_size_tokens.is_none_or(|tokens| tokens == 128));
        }
    }

    #[test]
    fn a_broken_line_costs_only_itself(at in 0usize..700, broken in "vllm:num_requests_running[{ ][a-m{\"=\\\\]{0,20}") {
        let mut lines: Vec<&[u8]> = AFTER.split(|&byte| byte == b'\n').collect();
        lines.insert(at, broken.as_bytes());
        let snapshot = scrape::parse(&lines.join(&b'\n')).unwrap();
        prop_assert_eq!(snapshot, Snapshot { broken_lines: 1, ..after() });
    }

    #[test]
    fn the_order_of_lines_does_not_matter(seed in any::<u64>()) {
        let mut lines: Vec<&[u8]> = AFTER.split(|&byte| byte == b'\n').collect();
        lines.sort_by_key(|line| xxhash_rust::xxh64::xxh64(line, seed));
        prop_assert_eq!(scrape::parse(&lines.join(&b'\n')).unwrap(), after());
    }
}
