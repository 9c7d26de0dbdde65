//! Sessions under any sequence of inputs: several streams on several VMs that share one store, in
//! any order, with any bytes. A naive twin keeps the books by hand: what each stream reserved, where
//! it is charged now, and whether its prompt still counts. The ledger must agree after every step.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use warmroute::account::{Account, Outcome, Replay};
use warmroute::balancer::Balancer;
use warmroute::config::{Config, SteeringMode, Toggle};
use warmroute::endpoint::EndpointId;
use warmroute::policy::Load;
use warmroute::reply::{Reply, ReplyKind};
use warmroute::request::Api;
use warmroute::session::{Effects, Event, Failure, Flow, Input, Moment, Rest, Session, StreamView};
use warmroute::state::ledger::SLOT_TTL_MS;
use warmroute::state::memory::MemoryStore;
use warmroute::state::{Store, StoreError, Version};
use warmroute::steer::{NEXT_DST_HEADER, ORIGINAL_DST_HEADER, OVERRIDE_HOST_HEADER, Steer};
use warmroute::tokens::{MAX_FIRST_EVENT_BYTES, ResponseReader};

const STREAMS: usize = 6;
const VMS: usize = 3;

/// What a stream tells a session that asks.
#[derive(Clone, Debug)]
struct Script {
    request: Vec<(&'static str, Vec<u8>)>,
    status: Option<u16>,
    upstream: Option<Vec<u8>>,
    attempts: Option<u64>,
    details: Option<Vec<u8>>,
    content_type: Option<Vec<u8>>,
}

fn first(headers: &[(&'static str, Vec<u8>)], name: &str) -> Option<Vec<u8>> {
    let found = headers.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value.clone())
}

/// A script at one moment.
struct At<'a>(&'a Script, u64);

impl StreamView for At<'_> {
    fn now_us(&self) -> u64 {
        self.1
    }
    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        first(&self.0.request, name)
    }
    fn response_status(&self) -> Option<u16> {
        self.0.status
    }
    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        let busy = matches!(self.0.status, Some(429 | 503));
        match name {
            "content-type" => self.0.content_type.clone(),
            "retry-after" => busy.then(|| b"2".to_vec()),
            _ => None,
        }
    }
    fn upstream_address(&self) -> Option<Vec<u8>> {
        self.0.upstream.clone()
    }
    fn attempts(&self) -> Option<u64> {
        self.0.attempts
    }
    fn response_details(&self) -> Option<Vec<u8>> {
        self.0.details.clone()
    }
}

/// [`Input`] with bytes of its own.
#[derive(Clone, Debug, PartialEq)]
enum Happening {
    RequestHeaders(bool),
    RequestBody(Vec<u8>, bool),
    RequestTrailers,
    Watchdog,
    ResponseHeaders(bool),
    ResponseBody(Vec<u8>, bool),
    ResponseTrailers,
    Closed,
}

fn rest(end: bool) -> Rest {
    if end { Rest::End } else { Rest::Open }
}

impl Happening {
    fn input(&self) -> Input<'_> {
        match self {
            Self::RequestHeaders(end) => Input::RequestHeaders(rest(*end)),
            Self::RequestBody(bytes, end) => Input::RequestBody(bytes, rest(*end)),
            Self::RequestTrailers => Input::RequestTrailers,
            Self::Watchdog => Input::Watchdog,
            Self::ResponseHeaders(end) => Input::ResponseHeaders(rest(*end)),
            Self::ResponseBody(bytes, end) => Input::ResponseBody(bytes, rest(*end)),
            Self::ResponseTrailers => Input::ResponseTrailers,
            Self::Closed => Input::Closed,
        }
    }
}

/// One step of the world.
#[derive(Clone, Debug)]
enum Step {
    Happens(usize, Happening),
    /// The clock moves, back too; then every VM ticks.
    Clock(i64),
    Tick(usize),
    /// The VM is gone with its streams, and a new one takes its place.
    Dies(usize),
    /// The store refuses everything, or works again.
    StoreWorks(bool),
}

/// A store that can be switched off.
#[derive(Default)]
struct Switched {
    inner: MemoryStore,
    off: Cell<bool>,
}

