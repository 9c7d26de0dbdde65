//! Reads decisions from access logs, and takes each of them again.

#[path = "../check/find.rs"]
#[allow(dead_code)]
mod find;
#[path = "../check/place.rs"]
#[allow(dead_code)]
mod place;
mod show;

use clap::Parser;
use find::Document;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use warmroute::account::{self, Account, Outcome, Replay};
use warmroute::config::Config;

/// Longest line that is read; Envoy writes at most some hundred kilobytes.
const MAX_LINE_BYTES: u64 = 8 << 20;

/// Reads what Warmroute says of its decisions from Envoy's access logs, text or JSON, and takes each
/// decision again: the same policy, shown the same, must decide the same. For this the filter needs
/// "explain": {"log_field": true}, and the log's format %FILTER_STATE(wasm.warmroute:PLAIN)%.
///
/// Exit code: 0 if all decisions are the same, 1 if one differs, cannot be read, or none was found,
/// 2 if a file cannot be read or is no configuration.
#[derive(Parser)]
#[command(name = "explain")]
struct Arguments {
    /// The configuration that was in force: the filter's own (JSON), or one that holds it, as an
    /// Envoy configuration does (YAML or JSON).
    #[arg(long)]
    config: PathBuf,
    /// Shows the candidates of each decision too.
    #[arg(long)]
    table: bool,
    /// Access logs; standard input if there are none.
    logs: Vec<PathBuf>,
}

/// What became of the decisions.
#[derive(Default)]
struct Tally {
    same: u64,
    differ: u64,
    unread: u64,
    /// Lines without a decision.
    without: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(tally) if tally.same > 0 && tally.differ == 0 && tally.unread == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(why) => {
            eprintln!("explain: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<Tally, String> {
    let replays = configurations(&arguments.config)?;
    let mut tally = Tally::default();
    let mut out = stdout().lock();
    if arguments.logs.is_empty() {
        read(
            "",
            stdin().lock(),
            &replays,
            arguments.table,
            &mut out,
            &mut tally,
        )?;
    }
    for log in &arguments.logs {
        let file = File::open(log).map_err(|why| format!("{}: {why}", log.display()))?;
        let place = format!("{}:", log.display());
        read(
            &place,
            BufReader::new(file),
            &replays,
            arguments.table,
            &mut out,
            &mut tally,
        )?;
    }
    let decisions = tally.same + tally.differ + tally.unread;
    if decisions == 0 {
        let hint =
            "is explain.log_field on, and %FILTER_STATE(wasm.warmroute:PLAIN)% in the format?";
        eprintln!("explain: no decision in {} lines: {hint}", tally.without);
    }
    let Tally {
        same,
        differ,
        unread,
        without,
    } = tally;
    written(writeln!(
        out,
        "{decisions} decisions: {same} the same, {differ} differ, {unread} cannot be taken again; \
         {without} lines without one"
    ))?;
    Ok(tally)
}

/// Every Warmroute configuration in the file.
fn configurations(file: &Path) -> Result<Vec<Replay>, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|why| format!("{name}: {why}"))?;
    let is_json = file
        .extension()
        .is_some_and(|extension| extension == "json");
    let texts: Vec<Vec<u8>> =
        match find::read(&text, is_json).map_err(|why| format!("{name}: {why}"))? {
            Document::Plugin => vec![text.into_bytes()],
            Document::Envoy { filters, .. } => {
                let ours = filters.iter().filter(|found| found.is_warmroute());
                let texts: Result<_, _> = ours.map(|found| found.plugin()).collect();
                texts.map_err(|why| format!("{name}: {why}"))?
            }
        };
    if texts.is_empty() {
        return Err(format!("{name}: no Warmroute filter found"));
    }
    let replays = texts
        .iter()
        .map(|text| Config::parse(text).map(|config| Replay::new(&config)));
    let replays: Result<_, _> = replays.collect();
    replays.map_err(|why| format!("{name}: {why}"))
}

/// Takes every decision of a log again. `place` stands before the numbers of lines.
fn read(
    place: &str,
    mut log: impl BufRead,
    replays: &[Replay],
    table: bool,
    out: &mut impl Write,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut bytes = Vec::new();
    for number in 1_u64.. {
        bytes.clear();
        let mut limited = log.by_ref().take(MAX_LINE_BYTES);
        let length = limited.read_until(b'\n', &mut bytes);
        if length.map_err(|why| format!("{place}{number}: {why}"))? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&bytes);
        let Some(found) = account::find(&line).transpose() else {
            tally.without += 1;
            continue;
        };
        let place = format!("{place}{number}");
        let found = found.map_err(|why| why.to_string());
        match found.and_then(|found| one(&found, replays)) {
            Ok((account, outcome)) => {
                let same = outcome == Outcome::logged(&account);
                let count = if same {
                    &mut tally.same
                } else {
                    &mut tally.differ
                };
                *count += 1;
                written(show::decision(out, &place, &account, &outcome))?;
                if table {
                    written(show::candidates(out, &account))?;
                }
            }
            Err(why) => {
                tally.unread += 1;
                written(writeln!(out, "{place}: error: {why}"))?;
            }
        }
    }
    Ok(())
}

/// A decision, and what comes out now.
fn one(text: &str, replays: &[Replay]) -> Result<(Account, Outcome), String> {
    let account = Account::parse(text).map_err(|why| why.to_string())?;
    let own = replays.iter().find(|replay| replay.is_of(&account));
    let replay = match (own, replays) {
        (Some(own), _) => own,
        // Written otherwise, it may still be the same configuration.
        (None, [only]) => only,
        (None, several) => {
            return Err(format!(
                "taken under none of the {} configurations",
                several.len()
            ));
        }
    };
    let hint = match own {
        Some(_) => "",
        None => " (and it was taken under another text of the configuration)",
    };
    let outcome = replay
        .outcome(&account)
        .map_err(|why| format!("{why}{hint}"))?;
    Ok((account, outcome))
}

fn written(result: std::io::Result<()>) -> Result<(), String> {
    result.map_err(|why| format!("standard output: {why}"))
}
