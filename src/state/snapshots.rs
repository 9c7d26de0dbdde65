//! What the engines last reported, shared by all workers.
//!
//! Only the holder of the lease asks, but a late answer may come to one that has just lost it:
//! compare-and-swap decides who puts a row in place of which, so that of a restart exactly one VM
//! hears. With each report goes what this Envoy itself had in flight there at that moment: the
//! difference is other people's traffic.

use super::codec::{read_u32, read_u64, write};
use super::{Store, Update, update};
use crate::endpoint::{EndpointId, MAX_KNOWN};
use crate::scrape::Life;

const MAGIC: &[u8] = b"WRR1";
const ROW: usize = 72;
/// The report on an endpoint that left is kept for so long, in milliseconds: it may come back.
const KEEP_MS: u64 = 600_000;
/// Stands for a figure that is not known.
const UNKNOWN: u64 = u64::MAX;

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
    /// Tokens of KV cache that this Envoy's requests held there at that moment: their context, without
    /// prompts that waited.
    pub ours_held_tokens: u64,
    /// Size of the KV cache in tokens; 0 if the engine does not tell.
    pub kv_tokens: u64,
    /// What shows whether the engine was restarted since the report before.
    pub life: Life,
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
    format!("warmroute/1/reports/{group:016x}")
}

/// Reads all reports of a group; empty if there are none or they are of another format.
pub fn load<S: Store + ?Sized>(store: &S, group: u64) -> Vec<Report> {
    let Some((bytes, _)) = store.get(&key(group)) else {
        return Vec::new();
    };
    decode_all(&bytes)
}

#[inline(never)]
fn decode_all(bytes: &[u8]) -> Vec<Report> {
    let rows = bytes.strip_prefix(MAGIC).unwrap_or_default();
    rows.chunks_exact(ROW).filter_map(decode).collect()
}

/// Writes all reports of a group.
#[cfg(test)]
pub fn save<S: Store + ?Sized>(store: &S, group: u64, reports: &[Report]) {
    store.put(&key(group), &encode_all(reports)).unwrap();
}

/// The group is gone. Of a group that goes on, all is known again with the next answers, but for a restart
/// in between.
pub fn clear<S: Store + ?Sized>(store: &S, group: u64) {
    // A refused write leaves the last reports, which age out.
    let _ = store.put(&key(group), &[]);
}

#[inline(never)]
fn encode_all(reports: &[Report]) -> Vec<u8> {
    let length = reports.len().saturating_mul(ROW);
    let mut bytes = MAGIC.to_vec();
    bytes.resize(MAGIC.len().saturating_add(length), 0);
    let rows = bytes.get_mut(MAGIC.len()..).unwrap_or_default();
    for (row, report) in rows.chunks_exact_mut(ROW).zip(reports) {
        write(row, 0, &report.endpoint.0.to_le_bytes());
        write(row, 8, &report.at_ms.to_le_bytes());
        write(row, 16, &report.running.to_le_bytes());
        write(row, 20, &report.waiting.to_le_bytes());
        write(row, 24, &report.kv_usage_permille.to_le_bytes());
        write(row, 28, &report.ours.to_le_bytes());
        let Life {
            started_s,
            prompt_tokens,
            output_tokens,
        } = report.life;
        let figures = [started_s, prompt_tokens, output_tokens];
        for (place, figure) in [32, 40, 48].into_iter().zip(figures) {
            write(row, place, &figure.unwrap_or(UNKNOWN).to_le_bytes());
        }
        write(row, 56, &report.ours_held_tokens.to_le_bytes());
        write(row, 64, &report.kv_tokens.to_le_bytes());
    }
    bytes
}

/// Puts one endpoint's report, which was asked for at `asked_ms`, in the place of its last one. What
/// another VM learned while it held the lease stays until there is something better: one that was asked for
/// before the last one came is older than that, however late it comes.
///
/// Says whether the engine was restarted between the two. Of each restart one caller hears, once:
/// the one whose report stands.
pub fn merge<S: Store + ?Sized>(store: &S, group: u64, asked_ms: u64, report: Report) -> bool {
    let mut restarted = false;
    let outcome = update(store, &key(group), |bytes| {
        let mut reports = decode_all(bytes);
        let mut report = report;
        let before = reports.iter().find(|old| old.endpoint == report.endpoint);
        // One from the future was made before the clock was set back.
        if before.is_some_and(|old| asked_ms < old.at_ms && old.at_ms <= report.at_ms) {
            return false;
        }
        let before = before.map(|old| old.life).unwrap_or_default();
        restarted = report.life.is_new_since(&before);
        report.life = report.life.following(&before);
        reports.retain(|old| old.endpoint != report.endpoint);
        if reports.len() >= MAX_KNOWN {
            // Endpoints that left, above all.
            let oldest_ms = reports.iter().map(|old| old.at_ms).min();
            reports.retain(|old| Some(old.at_ms) != oldest_ms);
        }
        reports.push(report);
        *bytes = encode_all(&reports);
        true
    });
    restarted && outcome == Update::Written
}

/// Gives up old reports on endpoints that are not `named` any more.
pub fn sweep<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    named: &dyn Fn(EndpointId) -> bool,
) {
    update(store, &key(group), |bytes| {
        let mut reports = decode_all(bytes);
        let before = reports.len();
        // One from the future was made before the clock was set back.
        reports.retain(|one| now_ms.abs_diff(one.at_ms) < KEEP_MS || named(one.endpoint));
        let fewer = reports.len() < before;
        if fewer {
            *bytes = encode_all(&reports);
        }
        fewer
    });
}