impl Store for Switched {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        (!self.off.get()).then(|| self.inner.get(key)).flatten()
    }
    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        if self.off.get() {
            return Err(StoreError::Unavailable);
        }
        self.inner.replace(key, value, expected)
    }
    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        if self.off.get() {
            return Err(StoreError::Unavailable);
        }
        self.inner.put(key, value)
    }
}

/// What a stream holds, by the twin's books.
#[derive(Debug)]
struct Held {
    pool: String,
    endpoint: String,
    load: Load,
    /// Which API was called; `None` for what is no inference.
    api: Option<Api>,
    /// The answer so far.
    answer: ResponseReader,
    /// Whether headers have come, and what has come since while they are held.
    held_back: Option<Vec<u8>>,
}

impl Held {
    /// What comes of more of an answer, all of it read anew.
    fn read_beginning(&mut self, bytes: &[u8], end: bool) -> Wanted {
        let Some(so_far) = &mut self.held_back else {
            return Wanted::Pass;
        };
        so_far.extend(bytes);
        let end = end || self.answer.is_whole();
        let read = &so_far[..so_far.len().min(MAX_FIRST_EVENT_BYTES)];
        let is_long = read.len() == MAX_FIRST_EVENT_BYTES;
        let Some(document) = first_document(read, end && !is_long) else {
            if end || is_long {
                self.held_back = None;
                return Wanted::Pass;
            }
            return Wanted::Hold;
        };
        self.held_back = None;
        let mut reader = ResponseReader::default();
        reader.push(&document);
        reader.finish();
        match reader.error_code() {
            Some(_) => Wanted::Reply,
            None => Wanted::Pass,
        }
    }
}

/// The data of the first event that has any, if it is whole.
fn first_document(stream: &[u8], end: bool) -> Option<Vec<u8>> {
    // Bytes as characters: no line of UTF-8 is torn by that.
    let text: String = stream.iter().map(|byte| char::from(*byte)).collect();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    let last = lines.pop().unwrap_or_default();
    if end {
        lines.extend([last, ""]);
    }
    let mut data: Option<String> = None;
    for line in lines {
        if line.is_empty() && data.is_some() {
            let data = data?;
            return Some(data.chars().map(|letter| letter as u8).collect());
        }
        let line = line.strip_prefix("\u{ef}\u{bb}\u{bf}").unwrap_or(line);
        if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            data = Some(match data {
                Some(before) => format!("{before}\n{value}"),
                None => value.to_owned(),
            });
        }
    }
    None
}

/// One stream and what was seen of it.
struct Stream {
    vm: usize,
    session: Session,
    script: Script,
    held: Option<Held>,
    steers: u32,
    picks: u32,
    parses: u32,
    answers: u32,
    failures: u32,
    /// What the input should come to, as far as it is about an answer that is held.
    wanted: Wanted,
}

/// What becomes of a part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Pass,
    Hold,
    Reply,
}

struct World {
    store: Switched,
    vms: Vec<Balancer>,
    born: u64,
    configs: Vec<Rc<Config>>,
    streams: Vec<Stream>,
    now_us: u64,
    /// The latest that the clock ever showed.
    latest_us: u64,
    random: u64,
    /// The shared rows are what they should be; not while the store is off, or before the ticks
    /// that follow a jump of the clock.
    settled: bool,
}

impl World {
    fn new(configs: Vec<Rc<Config>>, scripts: Vec<Script>) -> Self {
        let streams = scripts
            .into_iter()
            .enumerate()
            .map(|(index, script)| Stream {
                vm: index % VMS,
                session: Session::default(),
                script,
                held: None,
                steers: 0,
                picks: 0,
                parses: 0,
                answers: 0,
                failures: 0,
                wanted: Wanted::Pass,
            });
        let mut world = Self {
            store: Switched::default(),
            vms: Vec::new(),
            born: 0,
            streams: streams.collect(),
            configs,
            now_us: 1_800_000_000_000_000,
            latest_us: 0,
            random: 7,
            settled: true,
        };
        for vm in 0..VMS {
            let balancer = world.balancer(vm);
            world.vms.push(balancer);
        }
        world
    }

