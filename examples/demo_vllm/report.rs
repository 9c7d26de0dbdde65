//! The real run beside the predicted one.

use crate::engine::{BLOCK_TOKENS, MAX_RUNNING, TOKEN_BUDGET};
use crate::{Args, trace};
use comfy_table::{CellAlignment, Table, presets::UTF8_HORIZONTAL_ONLY};
use std::fmt::Write;
use warmroute::sim::record::{Run, Served};
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::Workload;

/// How far a predicted share may be from the real one.
const BOUND: f64 = 0.02;

/// One policy.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// As the engines reported it.
    pub real: Run,
    /// As the simulation had it, before the real run.
    pub predicted: Run,
    /// The simulated replicas with the real run's choice of endpoints.
    pub with_real_picks: Run,
    /// The prediction with caches that never evict.
    pub endless: Run,
}

impl Outcome {
    /// How far the predicted share of cached tokens is from the real one.
    fn error(&self) -> f64 {
        (cached_share(&self.predicted) - cached_share(&self.real)).abs()
    }

    fn errors(&self) -> usize {
        self.real
            .served
            .iter()
            .filter(|one| one.error.is_some())
            .count()
    }

    fn same_endpoint(&self) -> f64 {
        let pairs = self.real.served.iter().zip(&self.predicted.served);
        let same = pairs.filter(|(real, predicted)| real.endpoint == predicted.endpoint);
        same.count() as f64 / self.real.served.len().max(1) as f64
    }
}

/// Share of the prompt tokens that came from a prefix cache; 0 without any.
fn cached_share(run: &Run) -> f64 {
    let sum = |of: fn(&Served) -> u32| run.served.iter().map(|one| f64::from(of(one))).sum::<f64>();
    sum(|one| one.cached_tokens) / sum(|one| one.prompt_tokens).max(1.0)
}

/// Of the good answers; NaN without any.
fn mean_ttft_ms(run: &Run) -> f64 {
    let ttft: Vec<f64> = run
        .served
        .iter()
        .filter(|one| one.error.is_none())
        .filter_map(|one| Some(one.first_us?.saturating_sub(one.due_us) as f64 / 1_000.0))
        .collect();
    ttft.iter().sum::<f64>() / ttft.len() as f64
}

