//! From the first header to the moment the request is let go: what to wait for, and the pick.

use super::{
    Effects, Event, Flight, Flow, Holding, Moment, Rest, Stage, State, StreamView, explain,
};
use crate::account;
use crate::balancer::{Ask, Balancer, Decision};
use crate::config::{Config, KeySource, OtherPaths, SteeringMode, Toggle, WHOLE_PERMILLE};
use crate::endpoint::{Endpoint, EndpointId};
use crate::policy::PolicySpec;
use crate::prefix::{block_keys, routing_key};
use crate::reply::Reply;
use crate::request::{Api, InferenceRequest, RequestScanner, Scan};
use crate::state::Store;
use crate::steer;
use crate::tokens::{Lesson, ResponseReader};

pub(super) fn begin<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    rest: Rest,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let path = moment.view.request_header(":path");
    let api = path.as_ref().and_then(|path| Api::from_path(path));
    if api.is_none()
        && let Some(path) = path
        && moment.view.request_header(":method").as_deref() == Some(b"GET")
        && let Some(reply) = balancer.models_reply(moment.store, &path)
    {
        return refused(&config, reply, Vec::new());
    }
    if api.is_none() && config.other_paths == OtherPaths::Pass {
        return (State::Over, unsteered(&config, Vec::new()));
    }
    // A method other than POST has no body, or one that the engine will refuse.
    // Who holds answers must know that bodies come while headers are held, which requests show.
    let reads_body = balancer.reads_body() || config.responses.hold_headers == Toggle::On;
    if let Some(api) = api
        && rest == Rest::Open
        && reads_body
    {
        let scanner = RequestScanner::new(api, &config.scan);
        let holding = Holding {
            api,
            scanner,
            held_bytes: 0,
        };
        return (State::Holding(Box::new(holding)), Effects::hold());
    }
    let request = InferenceRequest::unknown(api.unwrap_or(Api::ChatCompletions), Scan::Unread);
    let parsed = api.map(|_| Event::Parsed(request.scan));
    depart(
        balancer,
        moment,
        api,
        &request,
        parsed.into_iter().collect(),
    )
}

/// Decides on a request that needs no reading.
pub(super) fn begin_read<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    request: &InferenceRequest,
) -> (State, Effects) {
    let events = vec![Event::Parsed(request.scan)];
    depart(balancer, moment, Some(request.api), request, events)
}

/// Lets a request go without a destination, and without one that the client may have named.
fn unsteered(config: &Config, events: Vec<Event>) -> Effects {
    Effects {
        remove_request_headers: steer::forbidden_headers(config.steering),
        events,
        ..Effects::pass()
    }
}

/// Answers in the endpoints' place: there is none to send the request to.
fn refused(config: &Config, reply: Reply, mut events: Vec<Event>) -> (State, Effects) {
    events.push(Event::Replied(reply.kind));
    let effects = Effects {
        flow: Flow::Hold,
        reply: Some(reply),
        ..unsteered(config, events)
    };
    (State::Over, effects)
}

fn cookie(header: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    header
        .split(|byte| *byte == b';')
        .filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.split_at_checked(equals)?;
            (key.trim_ascii() == name)
                .then(|| value.get(1..).unwrap_or_default().trim_ascii().to_vec())
        })
        .find(|value| !value.is_empty())
}

pub(super) fn read<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut held: Box<Holding>,
    chunk: &[u8],
    rest: Rest,
) -> (State, Effects) {
    held.scanner.push(chunk);
    held.held_bytes = held.held_bytes.saturating_add(chunk.len() as u64);
    let enough = held.scanner.is_settled() || held.held_bytes >= balancer.config().hold_max_bytes;
    if rest == Rest::End || enough {
        settle(balancer, moment, *held, rest)
    } else {
        (State::Holding(held), Effects::hold())
    }
}

/// Decides with what is known of the body by now.
pub(super) fn settle<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    held: Holding,
    rest: Rest,
) -> (State, Effects) {
    let mut request = match rest {
        Rest::Open if held.held_bytes == 0 => InferenceRequest::unknown(held.api, Scan::Unread),
        Rest::Open => held.scanner.finish_early(),
        Rest::End => held.scanner.finish(),
    };
    if request.scan == Scan::Malformed && is_encoded(moment.view) {
        request.scan = Scan::Encoded;
    }
    let events = vec![Event::Parsed(request.scan)];
    depart(balancer, moment, Some(held.api), &request, events)
}

fn is_encoded(view: &dyn StreamView) -> bool {
    let encoding = view.request_header("content-encoding");
    encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity"))
}

/// Length of the body, where its own bytes do not tell.
fn content_length(view: &dyn StreamView, request: &InferenceRequest) -> Option<u64> {
    if request.scan == Scan::Complete {
        return None;
    }
    let length = view.request_header("content-length")?;
    std::str::from_utf8(&length).ok()?.parse().ok()
}

