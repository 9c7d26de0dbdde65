//! A small answer of an engine.

use warmroute::scrape;
use wasm_bindgen_test::wasm_bindgen_test;

#[wasm_bindgen_test(unsupported = test)]
fn m2_a_small_answer() {
    let snapshot = scrape::parse(
        b"# TYPE vllm:num_requests_running gauge\r\n\
          vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b}\"} 3.0 # {t=\"x\"} 1\r\n\
          vllm:num_requests_waiting{engine=\"0\"} 1.2e+01\n\
          vllm:kv_cache_usage_perc{engine=\"0\"} 0.4375\n\
          vllm:prefix_cache_hits_total{engine=\"0\"} 8.128902e+12\n\
          vllm:prefix_cache_queries_total{engine=\"0\"} +Inf\n\
          vllm:cache_config_info{block_size=\"128\",num_gpu_blocks=\"16384\"} 1.0\n\
          process_start_time_seconds 1.79601084815e+09",
    )
    .unwrap();
    assert_eq!(
        (
            snapshot.running,
            snapshot.waiting,
            snapshot.kv_usage_permille
        ),
        (Some(3), Some(12), Some(438))
    );
    assert_eq!(
        (snapshot.prefix_hits_tokens, snapshot.prefix_queries_tokens),
        (Some(8_128_902_000_000), None)
    );
    assert_eq!(
        (snapshot.block_size_tokens, snapshot.num_blocks),
        (Some(128), Some(16_384))
    );
    assert_eq!(
        (snapshot.start_time_seconds, snapshot.broken_lines),
        (Some(1_796_010_848), 0)
    );
}

#[wasm_bindgen_test(unsupported = test)]
fn a_whole_answer() {
    let snapshot = scrape::parse(include_bytes!("../data/vllm-0.32.0/metrics_after.body")).unwrap();
    assert_eq!(
        (snapshot.prompt_tokens, snapshot.output_tokens),
        (Some(12_393), Some(126))
    );
    assert_eq!(snapshot.running_adapters, Some(vec![]));
}