/// One row for each policy.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "policy",
        "requests",
        "errors",
        "cached, real",
        "predicted",
        "difference",
        "same endpoint",
        "predicted for the real picks",
        "predicted without eviction",
        "TTFT mean ms, real",
        "predicted",
    ]);
    for outcome in outcomes {
        let share = |run: &Run| format!("{:.4}", cached_share(run));
        let difference = cached_share(&outcome.predicted) - cached_share(&outcome.real);
        table.add_row([
            outcome.real.policy.clone(),
            outcome.real.served.len().to_string(),
            outcome.errors().to_string(),
            share(&outcome.real),
            share(&outcome.predicted),
            format!("{difference:+.4}"),
            format!("{:.1} %", outcome.same_endpoint() * 100.0),
            share(&outcome.with_real_picks),
            share(&outcome.endless),
            format!("{:.0}", mean_ttft_ms(&outcome.real)),
            format!("{:.0}", mean_ttft_ms(&outcome.predicted)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What was run, and what the columns are.
pub fn legend(args: &Args, workload: &Workload, left_out: usize, profile: &Profile) -> String {
    format!(
        "{}\n\
         Two vLLM replicas on this CPU, a Llama of random weights, {} blocks of {BLOCK_TOKENS} tokens each, \
         at most {TOKEN_BUDGET} tokens and {MAX_RUNNING} sequences a step; {} Envoy workers.\n\
         Measured on the idle engines: {} prompt tokens/s, {} us a step, {} us more for each sequence.\n\
         cached: share of the prompt tokens that the engines found in their prefix caches, \
         as their answers and their own counters say.\n\
         same endpoint: requests for which the simulation chose the endpoint that the real Envoy chose.",
        trace::describe(args, workload, left_out),
        args.blocks,
        args.workers,
        profile.prefill_tokens_per_s,
        profile.step_base_us,
        profile.decode_us_per_seq,
    )
}

/// One line about a prediction.
pub fn predicted(run: &Run, endless: &Run) -> String {
    format!(
        "{}: cached {:.4}, without eviction {:.4}, TTFT mean {:.0} ms",
        run.policy,
        cached_share(run),
        cached_share(endless),
        mean_ttft_ms(run)
    )
}

/// Every request of every run.
///
/// # Errors
/// They cannot be written as JSON.
pub fn json(outcomes: &[Outcome]) -> Result<String, String> {
    let runs: Vec<_> = outcomes
        .iter()
        .map(|o| serde_json::json!({"real": o.real, "predicted": o.predicted, "with_real_picks": o.with_real_picks}))
        .collect();
    serde_json::to_string(&runs).map_err(|e| e.to_string())
}

/// Whether an error of [`BOUND`] could be seen at all: policies and eviction must move the share by
/// more, or a constant would predict it as well as a model.
///
/// # Errors
/// They do not.
fn tells(outcomes: &[Outcome]) -> Result<(), String> {
    let shares = |of: fn(&Outcome) -> &Run| outcomes.iter().map(move |o| cached_share(of(o)));
    let real = || shares(|o| &o.real);
    let between_policies = real().fold(f64::MIN, f64::max) - real().fold(f64::MAX, f64::min);
    let by_eviction = shares(|o| &o.endless)
        .zip(shares(|o| &o.predicted))
        .map(|(endless, predicted)| endless - predicted)
        .fold(f64::MAX, f64::min);
    if between_policies.min(by_eviction) > 2.0 * BOUND {
        return Ok(());
    }
    Err(format!(
        "no figures: policies move the cached share by {between_policies:.4} and eviction by {by_eviction:.4}, \
         so little that an error of {BOUND} says nothing about the model"
    ))
}

/// `FIGURE name value` lines.
///
/// # Errors
/// A request failed: what it would have found is not known. Or the workload cannot tell a good
/// model from a bad one.
pub fn figures(outcomes: &[Outcome]) -> Result<String, String> {
    const NAME: &str = "sim_vs_real_vllm_cached_share_error";
    succeeded(outcomes)?;
    tells(outcomes)?;
    let mut lines = String::new();
    for outcome in outcomes {
        // Writing to a string cannot fail.
        let _ = writeln!(
            lines,
            "FIGURE {NAME}_{} {:.4}",
            outcome.real.policy,
            outcome.error()
        );
    }
    let largest = outcomes.iter().map(Outcome::error).fold(0.0, f64::max);
    let _ = writeln!(lines, "FIGURE {NAME} {largest:.4}");
    Ok(lines)
}

/// Whether every request got a whole, good answer.
///
/// # Errors
/// How many did not, by policy, and the first reason.
pub fn succeeded(outcomes: &[Outcome]) -> Result<(), String> {
    let failed: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| {
            let real = &outcome.real;
            let why = real.served.iter().find_map(|one| one.error.as_deref())?;
            let (errors, all) = (outcome.errors(), real.served.len());
            Some(format!("{errors} of {all} under {} ({why})", real.policy))
        })
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("requests failed: {}", failed.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request of 1,000 tokens.
    fn run(policy: &str, cached_tokens: u32) -> Run {
        Run {
            policy: policy.to_owned(),
            served: vec![Served {
                prompt_tokens: 1_000,
                cached_tokens,
                ..Served::default()
            }],
            ..Run::default()
        }
    }

    fn outcome(policy: &str, real: u32, predicted: u32, endless: u32) -> Outcome {
        Outcome {
            real: run(policy, real),
            predicted: run(policy, predicted),
            with_real_picks: run(policy, real),
            endless: run(policy, endless),
        }
    }

    #[test]
    fn figures_are_the_errors_by_policy_and_the_largest() {
        let outcomes = [
            outcome("round_robin", 160, 155, 260),
            outcome("prefix_hash", 230, 242, 320),
        ];
        let name = "FIGURE sim_vs_real_vllm_cached_share_error";
        let lines =
            format!("{name}_round_robin 0.0050\n{name}_prefix_hash 0.0120\n{name} 0.0120\n");
        assert_eq!(figures(&outcomes), Ok(lines));
    }

    #[test]
    fn a_workload_on_which_nothing_depends_gives_no_figures() {
        let alike = [
            outcome("round_robin", 539, 539, 600),
            outcome("prefix_hash", 538, 538, 600),
        ];
        let without_eviction = [
            outcome("round_robin", 160, 160, 260),
            outcome("prefix_hash", 230, 230, 240),
        ];
        for outcomes in [alike, without_eviction] {
            let why = figures(&outcomes).unwrap_err();
            assert!(why.starts_with("no figures: "), "{why}");
        }
    }

    #[test]
    fn a_failed_request_gives_no_figures() {
        let mut outcomes = [
            outcome("round_robin", 160, 160, 260),
            outcome("prefix_hash", 230, 230, 320),
        ];
        outcomes[1].real.served[0].error = Some("status 500".to_owned());
        let why = "requests failed: 1 of 1 under prefix_hash (status 500)";
        assert_eq!(figures(&outcomes), Err(why.to_owned()));
    }
}
