//! From the first header to the moment the request is let go: what to wait for, and the pick.

use super::{
    Effects, Event, Flight, Holding, Intake, Moment, Rest, Stage, State, StreamView, explain,
};
use crate::balancer::{Ask, Balancer, Decision};
use crate::config::{Config, KeySource, OtherPaths, PoolConfig, Toggle};
use crate::policy::PolicySpec;
use crate::prefix::routing_key;
use crate::request::{Api, InferenceRequest, RequestScanner, Scan};
use crate::state::Store;
use crate::steer;
use crate::tokens::ResponseReader;

pub(super) fn begin<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    rest: Rest,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let header = |name: &str| moment.view.request_header(name);
    let inference = header(":path").and_then(|path| Api::from_path(&path));
    if inference.is_none() && config.other_paths == OtherPaths::Pass {
        return (State::Over, unsteered(&config, Vec::new()));
    }
    let key_values = |pool: &PoolConfig| {
        let keys = pool.keys.iter();
        keys.map(|key| key_value(key, &header)).collect()
    };
    let intake = Intake {
        api: inference.unwrap_or(Api::ChatCompletions),
        keys: config.pools.iter().map(key_values).collect(),
    };
    // A method other than POST has no body, or one that the engine will refuse.
    if inference.is_some() && rest == Rest::Open && balancer.reads_body() {
        let scanner = RequestScanner::new(intake.api, &config.scan);
        let holding = Holding {
            intake,
            scanner,
            held_bytes: 0,
        };
        return (State::Holding(Box::new(holding)), Effects::hold());
    }
    let request = InferenceRequest::unknown(intake.api, Scan::Unread);
    let parsed = inference.map(|_| Event::Parsed(request.scan));
    depart(
        balancer,
        moment,
        intake,
        &request,
        parsed.into_iter().collect(),
    )
}

/// Lets a request go without a destination, and without one that the client may have named.
fn unsteered(config: &Config, events: Vec<Event>) -> Effects {
    let remove_request_header = steer::forbidden_header(config.steering);
    Effects {
        remove_request_header,
        events,
        ..Effects::pass()
    }
}

/// The value of a header or cookie that may be a routing key.
fn key_value(source: &KeySource, header: &dyn Fn(&str) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    match source {
        KeySource::Header(name) => header(name).filter(|value| !value.is_empty()),
        KeySource::Cookie(name) => cookie(&header("cookie")?, name.as_bytes()),
        KeySource::Body(_) => None,
    }
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
        Rest::Open if held.held_bytes == 0 => {
            InferenceRequest::unknown(held.intake.api, Scan::Unread)
        }
        Rest::Open => held.scanner.finish_early(),
        Rest::End => held.scanner.finish(),
    };
    if request.scan == Scan::Malformed && is_encoded(moment.view) {
        request.scan = Scan::Encoded;
    }
    let events = vec![Event::Parsed(request.scan)];
    depart(balancer, moment, held.intake, &request, events)
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
    intake: Intake,
    request: &InferenceRequest,
    mut events: Vec<Event>,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let model = request.model.as_deref();
    let pool = balancer.pool_for(model);
    let ask = Ask {
        pool,
        model,
        key: key_of(balancer, pool, &intake, request),
        cost: config
            .tokens
            .estimate(request, content_length(moment.view, request)),
    };
    let Some((decision, reservation)) =
        balancer.pick(moment.store, moment.now_ms(), moment.random, ask)
    else {
        return (State::Over, unsteered(&config, events));
    };
    events.push(Event::Picked {
        policy: decision.policy,
        endpoint: reservation.endpoint(),
        reason: decision.reason,
    });
    let explained =
        config.explain.response_header == Toggle::On || config.explain.log_field == Toggle::On;
    let explanation = explained.then(|| explain::line(balancer, &decision));
    let effects = Effects {
        steer: instruction(balancer, &decision),
        log_field: explanation
            .clone()
            .filter(|_| config.explain.log_field == Toggle::On),
        events,
        ..Effects::pass()
    };
    let flight = Flight {
        departed_us: moment.now_us(),
        pool,
        reservation: Some(reservation),
        explanation: explanation.filter(|_| config.explain.response_header == Toggle::On),
        stage: Stage::Asked,
        reader: ResponseReader::default(),
        first_chunk_us: None,
    };
    (State::Flight(Box::new(flight)), effects)
}

fn instruction(balancer: &Balancer, decision: &Decision) -> Option<steer::Steer> {
    let name = |index: &u32| {
        balancer
            .endpoint(decision.pool, *index)
            .map(|endpoint| endpoint.name())
    };
    let ranked: Vec<&str> = decision.endpoints.iter().filter_map(name).collect();
    steer::instruction(balancer.config().steering, &ranked)
}

/// The routing key that the pool's policy asks for.
fn key_of(
    balancer: &Balancer,
    pool: usize,
    intake: &Intake,
    request: &InferenceRequest,
) -> Option<u64> {
    let config = balancer.pool(pool)?;
    match config.policy {
        PolicySpec::PrefixHash { .. } => routing_key(request.model.as_deref(), &request.prompt),
        PolicySpec::ConsistentHash { .. } => {
            let from_headers = intake.keys.get(pool)?;
            config
                .keys
                .iter()
                .zip(from_headers)
                .enumerate()
                .find_map(|(index, (source, value))| {
                    let value = match source {
                        KeySource::Body(field) => {
                            request.fields.get(*field)?.as_deref()?.as_bytes()
                        }
                        _ => value.as_deref()?,
                    };
                    // The source's number keeps a user and a session of one name apart.
                    (!value.is_empty()).then(|| xxhash_rust::xxh64::xxh64(value, index as u64))
                })
        }
        _ => None,
    }
}
