//! Watches the gauges of what is under way while a test goes on.

use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::fleet::INFLIGHT;
use crate::support::stats::{Sample, Stats};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// More than can be under way. A gauge below zero wraps, and is far above.
const WRAPPED: f64 = 1e9;

/// A task that reads them again and again.
pub struct Gauges {
    stop: oneshot::Sender<()>,
    /// How often they were read, and those that had wrapped.
    task: JoinHandle<(usize, Vec<Sample>)>,
}

impl Gauges {
    /// Begins to read those of the Envoy with this admin interface.
    pub fn watch(admin: SocketAddr) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let client = HttpClient::new(admin, Protocol::Http1);
            let (mut read, mut wrapped) = (0, Vec::new());
            while stopped.try_recv().is_err() {
                let call = Call::get("/stats/prometheus?filter=warmroute_inflight");
                let stats = Stats::parse(&client.send(call).await.unwrap().text());
                assert!(INFLIGHT.iter().all(|name| stats.has(name)));
                read += 1;
                wrapped.extend(stats.0.into_iter().filter(|one| one.value > WRAPPED));
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            (read, wrapped)
        });
        Self { stop, task }
    }

    /// Ends it.
    ///
    /// # Panics
    /// If a gauge had wrapped, or nobody looked.
    pub async fn never_wrapped(self) {
        // The task is there as long as nobody has told it to end.
        let _ = self.stop.send(());
        let (read, wrapped) = self.task.await.unwrap();
        assert!(read > 20, "the gauges were read {read} times");
        assert!(wrapped.is_empty(), "a gauge below zero wraps: {wrapped:?}");
    }
}
