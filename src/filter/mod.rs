//! The proxy-wasm shell: callbacks become inputs of the core, effects become calls to the host.
//!
//! This is the only part of the crate that knows where it runs. It holds no logic of its own that
//! could be tested elsewhere.

#[cfg(feature = "chaos")]
mod chaos;
mod discovery;
mod host;
mod http;
mod root;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use self::host::HostMeter;
use crate::balancer::Balancer;
use crate::metrics::Metrics;
use crate::random::Random;
use crate::session::Session;

/// What all streams of one VM share.
struct Vm {
    balancer: Balancer,
    metrics: Metrics<HostMeter>,
    random: Random,
    /// Requests that are held back, by context, with the number of ticks before. Only as long as no
    /// body callback has come.
    held: BTreeMap<u32, (u64, Rc<RefCell<Session>>)>,
    /// Ticks so far: a clock that costs nothing, and that nobody sets back.
    ticks: u64,
    /// Requests since the last tick whose destination the host refused.
    unsteered: u64,
    /// A body callback came for a held request: the host is configured as it must be.
    body_callbacks_seen: bool,
}

/// `None` until the plugin is configured.
type SharedVm = Rc<RefCell<Option<Vm>>>;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    proxy_wasm::set_root_context(|context| Box::new(root::Root::new(context)));
}}
