//! All policies over all seeds, side by side on all cores, as one study.

use indicatif::{ParallelProgressIterator, ProgressBar, ProgressStyle};
use rayon::prelude::*;
use warmroute::sim::fleet::{self, FleetOptions, Outcome};
use warmroute::sim::record::{Objective, Run, Study};
use warmroute::sim::workload::Workload;

/// What a study is about.
pub struct Plan {
    pub title: String,
    pub workload: String,
    pub fleet: String,
    pub baseline: String,
    pub objective: Objective,
    pub notes: Vec<String>,
    /// What to run: a fleet, and the index of its workload.
    pub runs: Vec<(FleetOptions, usize)>,
    pub workloads: Vec<Workload>,
}

/// Runs everything.
///
/// # Errors
/// A fleet that cannot be simulated, or a run that broke a law of conservation.
pub fn study(plan: Plan) -> Result<Study, String> {
    let bar = bar(plan.runs.len());
    let runs: Result<Vec<Run>, String> = plan
        .runs
        .par_iter()
        .progress_with(bar.clone())
        .map(|(options, workload)| {
            let workload = plan.workloads.get(*workload).ok_or("no such workload")?;
            let outcome =
                fleet::run(options, workload).map_err(|e| format!("{}: {e}", options.label()))?;
            checked(outcome)
        })
        .collect();
    bar.finish_and_clear();
    Ok(Study {
        title: plan.title,
        command: command(std::env::args().skip(1)),
        workload: plan.workload,
        fleet: plan.fleet,
        baseline: plan.baseline,
        objective: plan.objective,
        notes: plan.notes,
        runs: runs?,
    })
}

fn checked(outcome: Outcome) -> Result<Run, String> {
    let Outcome {
        mut run,
        replicas,
        faults,
    } = outcome;
    if !faults.is_empty() {
        return Err(format!(
            "{} with seed {} broke its own laws: {}",
            run.policy,
            run.seed,
            faults.join("; ")
        ));
    }
    let preemptions: u64 = replicas.iter().map(|gauges| gauges.preemptions).sum();
    if preemptions > 0 {
        run.notes
            .push(format!("{preemptions} preemptions for lack of KV cache"));
    }
    Ok(run)
}

fn bar(runs: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} runs, {elapsed}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(runs as u64).with_style(style)
}

/// The command that makes the same study again.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut command = "cargo run --profile tools --example simulate --".to_owned();
    for argument in arguments {
        command.push(' ');
        command.push_str(&quoted(&argument));
    }
    command
}

/// As a shell wants it.
fn quoted(argument: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./,:@+".contains(letter);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let arguments = ["--policies", r#"{"name": "prefix_hash"}"#, "it's", ""];
        let command = command(arguments.map(String::from).into_iter());
        assert!(
            command.ends_with(r#"simulate -- --policies '{"name": "prefix_hash"}' 'it'\''s' ''"#)
        );
    }
}
