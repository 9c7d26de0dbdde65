//! The scenarios: what goes wrong, one file each.

mod adapters;
mod blackhole;
mod flap;
mod kill9;
mod overload;
mod refusals;
mod rolling;
mod saturation;
mod scale;
mod soak;

pub use soak::soak;

use crate::bars::Measured;
use crate::outcome::{Outcome, complaints};
use clap::ValueEnum;

/// What all scenarios are run with.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Of the loads.
    pub seed: u64,
    /// Envoy's.
    pub workers: u32,
}

/// What a scenario came to, or why it could not be measured.
pub type Result = std::result::Result<Vec<Measured>, String>;

/// One mishap or several of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// kill -9 of one replica of four under load.
    Kill9,
    /// All replicas drained and restarted in turn, with long streams under way.
    Rolling,
    /// An endpoint that leaves and returns a hundred times.
    Flap,
    /// An endpoint that drops SYNs, and one that falls silent.
    Blackhole,
    /// All engines answer 429.
    All429,
    /// Clients that send what engines refuse.
    Client400s,
    /// Adapters that only some of the engines serve.
    Adapters,
    /// From two replicas to six and back.
    Scale,
    /// As many requests as the fleet may take, and more.
    Saturation,
    /// Twice the load that the engines take.
    Overload,
}

impl Scenario {
    /// Those asked for, in the order of the list; all if none is asked for.
    pub fn chosen(only: &[Self]) -> impl Iterator<Item = Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(move |scenario| only.is_empty() || only.contains(scenario))
    }

    /// As on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Runs it.
    pub async fn run(self, context: &Context) -> Result {
        match self {
            Self::Kill9 => kill9::run(context).await,
            Self::Rolling => rolling::run(context).await,
            Self::Flap => flap::run(context).await,
            Self::Blackhole => blackhole::run(context).await,
            Self::All429 => refusals::all_429(context).await,
            Self::Client400s => refusals::client_400s(context).await,
            Self::Adapters => adapters::run(context).await,
            Self::Scale => scale::run(context).await,
            Self::Saturation => saturation::run(context).await,
            Self::Overload => overload::run(context).await,
        }
    }
}

/// Says on stderr what did not end as it was meant to.
fn tell(scenario: &str, all: &[Outcome]) {
    eprintln!("{scenario}: {} requests", all.len());
    for line in complaints(all) {
        eprintln!("{scenario}:   {line}");
    }
}
