//! Traces from files: what is read, what is refused and how, and the flags that choose a workload.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../examples/proving/workload/mod.rs"]
mod proving;

use clap::Parser;
use proptest::prelude::*;
use proving::WorkloadArgs;
use std::path::PathBuf;
use warmroute::sim::workload::{Request, Role, Start, Workload, csv, mooncake};

const MOONCAKE: &str = r#"{"timestamp": 7000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 5, 9]}
{"timestamp": 2500.5, "input_length": 1024, "output_length": 30, "hash_ids": [0, 5], "chat_id": 3}

{"timestamp": 7000, "input_length": 512, "output_length": 1, "hash_ids": [4]}
"#;

const CSV: &str = "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens
0.5,100,10,manual,60
0.25,50,20,,
1,80,5,manual,80
1,90,5, manual ,40
";

fn mooncake(text: &str) -> Result<Workload, String> {
    mooncake::read(text.as_bytes(), "conv.jsonl").map_err(|error| error.to_string())
}

fn csv(text: &str) -> Result<Workload, String> {
    csv::read(text.as_bytes(), "t.csv").map_err(|error| error.to_string())
}

/// Role and length of each segment.
fn shape(request: &Request) -> Vec<(Role, u32)> {
    let segments = request.prompt.iter();
    segments
        .map(|segment| (segment.role, segment.tokens))
        .collect()
}

fn starts(workload: &Workload) -> Vec<Start> {
    workload
        .requests
        .iter()
        .map(|request| request.start)
        .collect()
}

#[test]
fn a_mooncake_trace_is_read_in_the_order_of_time() {
    let workload = mooncake(MOONCAKE).unwrap();
    assert_eq!(workload.check(), Ok(()));
    let at = |us| Start::At { us };
    assert_eq!(starts(&workload), [at(0), at(4_499_500), at(4_499_500)]);
    let [second, first, third] = &workload.requests[..] else {
        panic!("{workload:?}");
    };
    let (system, user) = (Role::System, Role::User);
    assert_eq!(shape(first), [(system, 512), (user, 512), (user, 76)]);
    assert_eq!(shape(second), [(system, 512), (user, 512)]);
    assert_eq!(shape(third), [(user, 512)]);
    assert_eq!(first.prompt[..2], second.prompt[..]);
    assert_eq!(first.session, second.session);
    assert_ne!(first.session, third.session);
    assert_eq!((first.output_tokens, second.output_tokens), (20, 30));
    assert_eq!(first.chain(512), second.chain(512));
}

#[test]
fn what_is_no_mooncake_trace_is_refused_with_its_place() {
    let tokens = "a whole number of tokens from 1 to 10000000";
    let cases = [
        (
            r#"{"timestamp": 1, "input_length": -3, "output_length": 1, "hash_ids": [1]}"#,
            format!("input_length: expected {tokens}, found -3"),
        ),
        (
            r#"{"timestamp": 1, "input_length": 2.5, "output_length": 1, "hash_ids": [1]}"#,
            format!("input_length: expected {tokens}, found 2.5"),
        ),
        (
            r#"{"timestamp": 1, "output_length": 1, "hash_ids": [1]}"#,
            format!("input_length: expected {tokens}, found nothing"),
        ),
        (
            r#"{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}"#,
            format!("input_length: expected {tokens}, found 0"),
        ),
        (
            r#"{"timestamp": 1, "input_length": 3, "output_length": 0, "hash_ids": [1]}"#,
            format!("output_length: expected {tokens}, found 0"),
        ),
        (
            r#"{"timestamp": 1, "input_length": 3, "output_length": 99999999999, "hash_ids": [1]}"#,
            format!("output_length: expected {tokens}, found 99999999999"),
        ),
        (
            r#"{"timestamp": "1", "input_length": 3, "output_length": 1, "hash_ids": [1]}"#,
            "timestamp: expected milliseconds, from 0 on, found \"1\"".to_owned(),
        ),
        (
            r#"{"timestamp": -1, "input_length": 3, "output_length": 1, "hash_ids": [1]}"#,
            "timestamp: expected milliseconds, from 0 on, found -1".to_owned(),
        ),
        (
            r#"{"timestamp": 1e300, "input_length": 3, "output_length": 1, "hash_ids": [1]}"#,
            "timestamp: expected milliseconds, from 0 on, found 1e+300".to_owned(),
        ),
        (
            r#"{"timestamp": 1, "input_length": 3, "output_length": 1}"#,
            "hash_ids: expected an array of whole numbers, found nothing".to_owned(),
        ),
        (
            r#"{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": ["x"]}"#,
            "hash_ids: expected an array of whole numbers, found \"x\"".to_owned(),
        ),
        (
            r#"{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]}"#,
            "hash_ids: expected 2 for an input_length of 513 (512 tokens each), found 1".to_owned(),
        ),
        (
            r#"{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}"#,
            "hash_ids: expected 1 for an input_length of 512 (512 tokens each), found 2".to_owned(),
        ),
        (
            "[1, 2]",
            "line: expected a JSON object, found [1,2]".to_owned(),
        ),
        (
            r#"{"timestamp": 1,"#,
            "expected a JSON object, found EOF while parsing a value at column 16".to_owned(),
        ),
        (
            "arrival_s,input_tokens",
            "expected a JSON object, found expected value at column 1".to_owned(),
        ),
    ];
    let good = r#"{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [1]}"#;
    for (line, expected) in cases {
        // Without a newline behind it, as files end.
        let error = mooncake(&format!("{good}\n\n{line}")).unwrap_err();
        assert_eq!(error, format!("conv.jsonl:3: {expected}"));
    }
    let empty = mooncake(" \n\n").unwrap_err();
    assert_eq!(
        empty,
        "conv.jsonl: expected at least one request, found none"
    );
    let long = mooncake(&format!("{good}\n{}", " ".repeat(2_000_000))).unwrap_err();
    assert_eq!(
        long,
        "conv.jsonl:2: expected at most 1048576 bytes in a line"
    );
    let binary = mooncake::read(&b"{\"timestamp\": \xff}"[..], "b").unwrap_err();
    assert_eq!(binary.line, 1);
}