    fn balancer(&mut self, vm: usize) -> Balancer {
        self.born += 1;
        Balancer::new(self.configs[vm % self.configs.len()].clone(), self.born)
    }

    fn step(&mut self, step: &Step) -> TestCaseResult {
        self.latest_us = self.latest_us.max(self.now_us);
        match step {
            Step::Happens(stream, happening) => {
                self.happens(*stream, happening)?;
                self.now_us += 1_000;
            }
            Step::Clock(by_ms) => {
                self.now_us = self.now_us.saturating_add_signed(by_ms * 1_000);
                self.settle();
            }
            Step::Tick(vm) => {
                let now_ms = self.now_us / 1_000;
                self.vms[*vm].tick(&self.store, now_ms);
            }
            Step::Dies(vm) => {
                self.vms[*vm] = self.balancer(*vm);
                for stream in self.streams.iter_mut().filter(|stream| stream.vm == *vm) {
                    stream.held = None;
                    stream.session = Session::default();
                    (stream.steers, stream.picks, stream.parses) = (0, 0, 0);
                    (stream.answers, stream.failures) = (0, 0);
                }
                self.outlive_the_dead();
            }
            Step::StoreWorks(works) => {
                self.store.off.set(!works);
                self.outlive_the_dead();
            }
        }
        self.books_agree()
    }

    /// The living tick while the time of the dead runs out. It counts from the last heartbeat, which
    /// lies in the future if the clock was set back.
    fn outlive_the_dead(&mut self) {
        let until_us = self.latest_us + (SLOT_TTL_MS + 1) * 1_000;
        while self.now_us <= until_us {
            self.now_us += SLOT_TTL_MS * 1_000 / 3;
            self.settle();
        }
    }

    fn settle(&mut self) {
        let now_ms = self.now_us / 1_000;
        for vm in &mut self.vms {
            vm.tick(&self.store, now_ms);
        }
        self.settled = !self.store.off.get();
    }

    fn happens(&mut self, index: usize, happening: &Happening) -> TestCaseResult {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let stream = &mut self.streams[index];
        let balancer = &mut self.vms[stream.vm];
        let was_open = stream.session.is_holding() || stream.held.is_some();
        let config = balancer.config().clone();
        stream.expect(&config, happening);
        let view = At(&stream.script, self.now_us);
        let moment = Moment::new(&self.store, self.random, &view);
        let effects = stream.session.handle(balancer, &moment, happening.input());
        stream.took(&config, &effects, was_open)
    }

    fn books_agree(&self) -> TestCaseResult {
        for stream in &self.streams {
            prop_assert_eq!(stream.session.is_in_flight(), stream.held.is_some());
        }
        if !self.settled || self.store.off.get() {
            return Ok(());
        }
        let names: BTreeMap<String, EndpointId> = self
            .vms
            .iter()
            .flat_map(|vm| vm.endpoints())
            .map(|(id, endpoint)| (endpoint.name().to_owned(), id))
            .collect();
        let mut expected: BTreeMap<EndpointId, Load> = BTreeMap::new();
        for held in self
            .streams
            .iter()
            .filter_map(|stream| stream.held.as_ref())
        {
            expected
                .entry(names[&held.endpoint])
                .or_default()
                .add(held.load);
        }
        let mut totals = self.vms[0].totals(&self.store);
        totals.retain(|_, load| !load.is_zero());
        prop_assert_eq!(totals, expected);
        Ok(())
    }
}

