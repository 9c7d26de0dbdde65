//! The prefix index inside Envoy, measured: a module that does what a pick does to the index, in every
//! worker at once, and logs what it took. `examples/figures/index.rs` starts it and reads the log.
//!
//! Each VM fills its own table, so that the blocks of many prompts lie where a busy gateway has them.
//! Then all go through the same phases, each when the last has come to it: look-ups alone, prompts sent
//! by all while all look up, ten million blocks sent. The work is done in short slices, a tick each.
// What the SDK calls is public, and so is nothing else.
#![allow(missing_docs)]
// It has no other host.
#![cfg(target_arch = "wasm32")]

mod phases;
mod store;

use phases::Bench;
use proxy_wasm::traits::{Context, RootContext};
use proxy_wasm::types::{ContextType, LogLevel};
use std::time::Duration;

/// A slice of work, then a little room for the rest of the worker.
const TICK: Duration = Duration::from_millis(1);

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root { bench: None }));
}}

struct Root {
    bench: Option<Bench>,
}

impl Context for Root {}

impl RootContext for Root {
    /// The configuration is the number of VMs that tick.
    fn on_configure(&mut self, _: usize) -> bool {
        let text = self.get_plugin_configuration().unwrap_or_default();
        let vms = std::str::from_utf8(&text).map(|text| text.trim().parse());
        let Ok(Ok(vms)) = vms else {
            log::error!("index_bench: the configuration must be a number of VMs");
            return false;
        };
        self.bench = Some(Bench::new(vms));
        self.set_tick_period(TICK);
        true
    }

    fn on_tick(&mut self) {
        if let Some(bench) = &mut self.bench
            && let Some(result) = bench.slice()
        {
            log::info!("index_bench {result}");
            self.set_tick_period(Duration::ZERO);
            self.bench = None;
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn proxy_wasm::traits::HttpContext>> {
        None
    }
}
