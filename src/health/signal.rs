//! What can be heard of an endpoint.

/// What Envoy says of an endpoint; the worse, the greater. Of all that its list of clusters says
/// (`/clusters?format=json`, the member's `health_status`, read by [`crate::scrape::clusters`]) the worst counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It may be used, as far as Envoy knows: `eds_health_status` is `HEALTHY`, unknown or absent, and no flag is
    /// set. An endpoint that the configuration names is that, too, where Envoy does not list it.
    #[default]
    Healthy,
    /// It serves, but says of itself that it would rather not (`failed_active_degraded_check`), or the control
    /// plane says so (`DEGRADED`). To a pick it is as good as a healthy one; between levels of failover it
    /// comes behind.
    Degraded,
    /// An active check failed, timed out or is still to come (`failed_active_health_check`, `active_hc_timeout`,
    /// `excluded_via_immediate_hc_fail`, `pending_active_hc`), outlier detection ejected it
    /// (`failed_outlier_check`), or the control plane says so (`UNHEALTHY`, `TIMEOUT`). It gets nothing.
    Unhealthy,
    /// It is about to leave: the control plane says so (`DRAINING`), or has taken it out already
    /// (`pending_dynamic_removal`). It gets nothing new, and finishes what it has.
    Draining,
}

/// Something heard of an endpoint. Client errors (4xx other than 429) are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A request got a good answer; of one that probes, its first output is enough.
    Good,
    /// Part of an answer came, good or not.
    Alive,
    /// A request failed, and the endpoint is to blame.
    Failed,
    /// A request's connection was refused.
    Refused,
    /// Too busy, and how long it asked to be spared, in milliseconds.
    Overloaded {
        /// `None` if it did not say.
        retry_after_ms: Option<u64>,
    },
    /// Envoy tried it first and went elsewhere: it was overloaded, or failed somehow.
    Blamed,
    /// A request that probed is over, and says nothing of the endpoint: the client left or erred.
    Unproved,
    /// It answered a scrape.
    Scraped {
        /// KV usage in thousandths; 0 if it does not tell.
        kv_permille: u32,
        /// `None` if it does not tell.
        awake: Option<bool>,
    },
    /// It did not answer a scrape in time.
    ScrapeSilent,
    /// A scrape's connection was refused.
    ScrapeRefused,
    /// The engine says that it is well.
    EngineHealthy,
    /// The engine says that it is not.
    EngineUnhealthy,
    /// The engine says that it sleeps.
    Asleep,
    /// The engine says that it does not.
    Awake,
    /// What Envoy says.
    Envoy(Verdict),
    /// It was discovered, and was not there before.
    Came,
    /// It is not there any more.
    Left,
}