impl Stream {
    /// Changes the books as the input should, before the session sees it.
    fn expect(&mut self, config: &Config, happening: &Happening) {
        self.wanted = Wanted::Pass;
        let Some(held) = &mut self.held else { return };
        match happening {
            Happening::ResponseHeaders(end) => {
                let kind = self.script.content_type.clone().unwrap_or_default();
                let kind = String::from_utf8_lossy(&kind).to_lowercase();
                let is_stream = kind.starts_with("text/event-stream");
                let is_held =
                    !end && is_stream && held.api.is_some() && self.script.status == Some(200);
                if config.responses.hold_headers == Toggle::On && is_held {
                    held.held_back = Some(Vec::new());
                    self.wanted = Wanted::Hold;
                }
                let served = self.script.upstream.clone().unwrap_or_default();
                let served = String::from_utf8(served).unwrap_or_default();
                if config.steering.retries() > 0 && members(config, &held.pool).contains(&served) {
                    held.endpoint = served;
                }
            }
            Happening::ResponseBody(bytes, _) if held.api.is_some() => held.answer.push(bytes),
            _ => {}
        }
        self.wanted = match happening {
            Happening::ResponseBody(bytes, end) => held.read_beginning(bytes, *end),
            Happening::ResponseTrailers => held.read_beginning(&[], true),
            _ => self.wanted,
        };
        if *happening == Happening::Watchdog {
            held.held_back = None;
        }
        if let Happening::ResponseBody(bytes, false) = happening {
            let announces = held.api == Some(Api::Responses) && held.answer.is_stream();
            if !bytes.is_empty() && (!announces || held.answer.events() > 0) {
                (held.load.prefill_tokens, held.load.waiting) = (0, 0);
            }
        }
        let ended = held.answer.is_whole()
            || self.wanted == Wanted::Reply
            || matches!(
                happening,
                Happening::ResponseHeaders(true)
                    | Happening::ResponseBody(_, true)
                    | Happening::ResponseTrailers
                    | Happening::Closed
            );
        if ended {
            self.held = None;
        }
    }

    /// Checks what came of the input.
    fn took(&mut self, config: &Config, effects: &Effects, was_open: bool) -> TestCaseResult {
        let no_pick =
            |reply: &Reply| matches!(reply.kind, ReplyKind::NoEndpoint | ReplyKind::UnknownModel);
        let refused = effects.reply.as_ref().is_some_and(no_pick);
        match self.wanted {
            _ if refused => {
                prop_assert!(effects.flow == Flow::Hold && effects.steer.is_none());
            }
            Wanted::Pass => {
                prop_assert!(effects.flow == Flow::Continue || self.session.is_holding())
            }
            Wanted::Hold | Wanted::Reply => prop_assert_eq!(effects.flow, Flow::Hold),
        }
        let replied = refused || self.wanted == Wanted::Reply;
        prop_assert_eq!(effects.reply.is_some(), replied);
        for event in &effects.events {
            match event {
                Event::Parsed(_) => self.parses += 1,
                Event::Picked { .. } => self.picks += 1,
                Event::Answered(_) => self.answers += 1,
                // Of those that were tried before who served, each is one.
                Event::Failed {
                    failure: Failure::Replaced,
                    ..
                } => {}
                Event::Failed { .. } => self.failures += 1,
                Event::Retried { .. } | Event::WatchdogFired | Event::Replied(_) => {}
            }
        }
        if let Some(steer) = &effects.steer {
            self.steers += 1;
            self.steered(config, steer, effects.log_field.as_deref())?;
        }
        prop_assert!(
            self.steers <= 1 && self.picks == self.steers,
            "{} steers, {} picks",
            self.steers,
            self.picks
        );
        prop_assert!(self.parses <= 1 && self.answers <= 1 && self.failures <= 1);
        prop_assert!(effects.response_header.is_none() || was_open);
        if let Some(line) = effects
            .log_field
            .iter()
            .chain(&effects.response_header)
            .next()
        {
            prop_assert!(
                line.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
                "{}",
                line
            );
        }
        Ok(())
    }

