//! A decision for people: one line, and a table of the candidates.

use comfy_table::{CellAlignment, Table, presets};
use std::io::{self, Write};
use warmroute::account::{Account, Outcome};
use warmroute::policy::Candidate;
use warmroute::rates::Pace;

/// What was decided, and whether it is decided again.
pub fn decision(
    out: &mut impl Write,
    place: &str,
    account: &Account,
    outcome: &Outcome,
) -> io::Result<()> {
    let logged = Outcome::logged(account);
    let (pool, policy) = (&account.pool, &account.policy);
    if *outcome == logged {
        return writeln!(out, "{place}: same: {pool}, {policy}: {logged}");
    }
    if (&outcome.ranked, &outcome.reason) == (&logged.ranked, &logged.reason) {
        return writeln!(
            out,
            "{place}: differs: {pool}, {policy}: {logged}, but other figures: bound {} and costs {:?}, \
             now bound {} and costs {:?}",
            logged.bound, logged.costs_us, outcome.bound, outcome.costs_us
        );
    }
    writeln!(
        out,
        "{place}: differs: {pool}, {policy}: {logged}; now {outcome}"
    )
}

/// A column: its head, and what stands in it.
type Column = (&'static str, fn(&Candidate) -> String);

const COLUMNS: [Column; 14] = [
    ("weight", |one| one.weight.to_string()),
    ("requests", |one| one.load.requests.to_string()),
    ("waiting", |one| one.load.waiting.to_string()),
    ("prefill tokens", |one| one.load.prefill_tokens.to_string()),
    ("decode tokens", |one| one.load.decode_tokens.to_string()),
    ("context tokens", |one| one.load.context_tokens.to_string()),
    ("KV in use", |one| permille(one.kv_usage_permille)),
    ("cached tokens", |one| one.matched_tokens.to_string()),
    ("first ms", |one| thousandths(u64::from(one.pace.first_us))),
    ("prefill us/token", |one| {
        thousandths(u64::from(one.pace.prefill_us_per_1k_tokens))
    }),
    ("output ms", |one| thousandths(u64::from(one.pace.token_us))),
    ("+ms/1k context", |one| {
        thousandths(u64::from(one.pace.token_us_per_1k_context))
    }),
    ("KV tokens", |one| one.pace.kv_tokens.to_string()),
    ("stay ms", |one| thousandths(one.pace.residence_us)),
];

/// What the policy was shown. Columns in which all candidates are as if nothing was known are left out.
pub fn candidates(out: &mut impl Write, account: &Account) -> io::Result<()> {
    let nothing = Candidate {
        weight: 1,
        pace: Pace::default(),
        ..Candidate::default()
    };
    let told = |column: &&Column| {
        let mut candidates = account.candidates.iter();
        candidates.any(|(_, candidate)| (column.1)(candidate) != (column.1)(&nothing))
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(told).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut head = vec!["  endpoint".to_owned()];
    head.extend(columns.iter().map(|column| column.0.to_owned()));
    if !account.costs_us.is_empty() {
        head.push("cost ms".to_owned());
    }
    table.set_header(head);
    for (index, (name, candidate)) in account.candidates.iter().enumerate() {
        let place = account.ranked.iter().position(|ranked| ranked == name);
        let mark = place.map_or("  ".to_owned(), |place| format!("{} ", place + 1));
        let mut row = vec![format!("{mark}{name}")];
        row.extend(columns.iter().map(|column| (column.1)(candidate)));
        row.extend(account.costs_us.get(index).map(|cost| thousandths(*cost)));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let cost = account.cost;
    writeln!(
        out,
        "   a request of {} prompt and {} output tokens, pick {} of the pool{}",
        cost.prefill_tokens,
        cost.decode_tokens,
        account.sequence,
        account
            .key
            .map_or(String::new(), |key| format!(", key {key:016x}"))
    )?;
    writeln!(out, "{}\n", table.trim_fmt())
}

fn thousandths(value: u64) -> String {
    format!("{}.{:03}", value / 1_000, value % 1_000)
}

fn permille(value: u32) -> String {
    format!("{}.{} %", value / 10, value % 10)
}
