//! The cells: a workload at a load on a fleet of eight replicas.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use warmroute::sim::profiles;
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::{Workload, burst, chat, mix, mooncake, rag, tenants, tree, uniform};

use crate::capacity::Work;

const REPLICAS: usize = 8;
/// How much slower the slow half of an unequal fleet is, in thousandths.
const SLOWER_PERMILLE: u32 = 2_500;
/// A burst is sent within this time.
const BURST_MS: u32 = 500;
const BURST_REQUESTS: u32 = 200;
/// Share of the requests that come in bursts.
const BURST_SHARE: f64 = 2.0 / 3.0;

/// Where the requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Requests of a Mooncake trace, from the one with this index on.
    Trace {
        file: &'static str,
        from: usize,
        requests: usize,
    },
    /// 200 documents of 8,000 tokens, by Zipf's law.
    Rag,
    /// 4,000 shared tokens in bursts of 200, over unrelated requests.
    Burst,
    /// One prompt of 100,000 tokens among nine of 500.
    Mix,
    /// 1,000 tokens, nothing shared.
    Uniform,
    /// Chats without time to think, this many under way.
    Chat { threads: u32, requests: u32 },
    /// Agents that branch.
    Tree,
    /// Tenants with adapters and days, one of which changes its system prompt.
    Tenants,
}

/// A workload at a load on a fleet.
#[derive(Clone, Debug)]
pub struct Cell {
    pub name: String,
    pub source: Source,
    /// Share of what a perfect cache could serve, in percent; `None` in a closed loop.
    load_percent: Option<u32>,
    pub replicas: Vec<Profile>,
}

const CONVERSATION_REQUESTS: usize = 6_000;
const CONVERSATION: Source = Source::Trace {
    file: "conversation_trace.jsonl",
    from: 0,
    requests: CONVERSATION_REQUESTS,
};
/// All that [`CONVERSATION`] leaves.
const CONVERSATION_REST: Source = Source::Trace {
    file: "conversation_trace.jsonl",
    from: CONVERSATION_REQUESTS,
    requests: 100_000,
};
const MOONCAKE: Source = Source::Trace {
    file: "mooncake_trace_1000.jsonl",
    from: 0,
    requests: 1_000,
};
const QUICK: [&str; 6] = [
    "conversation_80",
    "rag_80",
    "burst_80",
    "mix_70",
    "chat_600",
    "unequal_rag_70",
];

/// All cells.
fn all() -> Vec<Cell> {
    let h100 = vec![profiles::h100x2(); REPLICAS];
    let chat = |threads, requests| Cell {
        name: format!("chat_{threads}"),
        source: Source::Chat { threads, requests },
        load_percent: None,
        replicas: vec![profiles::l4_fp8(); REPLICAS],
    };
    let unequal = unequal(&profiles::h100x2());
    [
        open("conversation", CONVERSATION, &[60, 80, 90], &h100),
        open("mooncake", MOONCAKE, &[70], &h100),
        open("rag", Source::Rag, &[60, 80, 90], &h100),
        open("burst", Source::Burst, &[60, 80, 90], &h100),
        open("mix", Source::Mix, &[70], &h100),
        open("uniform", Source::Uniform, &[80], &h100),
        vec![chat(300, 12_000), chat(600, 15_000), chat(1_200, 20_000)],
        open("unequal_conversation", CONVERSATION, &[70], &unequal),
        open("unequal_rag", Source::Rag, &[70], &unequal),
        open("unequal_uniform", Source::Uniform, &[70], &unequal),
    ]
    .concat()
}

/// Cells that no policy was designed on, chosen before any of them had run there, for a last
/// examination: each is to be looked at when nothing will be changed any more.
///
/// - The part of the conversation trace that the portfolio leaves: other conversations, later.
/// - Agents that branch: what is shared has many ends, and comes at once.
/// - More system prompts than one cache holds, with loads that shift, and one that changes: what was
///   learned of a prefix is worth nothing from one moment to the next.
pub fn unseen() -> Vec<Cell> {
    let h100 = vec![profiles::h100x2(); REPLICAS];
    [
        open("conversation_rest", CONVERSATION_REST, &[75], &h100),
        open("tree", Source::Tree, &[75], &h100),
        open("tenants", Source::Tenants, &[75], &h100),
    ]
    .concat()
}

/// An open loop at several loads.
pub fn open(name: &str, source: Source, percents: &[u32], replicas: &[Profile]) -> Vec<Cell> {
    let cell = |percent: &u32| Cell {
        name: format!("{name}_{percent}"),
        source,
        load_percent: Some(*percent),
        replicas: replicas.to_vec(),
    };
    percents.iter().map(cell).collect()
}

/// Fast and slow replicas in turn.
fn unequal(profile: &Profile) -> Vec<Profile> {
    let slow = profile.slowed(SLOWER_PERMILLE);
    let pair = [profile.clone(), slow];
    pair.into_iter().cycle().take(REPLICAS).collect()
}

/// The cells that these words name.
pub fn chosen(words: &[String]) -> Result<Vec<Cell>, String> {
    let all = all();
    let mut chosen: Vec<Cell> = Vec::new();
    for word in words {
        let is_meant = |cell: &&Cell| match word.as_str() {
            "all" => true,
            "quick" => QUICK.contains(&cell.name.as_str()),
            word => cell.name == word || cell.name.starts_with(&format!("{word}_")),
        };
        let mut meant = all.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            let names: Vec<&str> = all.iter().map(|cell| cell.name.as_str()).collect();
            return Err(format!("no cell `{word}`; there are {}", names.join(", ")));
        }
        for cell in meant {
            if chosen.iter().all(|other| other.name != cell.name) {
                chosen.push(cell.clone());
            }
        }
    }
    Ok(chosen)
}