    fn steered(&mut self, config: &Config, steer: &Steer, line: Option<&str>) -> TestCaseResult {
        let line = line.expect("the explanation is on");
        let account = Account::parse(line).expect("an account of the decision");
        let outcome = Replay::new(config).outcome(&account);
        prop_assert_eq!(&outcome, &Ok(Outcome::logged(&account)), "{}", line);
        let pool = account.pool;
        let both;
        let list = match (config.steering, steer) {
            (SteeringMode::OriginalDst, Steer::Header { name, value }) => {
                prop_assert_eq!(*name, ORIGINAL_DST_HEADER);
                prop_assert!(!value.contains(','));
                value
            }
            (SteeringMode::OverrideHost, Steer::Header { name, value }) => {
                prop_assert_eq!(*name, OVERRIDE_HOST_HEADER);
                value
            }
            (SteeringMode::FilterState, Steer::FilterState { value }) => value,
            (SteeringMode::Composite, Steer::Headers { first, next }) => {
                both = [Some(first.as_str()), next.as_deref()];
                &both.iter().flatten().copied().collect::<Vec<_>>().join(",")
            }
            (mode, steer) => panic!("{steer:?} in mode {mode:?}"),
        };
        let members = members(config, &pool);
        let named: Vec<&str> = list.split(',').collect();
        for endpoint in &named {
            prop_assert!(
                members.iter().any(|member| member == endpoint),
                "{} is no member",
                endpoint
            );
        }
        prop_assert_eq!(&account.ranked[0], named[0]);
        let prefill_tokens = account.cost.prefill_tokens.max(1);
        let decode_tokens = account.cost.decode_tokens;
        self.held = Some(Held {
            pool,
            endpoint: named[0].to_owned(),
            load: Load {
                requests: 1,
                waiting: 1,
                prefill_tokens,
                decode_tokens,
                context_tokens: prefill_tokens + decode_tokens,
            },
            api: first(&self.script.request, ":path").and_then(|path| Api::from_path(&path)),
            answer: ResponseReader::default(),
            held_back: None,
        });
        Ok(())
    }
}

fn members(config: &Config, pool: &str) -> Vec<String> {
    let pools = config.pools.iter().filter(|known| known.name == pool);
    pools
        .flat_map(|pool| pool.pool.endpoints())
        .map(|endpoint| endpoint.name().to_owned())
        .collect()
}

// What is drawn.

fn policy() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({"name": "round_robin"}),
        json!({"name": "random"}),
        json!({"name": "weighted_round_robin"}),
        json!({"name": "least_request"}),
        json!({"name": "least_outstanding_tokens"}),
        json!({"name": "power_of_two", "load": "tokens"}),
        json!({"name": "power_of_two", "load": "kv"}),
        json!({"name": "consistent_hash", "keys": [{"header": "x-session-id"}, {"cookie": "sid"}, {"body": "user"}]}),
        json!({"name": "prefix_hash"}),
        json!({"name": "prefix_hash", "bound": "requests", "load_factor": 1.0}),
        json!({"name": "prefix_hash", "bound": "expected_time"}),
        json!({"name": "power_of_two", "load": "expected_time"}),
        json!({"name": "expected_latency"}),
        json!({"name": "cache_aware"}),
        json!({"name": "cache_aware", "preset": "ray", "imbalance_requests": 1}),
    ])
}

fn endpoints(first: usize, count: usize) -> Value {
    let all = (first..first + count).map(|index| {
        let models = if index % 3 == 0 { json!(["tiny", "lora-a"]) } else { json!([]) };
        json!({"address": format!("10.0.0.{}:80", index + 1), "weight": 1 + index % 2, "models": models})
    });
    Value::Array(all.collect())
}

/// A configuration for each of two kinds of VM: pools that overlap, as during a change of the pool.
fn configs() -> impl Strategy<Value = Vec<Rc<Config>>> {
    let one = (
        policy(),
        policy(),
        0..3_usize,
        1..4_usize,
        1..3_usize,
        any::<bool>(),
    );
    let steering = prop::sample::select(vec![
        "original_dst",
        "filter_state",
        "override_host",
        "composite",
    ]);
    (steering, prop::collection::vec(one, 2), any::<bool>(), any::<bool>()).prop_map(|(steering, kinds, pass, hold)| {
        let parsed = kinds.into_iter().map(|(main, other, from, count, others, small)| {
            let text = json!({
                "steering": steering,
                "pools": [
                    {"name": "main", "policy": main, "endpoints": endpoints(from, count)},
                    {"name": "other", "models": ["lora-b"], "policy": other, "endpoints": endpoints(from + 2, others)},
                ],
                "hold": {"max_bytes": if small { 40 } else { 1_000_000 }},
                "explain": {"response_header": true, "log_field": true},
                "responses": {"hold_headers": hold},
                "other_paths": if pass { "pass" } else { "pick" },
            });
            Rc::new(Config::parse(text.to_string().as_bytes()).unwrap())
        });
        parsed.collect()
    })
}