/// Picks, reserves, and lets the request go.
fn depart<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    api: Option<Api>,
    request: &InferenceRequest,
    mut events: Vec<Event>,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let model = request.model.as_deref();
    let pool = balancer.pool_for(model);
    let length = content_length(moment.view, request);
    let lesson = Lesson::of(request);
    let mut cost = balancer.estimator(&lesson).estimate(request, length);
    if api.is_none() {
        // No model runs for it, as far as we know.
        cost.decode_tokens = 0;
        cost.context_tokens = cost.prefill_tokens;
    }
    let blocks: Vec<u64> = match balancer.reads_index(pool) {
        true => block_keys(model, &request.prompt.blocks),
        false => Vec::new(),
    };
    let ask = Ask {
        pool,
        model,
        key: key_of(balancer, pool, moment.view, request),
        blocks: &blocks,
        cost,
        share_permille: share_of(&config, moment.view),
    };
    let picked = balancer.pick(moment.store, moment.now_ms(), moment.random, ask);
    let (decision, reservation) = match picked {
        Ok(picked) => picked,
        Err(refusal) => return refused(&config, Reply::refusal(refusal, api, model), events),
    };
    if api.is_some() {
        balancer.learn_typical(decision.cost);
    }
    let belief = balancer.sent(moment.store, reservation.endpoint(), &blocks);
    let chosen = decision.chosen().copied().unwrap_or_default();
    events.push(Event::Picked {
        policy: decision.policy,
        endpoint: reservation.endpoint(),
        reason: decision.reason,
    });
    let explain = config.explain;
    let explanation =
        (explain.response_header == Toggle::On).then(|| explain::line(balancer, &decision));
    let account = (explain.log_field == Toggle::On)
        .then(|| account::line(balancer, &ask, moment.random, &decision));
    // The other modes replace the header that they use.
    let remove_request_headers = match config.steering {
        SteeringMode::FilterState => steer::forbidden_headers(config.steering),
        _ => &[],
    };
    let effects = Effects {
        remove_request_headers,
        steer: instruction(balancer, &decision),
        max_retries: steer::max_retries(config.steering, decision.attempts.len()),
        retry_on: steer::retry_on(config.steering, decision.overload),
        log_field: account,
        events,
        ..Effects::pass()
    };
    let flight = Flight {
        api,
        departed_us: moment.now_us(),
        pool,
        picked: reservation.endpoint(),
        ranked: ranked(balancer, &decision),
        probe: decision.probe,
        retry_after_ms: None,
        reservation: Some(reservation),
        explanation,
        stage: Stage::Asked,
        reader: ResponseReader::default(),
        opening: None,
        first_chunk_us: None,
        belief,
        prompt_bytes: bytes_of_tokens(request),
        lesson,
        ahead_tokens: chosen
            .queue_tokens
            .saturating_add(decision.cost.prefill_tokens),
        context_tokens: chosen
            .load
            .context_tokens
            .saturating_add(decision.cost.context_tokens),
        step_us: chosen.pace.output_us(chosen.load.context_tokens),
    };
    (State::Flight(Box::new(flight)), effects)
}

/// How much of the limits the request's priority may use.
fn share_of(config: &Config, view: &dyn StreamView) -> u32 {
    let priority = config
        .saturation
        .as_ref()
        .and_then(|one| one.priority.as_ref());
    priority.map_or(WHOLE_PERMILLE, |priority| {
        priority.share_permille(view.request_header(&priority.header).as_deref())
    })
}

/// Bytes that the engine's count of prompt tokens stands for; `None` if it stands for more (images), or
/// may leave out what was cached.
fn bytes_of_tokens(request: &InferenceRequest) -> Option<u64> {
    let counts_all = request.api != Api::Messages && request.prompt.images == 0;
    counts_all.then(|| request.prompt.bytes())
}

fn instruction(balancer: &Balancer, decision: &Decision) -> Option<steer::Steer> {
    let endpoint = |index| balancer.endpoint(decision.pool, index);
    let tried = decision.attempts.iter().copied().filter_map(endpoint);
    let ranked: Vec<&str> = tried.map(Endpoint::name).collect();
    steer::instruction(balancer.config().steering, &ranked)
}

/// Whom Envoy tries one after the other; nobody where it is told of one alone.
fn ranked(balancer: &Balancer, decision: &Decision) -> Vec<EndpointId> {
    if balancer.config().steering.retries() == 0 {
        return Vec::new();
    }
    let endpoint = |index| balancer.endpoint(decision.pool, index);
    let tried = decision.attempts.iter().copied().filter_map(endpoint);
    tried.map(Endpoint::id).collect()
}

/// The routing key that the pool's policy asks for.
fn key_of(
    balancer: &Balancer,
    pool: usize,
    view: &dyn StreamView,
    request: &InferenceRequest,
) -> Option<u64> {
    let config = balancer.pool(pool)?;
    let field = |field: &usize| request.fields.get(*field)?.clone().map(String::into_bytes);
    let mut sources = config.keys.iter().enumerate();
    match config.policy {
        PolicySpec::PrefixHash { .. } | PolicySpec::ExpectedLatency => {
            routing_key(request.model.as_deref(), &request.prompt)
        }
        PolicySpec::ConsistentHash { .. } => sources.find_map(|(index, source)| {
            let value = match source {
                KeySource::Header(name) => view.request_header(name),
                KeySource::Cookie(name) => cookie(&view.request_header("cookie")?, name.as_bytes()),
                KeySource::Body(index) => field(index),
            }?;
            // The source's number keeps a user and a session of one name apart.
            (!value.is_empty()).then(|| xxhash_rust::xxh64::xxh64(&value, index as u64))
        }),
        _ => None,
    }
}