impl Cell {
    /// Whether the workload is the same for every seed.
    pub fn is_trace(&self) -> bool {
        matches!(self.source, Source::Trace { .. })
    }

    /// The workload at the cell's load; `work` is what its requests cost in the mean.
    pub fn workload(
        &self,
        work: &Work,
        seed: u64,
        traces: &Path,
    ) -> Result<Option<Workload>, String> {
        let share = self.load_percent.map(|percent| f64::from(percent) / 100.0);
        let rate_per_s = work.rate_per_s(&self.replicas) * share.unwrap_or(1.0);
        self.source.workload(rate_per_s, seed, traces)
    }
}

impl Source {
    /// The workload at this many requests per second; `None` if its trace is not there. A closed
    /// loop has no rate.
    pub fn workload(
        self,
        rate_per_s: f64,
        seed: u64,
        traces: &Path,
    ) -> Result<Option<Workload>, String> {
        Ok(Some(match self {
            Self::Trace {
                file,
                from,
                requests,
            } => {
                let Some(trace) = read(&traces.join(file), file)? else {
                    return Ok(None);
                };
                let trace = trace.without_first(from).truncated(requests);
                let now = trace.rate_per_s().unwrap_or(1.0);
                trace.sped_up(rate_per_s / now)
            }
            Self::Rag => rag::workload(&rag(rate_per_s), seed),
            Self::Burst => burst::workload(&burst(rate_per_s), seed),
            Self::Mix => mix::workload(&mix(rate_per_s), seed),
            Self::Uniform => uniform::workload(&uniform(rate_per_s), seed),
            Self::Chat { threads, requests } => chat::closed(
                &chat::Closed {
                    requests,
                    threads,
                    ..chat::Closed::default()
                },
                seed,
            ),
            Self::Tree => tree::workload(&tree(rate_per_s), seed),
            Self::Tenants => tenants::workload(&tenants(rate_per_s), seed),
        }))
    }
}

fn read(path: &Path, name: &str) -> Result<Option<Workload>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let trace = mooncake::read(BufReader::new(file), name).map_err(|error| error.to_string())?;
    Ok(Some(trace))
}

fn rag(rate_per_s: f64) -> rag::Options {
    rag::Options {
        requests: 5_000,
        rate_per_s,
        ..rag::Options::default()
    }
}

/// The bursts stay as long and as large at any rate, and come more often.
fn burst(rate_per_s: f64) -> burst::Options {
    let every_s = f64::from(BURST_REQUESTS) / (rate_per_s * BURST_SHARE);
    burst::Options {
        requests: 6_000,
        rate_per_s: rate_per_s * (1.0 - BURST_SHARE),
        every_ms: (every_s * 1e3) as u32,
        burst_requests: BURST_REQUESTS,
        burst_ms: BURST_MS,
        ..burst::Options::default()
    }
}

fn mix(rate_per_s: f64) -> mix::Options {
    mix::Options {
        requests: 2_000,
        rate_per_s,
        ..mix::Options::default()
    }
}

fn uniform(rate_per_s: f64) -> uniform::Options {
    uniform::Options {
        requests: 6_000,
        rate_per_s,
        ..uniform::Options::default()
    }
}

fn tree(rate_per_s: f64) -> tree::Options {
    tree::Options {
        rate_per_s,
        ..tree::Options::default()
    }
}

fn tenants(rate_per_s: f64) -> tenants::Options {
    tenants::Options {
        rate_per_s,
        ..tenants::Options::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let cells = chosen(&words)?;
        Ok(cells.into_iter().map(|cell| cell.name).collect())
    }

    #[test]
    fn cells_are_chosen_by_name_or_beginning_and_each_once() {
        assert_eq!(
            names(&["rag_80", "rag"]).unwrap(),
            ["rag_80", "rag_60", "rag_90"]
        );
        assert_eq!(names(&["quick"]).unwrap().len(), QUICK.len());
        assert_eq!(names(&["all"]).unwrap().len(), 18);
        assert!(
            names(&["ra"])
                .unwrap_err()
                .starts_with("no cell `ra`; there are")
        );
    }

    #[test]
    fn a_cell_comes_at_its_share_of_what_a_perfect_cache_could_serve() {
        let words = ["rag_80", "burst_90", "mix_70"].map(str::to_owned);
        let generated = unseen().into_iter().filter(|cell| !cell.is_trace());
        for cell in chosen(&words).unwrap().into_iter().chain(generated) {
            let nowhere = Path::new("/nowhere");
            let probe = cell.source.workload(1.0, 1, nowhere).unwrap().unwrap();
            let work = Work::of(&probe, 16);
            let workload = cell.workload(&work, 1, nowhere).unwrap().unwrap();
            let most = work.rate_per_s(&cell.replicas);
            let share = workload.rate_per_s().unwrap() / most * 100.0;
            let wanted = f64::from(cell.load_percent.unwrap());
            assert!(
                (share / wanted - 1.0).abs() < 0.08,
                "{}: {share}",
                cell.name
            );
        }
    }

    #[test]
    fn a_cell_without_its_trace_has_no_workload() {
        let cell = chosen(&["mooncake".into()]).unwrap().remove(0);
        assert_eq!(
            cell.source.workload(1.0, 1, Path::new("/nowhere")),
            Ok(None)
        );
    }
}
