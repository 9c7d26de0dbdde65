//! What the engines last reported, shared by all workers.
//!
//! Only the holder of the lease writes, so that no compare-and-swap is needed; a late answer to one
//! that has just lost it may undo a row, which the next answer mends. With each report goes what this
//! Envoy itself had in flight there at that moment: the difference is other people's traffic.

use super::Store;
use super::codec::{read_u32, read_u64, write};
use crate::endpoint::EndpointId;

const ROW: usize = 32;

/// One engine's gauges at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whose.
    pub endpoint: EndpointId,
    /// When the answer arrived, in milliseconds.
    pub at_ms: u64,
    /// Requests the engine was running.
    pub running: u32,
    /// Requests waiting in the engine.
    pub waiting: u32,
    /// Share of the KV cache in use, in thousandths.
    pub kv_usage_permille: u32,
    /// What this Envoy had in flight there at that moment.
    pub ours: u32,
}

impl Report {
    /// Requests at the engine that did not come through this Envoy. The engine's gauges lag, so
    /// this is never below zero.
    pub fn others(&self) -> u32 {
        self.running
            .saturating_add(self.waiting)
            .saturating_sub(self.ours)
    }

    /// Whether it still counts. One from the future, by more than clocks differ, was made before the
    /// clock was set back.
    pub fn is_fresh(&self, now_ms: u64, stale_after_ms: u64) -> bool {
        self.age_ms(now_ms) <= stale_after_ms && self.at_ms <= now_ms.saturating_add(1_000)
    }

    /// Age in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.at_ms)
    }
}

/// Plugins of different configurations may share a store, during an update above all; each group of
/// VMs with one configuration has its own reports.
fn key(group: u64) -> String {
    format!("warmroute/1/snapshots/{group:016x}")
}

/// Reads all reports of a group; empty if there are none or they are of another format.
pub fn load<S: Store + ?Sized>(store: &S, group: u64) -> Vec<Report> {
    let Some((bytes, _)) = store.get(&key(group)) else {
        return Vec::new();
    };
    bytes.chunks_exact(ROW).filter_map(decode).collect()
}

/// Writes all reports of a group.
pub fn save<S: Store + ?Sized>(store: &S, group: u64, reports: &[Report]) {
    let mut bytes = vec![0; reports.len().saturating_mul(ROW)];
    for (row, report) in bytes.chunks_exact_mut(ROW).zip(reports) {
        write(row, 0, &report.endpoint.0.to_le_bytes());
        write(row, 8, &report.at_ms.to_le_bytes());
        write(row, 16, &report.running.to_le_bytes());
        write(row, 20, &report.waiting.to_le_bytes());
        write(row, 24, &report.kv_usage_permille.to_le_bytes());
        write(row, 28, &report.ours.to_le_bytes());
    }
    // A refused write leaves the last reports, which age out.
    let _ = store.put(&key(group), &bytes);
}

/// Puts one endpoint's report in the place of its last one. What another VM learned while it held the
/// lease stays until there is something better.
pub fn merge<S: Store + ?Sized>(store: &S, group: u64, report: Report) {
    let mut reports = load(store, group);
    reports.retain(|old| old.endpoint != report.endpoint);
    reports.push(report);
    save(store, group, &reports);
}

fn decode(row: &[u8]) -> Option<Report> {
    Some(Report {
        endpoint: EndpointId(read_u64(row, 0)?),
        at_ms: read_u64(row, 8)?,
        running: read_u32(row, 16)?,
        waiting: read_u32(row, 20)?,
        kv_usage_permille: read_u32(row, 24)?,
        ours: read_u32(row, 28)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory::MemoryStore;

    #[test]
    fn reports_come_back_as_they_were_saved() {
        let store = MemoryStore::new();
        assert_eq!(load(&store, 1), []);
        let report = Report {
            endpoint: EndpointId(7),
            at_ms: 1_234_567_890_123,
            running: 3,
            waiting: 12,
            kv_usage_permille: 870,
            ours: 4,
        };
        save(
            &store,
            1,
            &[
                report,
                Report {
                    endpoint: EndpointId(8),
                    ..report
                },
            ],
        );
        assert_eq!(
            load(&store, 1),
            [
                report,
                Report {
                    endpoint: EndpointId(8),
                    ..report
                }
            ]
        );
        assert_eq!(load(&store, 2), []);
        assert_eq!(report.others(), 11);
        let at_ms = report.at_ms;
        assert!(report.is_fresh(at_ms + 5_000, 5_000) && !report.is_fresh(at_ms + 5_001, 5_000));
        assert!(report.is_fresh(at_ms - 1_000, 5_000) && !report.is_fresh(at_ms - 1_001, 5_000));
        assert_eq!(Report { ours: 99, ..report }.others(), 0);
    }
}