fn decode(row: &[u8]) -> Option<Report> {
    let figure = |place| {
        Some(read_u64(row, place)?).map(|value| Some(value).filter(|value| *value != UNKNOWN))
    };
    Some(Report {
        endpoint: EndpointId(read_u64(row, 0)?),
        at_ms: read_u64(row, 8)?,
        running: read_u32(row, 16)?,
        waiting: read_u32(row, 20)?,
        kv_usage_permille: read_u32(row, 24)?,
        ours: read_u32(row, 28)?,
        life: Life {
            started_s: figure(32)?,
            prompt_tokens: figure(40)?,
            output_tokens: figure(48)?,
        },
        ours_held_tokens: read_u64(row, 56)?,
        kv_tokens: read_u64(row, 64)?,
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
            ours_held_tokens: 8_000,
            kv_tokens: 275_200,
            life: Life {
                started_s: Some(1_764_500_000),
                prompt_tokens: Some(0),
                output_tokens: None,
            },
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

    fn counting(endpoint: u64, prompt_tokens: Option<u64>) -> Report {
        Report {
            endpoint: EndpointId(endpoint),
            at_ms: 1,
            running: 0,
            waiting: 0,
            kv_usage_permille: 0,
            ours: 0,
            ours_held_tokens: 0,
            kv_tokens: 0,
            life: Life {
                prompt_tokens,
                ..Life::default()
            },
        }
    }

    #[test]
    fn a_restart_is_told_once_whoever_holds_the_lease_and_of_one_endpoint_alone() {
        let store = MemoryStore::new();
        let told = |endpoint, prompt_tokens| merge(&store, 1, 1, counting(endpoint, prompt_tokens));
        assert!(
            !told(7, Some(900)) && !told(8, Some(900)),
            "the first say nothing"
        );
        assert!(!told(7, Some(1_000)));
        // No memory of a VM's own is used: this is the next holder as well as the last.
        assert!(!told(7, None));
        assert!(told(7, Some(10)));
        assert!(!told(7, Some(10)) && !told(7, Some(20)) && !told(8, Some(901)));
        assert!(told(8, Some(1)));
        assert!(
            !merge(&store, 2, 1, counting(7, Some(0))),
            "another group's"
        );
    }

    #[test]
    fn reports_on_endpoints_that_left_do_not_pile_up() {
        let store = MemoryStore::new();
        let old: Vec<Report> = (0..MAX_KNOWN as u64)
            .map(|id| Report {
                at_ms: 1_000 + id,
                ..counting(id, None)
            })
            .collect();
        save(&store, 1, &old);
        let report = Report {
            at_ms: 9_000,
            ..counting(u64::MAX, None)
        };
        merge(&store, 1, 8_990, report);
        let reports = load(&store, 1);
        assert_eq!(reports.len(), MAX_KNOWN);
        assert_eq!(reports.first(), old.get(1), "the oldest went");
        assert_eq!(reports.last(), Some(&report));
    }

    #[test]
    fn old_reports_on_endpoints_that_left_are_given_up() {
        let store = MemoryStore::new();
        let at = |endpoint, at_ms| Report {
            at_ms,
            ..counting(endpoint, None)
        };
        let reports = [at(1, 1_000), at(2, 1_000), at(3, 1_001)];
        save(&store, 1, &reports);
        let stays = |endpoint: EndpointId| endpoint.0 == 1;
        sweep(&store, 1, 600_999, &stays);
        assert_eq!(load(&store, 1), reports);
        sweep(&store, 1, 601_000, &stays);
        assert_eq!(load(&store, 1), [reports[0], reports[2]]);
        sweep(&store, 1, 601_001, &stays);
        // Who is named keeps the last one, however old: it tells of a restart.
        assert_eq!(load(&store, 1), [reports[0]]);
    }

    #[test]
    fn an_answer_that_comes_late_is_no_restart() {
        let store = MemoryStore::new();
        let at = |at_ms, tokens| Report {
            at_ms,
            ..counting(7, Some(tokens))
        };
        let counted = || load(&store, 1)[0].life.prompt_tokens;
        assert!(!merge(&store, 1, 1_000, at(1_010, 500)));
        // Another VM asked before that, and hears after it.
        assert!(!merge(&store, 1, 900, at(1_600, 400)));
        assert_eq!(counted(), Some(500));
        assert!(merge(&store, 1, 2_000, at(2_010, 10)), "a true one is");
        // A clock that is set back keeps nothing.
        assert!(!merge(&store, 1, 100, at(110, 20)));
        assert_eq!(counted(), Some(20));
    }

    #[test]
    fn rows_of_another_format_are_no_reports() {
        let store = MemoryStore::new();
        for length in [32, 9 * 32, ROW - 1, ROW + 8, 10 * ROW + 1] {
            store.put(&key(1), &vec![0xFF; length]).unwrap();
            assert_eq!(load(&store, 1), [], "{length}");
            assert!(!merge(&store, 1, 1, counting(7, Some(5))));
            assert_eq!(load(&store, 1).len(), 1);
        }
    }
}