#[test]
fn a_csv_trace_is_read_in_the_order_of_time() {
    let workload = csv(CSV).unwrap();
    assert_eq!(workload.check(), Ok(()));
    let at = |us| Start::At { us };
    assert_eq!(
        starts(&workload),
        [at(0), at(250_000), at(750_000), at(750_000)]
    );
    let [alone, first, whole, part] = &workload.requests[..] else {
        panic!("{workload:?}");
    };
    let user = Role::User;
    assert_eq!(shape(alone), [(user, 50)]);
    assert_eq!(shape(first), [(user, 60), (user, 40)]);
    assert_eq!(shape(whole), [(user, 80)]);
    assert_eq!(shape(part), [(user, 40), (user, 50)]);
    for request in [whole, part] {
        assert_eq!(request.prompt[0].id, first.prompt[0].id);
        assert_eq!(request.session, first.session);
    }
    assert_ne!(alone.session, first.session);
    // 60 tokens of the first; 40 of the first two; by blocks of 20, and never the last token.
    let share = workload.facts(20).cacheable_share;
    assert!((share - 100.0 / 320.0).abs() < 1e-12, "{share}");
    assert_ne!(first.prompt[1].id, part.prompt[1].id);
    // The same without what is not needed, in another order, with marks that spreadsheets leave.
    let plain = csv("\u{feff}output_tokens,arrival_s,input_tokens\r\n3,1e0,7\r\n").unwrap();
    assert_eq!(shape(&plain.requests[0]), [(user, 7)]);
    assert_eq!(plain.requests[0].output_tokens, 3);
}