fn words(choices: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(choices).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

fn header(
    name: &'static str,
    choices: &'static [&'static str],
) -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    prop::option::weighted(0.8, words(choices))
        .prop_map(move |value| value.map(|value| (name, value)).into_iter().collect())
}

fn script() -> impl Strategy<Value = Script> {
    let request = (
        header(
            ":method",
            &["POST", "POST", "POST", "GET", "HEAD", "OPTIONS"],
        ),
        header(
            ":path",
            &[
                "/v1/chat/completions",
                "/v1/chat/completions?beta=true",
                "/v1/completions",
                "/v1/responses",
                "/v1/messages",
                "/v1/models",
                "/",
                "",
            ],
        ),
        header(
            "content-length",
            &[
                "0",
                "5",
                "18446744073709551615",
                "99999999999999999999",
                "-1",
                "1e3",
            ],
        ),
        prop::option::weighted(0.1, Just(("content-encoding", b"gzip".to_vec()))),
        header("x-session-id", &["a", "b"]),
        header("cookie", &["sid=a", "sid=", "=;sid;; sid = b", "other=1"]),
    );
    let status = prop::option::of(prop::sample::select(vec![
        200, 200, 200, 400, 429, 500, 503, 504, 0,
    ]));
    let upstream = prop::option::of(words(&[
        "10.0.0.1:80",
        "10.0.0.2:80",
        "10.0.0.3:80",
        "10.0.0.4:80",
        "127.0.0.1:9901",
        "10.0.0.1",
    ]));
    let attempts = prop::sample::select(vec![None, Some(0), Some(1), Some(2), Some(u64::MAX)]);
    let details = prop::option::of(words(&[
        "via_upstream",
        "upstream_reset_before_response_started{connection_failure}",
        "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}",
        "upstream_reset_after_response_started{connection_termination}",
        "no_healthy_upstream",
        "downstream_remote_disconnect",
    ]));
    let content_type = prop::option::weighted(
        0.8,
        words(&[
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/json",
        ]),
    );
    (request, status, upstream, attempts, details, content_type).prop_map(
        |(request, status, upstream, attempts, details, content_type)| {
            let (method, path, length, request_encoding, session, cookie) = request;
            Script {
                request: [method, path, length, session, cookie]
                    .into_iter()
                    .flatten()
                    .chain(request_encoding)
                    .collect(),
                status,
                upstream,
                attempts,
                details,
                content_type,
            }
        },
    )
}

fn request_bytes() -> impl Strategy<Value = Vec<u8>> {
    words(&[
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
        "{\"model\":\"lora-b\",\"prompt\":[[1,2],[3]],\"n\":4294967296,\"max_tokens\":5.0}",
        "{\"model\":\"nobody\",\"user\":\"bob\",\"messages\":[",
        "{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"},{\"type\":\"text\",\"text\":\"\\ud800\"}]}",
        "]}",
        "{\"max_tokens\":-1e999,\"model\":null",
        "[[[[[[[[[[[[[[[[[[[[[[[[[",
        "",
    ])
}

fn response_bytes() -> impl Strategy<Value = Vec<u8>> {
    words(&[
        "data: {\"choices\":[{\"text\":\"Hi\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":18446744073709551615,\"prompt_tokens_details\":{\"cached_tokens\":null}}}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n",
        "data: {\"error\":{\"code\":503}}\n\n",
        "data: {\"error\":{\"code\":99999999999}}\r\n\r\n",
        "data: [DONE]\n\n",
        "{\"usage\":{\"prompt_tokens\":1e400}}",
        "data: {\"cho",
        ": wait\n\n",
        "event: error\r",
        "\n",
        "",
    ])
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        5 => prop::bool::weighted(0.2).prop_map(Happening::RequestHeaders),
        6 => (request_bytes(), prop::bool::weighted(0.5)).prop_map(|(bytes, end)| Happening::RequestBody(bytes, end)),
        1 => Just(Happening::RequestTrailers),
        1 => Just(Happening::Watchdog),
        3 => prop::bool::weighted(0.1).prop_map(Happening::ResponseHeaders),
        4 => (response_bytes(), prop::bool::weighted(0.2)).prop_map(|(bytes, end)| Happening::ResponseBody(bytes, end)),
        1 => Just(Happening::ResponseTrailers),
        1 => Just(Happening::Closed),
    ]
}

