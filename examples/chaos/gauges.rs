//! The in-flight gauges, looked at all the while.

use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::fleet::INFLIGHT;
use crate::support::stats::Stats;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const LOOK: Duration = Duration::from_millis(50);
/// Envoy shows a gauge below 0 as 2^64 less.
const WRAPPED: f64 = (1_u64 << 63) as f64;

/// All in-flight gauges at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Look {
    /// Their sum.
    pub sum: f64,
    /// How many were below 0.
    pub negative: usize,
}

/// What all looks came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// How many looks there were.
    pub looks: usize,
    /// How many of them showed anything in flight.
    pub busy: usize,
    /// Gauges below 0, over all looks.
    pub negative: usize,
}

/// Somebody who looks until he is asked what he saw.
pub struct Gauges {
    stop: watch::Sender<bool>,
    looks: JoinHandle<Result<Seen, String>>,
}

impl Gauges {
    /// Begins to look at those of the Envoy with this admin interface.
    pub fn watch(admin: SocketAddr) -> Self {
        let (stop, stopped) = watch::channel(false);
        let looks = tokio::spawn(async move {
            let mut seen = Seen::default();
            while !*stopped.borrow() {
                let look = look(admin).await?.unwrap_or_default();
                seen.looks += 1;
                seen.busy += usize::from(look.sum > 0.0);
                seen.negative += look.negative;
                tokio::time::sleep(LOOK).await;
            }
            Ok(seen)
        });
        Self { stop, looks }
    }

    /// What was seen.
    ///
    /// # Errors
    /// Envoy did not answer, or nothing was ever in flight: then a zero says nothing.
    pub async fn seen(self) -> Result<Seen, String> {
        self.stop.send_replace(true);
        let seen = self.looks.await.map_err(|e| e.to_string())??;
        match seen.busy {
            0 => Err(format!("nothing was in flight in {} looks", seen.looks)),
            _ => Ok(seen),
        }
    }
}

/// One look; `None` if there are no such gauges yet.
///
/// # Errors
/// Envoy did not answer.
pub async fn look(admin: SocketAddr) -> Result<Option<Look>, String> {
    let client = HttpClient::new(admin, Protocol::Http1);
    let call = Call::get("/stats/prometheus?filter=warmroute_inflight");
    Ok(of(&Stats::parse(&client.send(call).await?.text())))
}

fn of(stats: &Stats) -> Option<Look> {
    let mut look = Look::default();
    for name in INFLIGHT {
        if !stats.has(name) {
            return None;
        }
        for sample in stats.samples(name, &[]) {
            look.sum += sample.value;
            look.negative += usize::from(sample.value < 0.0 || sample.value >= WRAPPED);
        }
    }
    Some(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_below_zero_is_seen() {
        let page = |value: &str| {
            let line = |name: &&str| format!("{name}{{endpoint=\"a\"}} {value}\n");
            INFLIGHT.iter().map(line).collect::<String>()
        };
        let look = |value| of(&Stats::parse(&page(value)));
        let none = Look::default();
        assert_eq!(look("0"), Some(none));
        assert_eq!(look("2"), Some(Look { sum: 6.0, ..none }));
        for below in ["18446744073709551615", "-1"] {
            assert_eq!(look(below).map(|look| look.negative), Some(3));
        }
        assert_eq!(of(&Stats::default()), None);
    }
}
