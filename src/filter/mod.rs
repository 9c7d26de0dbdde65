//! The proxy-wasm shell: callbacks become inputs of the core, effects become calls to the host.
//!
//! This is the only part of the crate that knows where it runs. It holds no logic of its own that
//! could be tested elsewhere.

mod host;
mod http;
mod metrics;
mod root;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use self::metrics::Metrics;
use crate::balancer::Balancer;
use crate::session::Session;

/// What all streams of one VM share.
struct Vm {
    balancer: Balancer,
    metrics: Metrics,
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

/// SplitMix64 (Steele, Lea, Flood 2014): all the randomness a load balancer needs.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    proxy_wasm::set_root_context(|context| Box::new(root::Root::new(context)));
}}