#[test]
fn what_is_no_csv_trace_is_refused_with_its_place() {
    let header = "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens";
    let tokens = "a whole number of tokens from 1 to";
    let cases = [
        (
            "x,1,1,,",
            "arrival_s: expected decimal seconds, from 0 on, found x".to_owned(),
        ),
        (
            "-1,1,1,,",
            "arrival_s: expected decimal seconds, from 0 on, found -1".to_owned(),
        ),
        (
            "nan,1,1,,",
            "arrival_s: expected decimal seconds, from 0 on, found nan".to_owned(),
        ),
        (
            "inf,1,1,,",
            "arrival_s: expected decimal seconds, from 0 on, found inf".to_owned(),
        ),
        (
            ",1,1,,",
            "arrival_s: expected decimal seconds, from 0 on, found nothing".to_owned(),
        ),
        (
            "1,-3,1,,",
            format!("input_tokens: expected {tokens} 10000000, found -3"),
        ),
        (
            "1,0,1,,",
            format!("input_tokens: expected {tokens} 10000000, found 0"),
        ),
        (
            "1,1,1.5,,",
            format!("output_tokens: expected {tokens} 10000000, found 1.5"),
        ),
        (
            "1,9,1,g,",
            format!("prefix_tokens: expected {tokens} 9, found nothing"),
        ),
        (
            "1,9,1,g,10",
            format!("prefix_tokens: expected {tokens} 9, found 10"),
        ),
        (
            "1,9,1,,5",
            "prefix_group: expected a name, since prefix_tokens is given, found nothing".to_owned(),
        ),
        ("1,9,1", "expected 5 fields, found 3".to_owned()),
        (
            "1,\"2\n3\",1,,",
            format!("input_tokens: expected {tokens} 10000000, found 2\u{fffd}3"),
        ),
        ("1,9,1,g,5,6", "expected 5 fields, found 6".to_owned()),
    ];
    for (line, expected) in cases {
        let error = csv(&format!("{header}\n1,1,1,,\n{line}")).unwrap_err();
        assert_eq!(error, format!("t.csv:3: {expected}"));
    }
    let list = "arrival_s, input_tokens, output_tokens, prefix_group, prefix_tokens";
    let headers = [
        (
            "",
            "header: expected a column arrival_s, found none".to_owned(),
        ),
        (
            "arrival_s,input_tokens\n1,1",
            "header: expected a column output_tokens, found none".to_owned(),
        ),
        (
            "arrival_s,prefix_goup\n1,1",
            format!("header: expected columns of {list}, found prefix_goup"),
        ),
        (
            "arrival_s,arrival_s\n1,1",
            "header: expected arrival_s once, found it again".to_owned(),
        ),
    ];
    for (text, expected) in headers {
        assert_eq!(csv(text).unwrap_err(), format!("t.csv:1: {expected}"));
    }
    let empty = csv(header).unwrap_err();
    assert_eq!(empty, "t.csv: expected at least one request, found none");
    let binary = csv::read(
        &b"arrival_s,input_tokens,output_tokens\n1,1,\xff\n"[..],
        "t.csv",
    );
    let binary = binary.unwrap_err().to_string();
    assert_eq!(binary, "t.csv:2: expected UTF-8 text");
}

proptest! {
    /// What is read can be run; what is not, is refused with a line that is there.
    #[test]
    fn any_bytes_are_read_or_refused(
        edits in prop::collection::vec((0usize..5, any::<prop::sample::Index>(), any::<u8>()), 0..6),
        is_csv in any::<bool>(),
    ) {
        let whole = if is_csv { CSV } else { MOONCAKE };
        let mut bytes = whole.as_bytes().to_vec();
        for (count, place, byte) in edits {
            let place = place.index(bytes.len());
            bytes.splice(place..(place + count).min(bytes.len()), [byte]);
        }
        let read = if is_csv {
            csv::read(&bytes[..], "t")
        } else {
            mooncake::read(&bytes[..], "t")
        };
        match read {
            Ok(workload) => prop_assert_eq!(workload.check(), Ok(())),
            Err(error) => {
                // A carriage return ends a line of CSV as well.
                let ends = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r'));
                prop_assert!(error.line <= 1 + ends.count() as u64, "{}", error);
                prop_assert!(!error.to_string().contains('\n'), "{}", error);
            }
        }
    }
}

#[derive(Parser, Debug)]
struct Cli {
    #[command(flatten)]
    workload: WorkloadArgs,
}

/// The workload that flags come to, with its sentence, or the words of the refusal.
fn load(flags: &[&str]) -> Result<(Workload, String), String> {
    let flags = ["program"].iter().chain(flags);
    let cli = Cli::try_parse_from(flags).map_err(|error| error.to_string())?;
    let workload = cli.workload.load(1)?;
    let sentence = cli.workload.describe(&workload);
    Ok((workload, sentence))
}

