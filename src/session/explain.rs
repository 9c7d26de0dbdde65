//! A Decision in one line for people: the debug header. What replays it is [`crate::account`].

use std::fmt::Write;

use crate::balancer::{Balancer, Decision};
use crate::endpoint::Endpoint;
use crate::policy::Reason;

/// Most candidates that an explanation lists.
const LISTED: usize = 32;

/// `policy=…;reason=…;pool=…;endpoint=…;ranked=…|…;sequence=…;key=…;cost=PREFILL+DECODE;bound=…;
/// loads=[…];costs=[…]` without the space, each load as `IP:port REQUESTS/PREFILL/DECODE`. Of a policy
/// that counts costs, or bounds queues in time, each candidate's follows as `MATCHED_TOKENS/COST_US`, in
/// the order of the loads.
pub(super) fn line(balancer: &Balancer, decision: &Decision) -> String {
    let name = |index: u32| {
        let endpoint = balancer.endpoint(decision.pool, index);
        endpoint.map_or("?", Endpoint::name)
    };
    let pool = balancer.pool(decision.pool);
    let ranked = decision.endpoints.iter();
    let ranked: Vec<&str> = ranked.map(|index| name(*index)).collect();
    let mut line = String::with_capacity(256);
    // Writing into a String cannot fail.
    let _ = write!(
        line,
        "policy={};reason={};pool={};endpoint={};ranked={};sequence={}",
        decision.policy,
        reason_name(decision.reason),
        pool.map_or("?", |pool| pool.name.as_str()),
        ranked.first().unwrap_or(&"?"),
        ranked.join("|"),
        decision.sequence
    );
    if let Some(key) = decision.key {
        let _ = write!(line, ";key={key:016x}");
    }
    let cost = decision.cost;
    let _ = write!(
        line,
        ";cost={}+{};bound={}",
        cost.prefill_tokens, cost.decode_tokens, decision.bound
    );
    let _ = write!(line, ";loads=[{}]", loads(decision, &name));
    if !decision.costs_us.is_empty() {
        let _ = write!(line, ";costs=[{}]", costs(decision));
    }
    // A pool's name is the operator's; nothing else can bring a byte that a header must not have.
    line.replace(
        |letter: char| letter.is_control() || !letter.is_ascii(),
        "?",
    )
}

fn loads<'a>(decision: &Decision, name: &dyn Fn(u32) -> &'a str) -> String {
    let listed = decision.candidates.iter().take(LISTED);
    let loads = listed.map(|candidate| {
        let (endpoint, load) = (name(candidate.endpoint), candidate.load);
        format!(
            "{endpoint} {}/{}/{}",
            load.requests, load.prefill_tokens, load.decode_tokens
        )
    });
    loads.collect::<Vec<_>>().join(",")
}

fn costs(decision: &Decision) -> String {
    let listed = decision.candidates.iter().take(LISTED);
    let costs = listed
        .zip(&decision.costs_us)
        .map(|(candidate, cost_us)| format!("{}/{cost_us}", candidate.matched_tokens));
    costs.collect::<Vec<_>>().join(",")
}

/// A reason as metrics and explanations call it.
pub fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Turn => "turn",
        Reason::Random => "random",
        Reason::LeastLoaded => "least_loaded",
        Reason::LessLoadedOfTwo => "less_loaded_of_two",
        Reason::Home => "home",
        Reason::Overflow => "overflow",
        Reason::NoKey => "no_key",
        Reason::Fastest => "fastest",
        Reason::NearTie => "near_tie",
        Reason::LongestMatch => "longest_match",
        Reason::NoMatch => "no_match",
        Reason::Imbalanced => "imbalanced",
    }
}
