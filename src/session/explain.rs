//! A Decision in one line for people: the debug header. What replays it is [`crate::account`].

use std::fmt::Write;

use crate::balancer::{Balancer, Decision};
use crate::policy::Reason;

/// Most candidates that an explanation lists.
const LISTED: usize = 32;

/// `policy=…;reason=…;pool=…;endpoint=…;ranked=…|…;sequence=…;key=…;cost=PREFILL+DECODE;bound=…;
/// loads=[…];costs=[…]` without the space, each load as `IP:port REQUESTS/PREFILL/DECODE`. Of a policy
/// that counts costs, or bounds queues in time, each candidate's follows as `MATCHED_TOKENS/COST_US`, in
/// the order of the loads.
pub(super) fn line(balancer: &Balancer, decision: &Decision) -> String {
    let name = |index: u32| {
        balancer
            .endpoint(decision.pool, index)
            .map_or("?", |endpoint| endpoint.name())
    };
    let pool = balancer
        .pool(decision.pool)
        .map_or("?", |pool| pool.name.as_str());
    let mut line = String::with_capacity(256);
    // Writing into a String cannot fail.
    let _ = write!(
        line,
        "policy={};reason={};pool={pool}",
        decision.policy,
        reason_name(decision.reason)
    );
    let ranked: Vec<&str> = decision
        .endpoints
        .iter()
        .map(|index| name(*index))
        .collect();
    let _ = write!(line, ";endpoint={}", ranked.first().unwrap_or(&"?"));
    let _ = write!(
        line,
        ";ranked={};sequence={}",
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
    let loads: Vec<String> = decision
        .candidates
        .iter()
        .take(LISTED)
        .map(|candidate| {
            let load = candidate.load;
            let endpoint = name(candidate.endpoint);
            format!(
                "{endpoint} {}/{}/{}",
                load.requests, load.prefill_tokens, load.decode_tokens
            )
        })
        .collect();
    let _ = write!(line, ";loads=[{}]", loads.join(","));
    if !decision.costs_us.is_empty() {
        let costs: Vec<String> = decision
            .candidates
            .iter()
            .zip(&decision.costs_us)
            .take(LISTED)
            .map(|(candidate, cost_us)| format!("{}/{cost_us}", candidate.matched_tokens))
            .collect();
        let _ = write!(line, ";costs=[{}]", costs.join(","));
    }
    // A pool's name is the operator's; nothing else can bring a byte that a header must not have.
    line.replace(
        |letter: char| letter.is_control() || !letter.is_ascii(),
        "?",
    )
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