fn written(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn flags_choose_a_workload_and_its_size() {
    let (chat, sentence) =
        load(&["--workload", "chat", "--threads", "7", "--requests", "60"]).unwrap();
    let first = chat
        .requests
        .iter()
        .filter(|r| matches!(r.start, Start::At { .. }));
    assert_eq!((chat.requests.len(), first.count()), (60, 7));
    assert!(
        sentence.starts_with("chat: Chats of 7.4 turns"),
        "{sentence}"
    );
    assert!(
        sentence.contains("; 60 requests, prompts of "),
        "{sentence}"
    );
    let names = ["chat-open", "rag", "burst", "mix", "uniform", "lora"];
    for name in names {
        let (workload, _) = load(&["--workload", name, "--requests", "50", "--rate", "3"]).unwrap();
        assert_eq!(
            (workload.name.as_str(), workload.requests.len()),
            (name, 50)
        );
    }
    let (small, sentence) = load(&[
        "--workload",
        "mix",
        "--long-tokens",
        "800",
        "--prompt-tokens",
        "80",
        "--shrink",
        "8",
        "--max-prompt-tokens",
        "99",
        "--long-percent",
        "50",
        "--output-tokens",
        "8",
        "--requests",
        "100",
    ])
    .unwrap();
    assert!(
        small
            .requests
            .iter()
            .all(|r| r.prompt_tokens() == 10 && r.output_tokens == 1)
    );
    assert!((30..70).contains(&small.requests.len()));
    let dropped = 100 - small.requests.len();
    let words = format!("lengths divided by 8, without {dropped} prompts over 99 tokens");
    assert!(sentence.contains(&words), "{sentence}");
}

#[test]
fn traces_are_read_by_their_name_and_sent_at_the_rate_that_is_asked_for() {
    let path = written("three.jsonl", MOONCAKE);
    let trace = path.to_str().unwrap();
    let (workload, sentence) = load(&["--trace", trace, "--rate", "4"]).unwrap();
    let at = |us| Start::At { us };
    assert_eq!(starts(&workload), [at(0), at(500_000), at(500_000)]);
    assert!(
        sentence.contains("three.jsonl: Mooncake trace, times stretched to 4 requests/s"),
        "{sentence}"
    );
    let (workload, _) = load(&["--trace", trace, "--requests", "2"]).unwrap();
    assert_eq!(workload.requests.len(), 2);
    let path = written("four.csv", CSV);
    let (workload, _) = load(&["--trace", path.to_str().unwrap()]).unwrap();
    assert_eq!(workload.requests.len(), 4);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("traces");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("conversation_trace.jsonl"), MOONCAKE).unwrap();
    let directory = directory.to_str().unwrap();
    let (workload, _) = load(&["--workload", "conversation", "--traces", directory]).unwrap();
    assert_eq!(
        (workload.name.as_str(), workload.requests.len()),
        ("conversation", 3)
    );
    let missing = load(&["--workload", "mooncake-1000", "--traces", directory]).unwrap_err();
    assert!(missing.starts_with(directory), "{missing}");
    for words in [
        "mooncake_trace_1000.jsonl: ",
        "kvcache-ai/Mooncake on GitHub",
        "--traces",
    ] {
        assert!(missing.contains(words), "{missing}");
    }
}

#[test]
fn flags_out_of_range_or_out_of_place_are_refused() {
    let broken = written("broken.jsonl", "{}\n");
    let broken = broken.to_str().unwrap();
    let cases: [(&[&str], &str); 14] = [
        (&["--requests", "0"], "0 is not in 1..=1000000"),
        (
            &["--rate", "0"],
            "expected requests per second from 0.001 to 100000",
        ),
        (
            &["--rate", "nan"],
            "expected requests per second from 0.001 to 100000",
        ),
        (&["--zipf=-1"], "expected an exponent from 0 to 10"),
        (&["--shrink", "0"], "0 is not in 1..=10000"),
        (&["--long-percent", "101"], "101 is not in 0..=100"),
        (
            &["--workload", "nothing"],
            "possible values: chat, chat-open",
        ),
        (
            &["--workload", "rag", "--trace", "t.csv"],
            "cannot be used with '--trace",
        ),
        (
            &["--trace", "trace.txt"],
            "trace.txt: expected a trace named .jsonl or .csv",
        ),
        (
            &["--trace", broken],
            "broken.jsonl:1: timestamp: expected milliseconds",
        ),
        (
            &["--workload", "rag", "--threads", "3"],
            "--threads is for the workload chat",
        ),
        (
            &["--trace", broken, "--zipf", "1"],
            "--zipf is for the workload rag, lora",
        ),
        (
            &["--workload", "chat", "--rate", "1"],
            "--rate: chat is a closed loop",
        ),
        (
            &["--workload", "mix", "--max-prompt-tokens", "1"],
            "mix: no request is left",
        ),
    ];
    for (flags, words) in cases {
        let error = load(flags).unwrap_err();
        assert!(error.contains(words), "{flags:?}: {error}");
    }
}
