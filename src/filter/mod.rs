//! The proxy-wasm shell: callbacks go to the core's [`Worker`], and what that asks of its host becomes
//! calls to the host.
//!
//! This is the only part of the crate that knows where it runs. It holds no logic of its own that
//! could be tested elsewhere.

#[cfg(feature = "chaos")]
mod chaos;
mod host;
mod http;
mod root;

use std::cell::RefCell;
use std::rc::Rc;

use self::host::Envoy;
use crate::worker::Worker;

/// What all streams of one VM share. `None` until the plugin is configured.
type SharedWorker = Rc<RefCell<Option<Worker<Envoy>>>>;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    proxy_wasm::set_root_context(|context| Box::new(root::Root::new(context)));
}}