fn answering() -> impl Strategy<Value = Happening> {
    prop_oneof![
        20 => (response_bytes(), prop::bool::weighted(0.05)).prop_map(|(bytes, end)| Happening::ResponseBody(bytes, end)),
        // Longer than an error may be.
        1 => Just(Happening::ResponseBody(vec![b'x'; MAX_FIRST_EVENT_BYTES - 20], false)),
        1 => Just(Happening::Watchdog),
        1 => Just(Happening::ResponseTrailers),
        1 => Just(Happening::Closed),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => (0..STREAMS, happening()).prop_map(|(stream, happening)| Step::Happens(stream, happening)),
        2 => (-20_000..60_000_i64).prop_map(Step::Clock),
        3 => (0..VMS).prop_map(Step::Tick),
        1 => (0..VMS).prop_map(Step::Dies),
        2 => prop::bool::weighted(0.7).prop_map(Step::StoreWorks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_keeps_the_books(
        configs in configs(),
        scripts in prop::collection::vec(script(), STREAMS),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(configs, scripts);
        for step in &steps {
            world.step(step)?;
        }
        world.step(&Step::StoreWorks(true))?;
        for stream in 0..STREAMS {
            world.step(&Step::Happens(stream, Happening::Closed))?;
            // Whatever still comes after the end changes nothing.
            world.step(&Step::Happens(stream, Happening::ResponseBody(b"late".to_vec(), true)))?;
        }
        for load in world.vms[0].totals(&world.store).values() {
            prop_assert!(load.is_zero(), "left: {:?}", load);
        }
    }

    /// What becomes of an answer to a request that has gone, with headers held or not.
    #[test]
    fn any_answer_is_held_until_it_is_known_how_it_begins(
        configs in configs(),
        mut script in script(),
        is_stream in prop::bool::weighted(0.8),
        answer in prop::collection::vec(answering(), 1..12),
    ) {
        let of_chat = |(name, _): &(&str, _)| *name != ":method" && *name != ":path";
        script.request.retain(of_chat);
        script.request.push((":method", b"POST".to_vec()));
        script.request.push((":path", b"/v1/chat/completions".to_vec()));
        script.status = Some(200);
        if is_stream {
            script.content_type = Some(b"text/event-stream".to_vec());
        }
        let mut world = World::new(configs, vec![script]);
        let request = b"{\"model\":\"tiny\",\"messages\":[]}".to_vec();
        let sent = [
            Happening::RequestHeaders(false),
            Happening::RequestBody(request, true),
            Happening::ResponseHeaders(false),
        ];
        for happening in sent.into_iter().chain(answer).chain([Happening::Closed]) {
            world.step(&Step::Happens(0, happening))?;
        }
        prop_assert!(world.vms[0].totals(&world.store).values().all(Load::is_zero));
    }

    /// A request that is let go without a destination has lost the client's own.
    #[test]
    fn what_passes_unsteered_names_no_destination(configs in configs(), script in script(), end in any::<bool>()) {
        let mut world = World::new(configs, vec![script]);
        let config = world.vms[0].config().clone();
        let stream = &mut world.streams[0];
        let view = At(&stream.script, world.now_us);
        let moment = Moment::new(&world.store, 1, &view);
        let effects = stream.session.handle(&mut world.vms[0], &moment, Input::RequestHeaders(rest(end)));
        if effects.flow == Flow::Continue && effects.steer.is_none() {
            let expected = match config.steering {
                SteeringMode::OriginalDst => vec![ORIGINAL_DST_HEADER],
                SteeringMode::OverrideHost => vec![OVERRIDE_HOST_HEADER],
                SteeringMode::FilterState => vec![ORIGINAL_DST_HEADER],
                SteeringMode::Composite => vec![ORIGINAL_DST_HEADER, NEXT_DST_HEADER],
            };
            prop_assert_eq!(effects.remove_request_headers, expected);
        }
    }
}
