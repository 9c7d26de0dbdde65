//! The plugin in one VM: proxy-wasm's callbacks that are about no stream.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use super::SharedWorker;
use super::host::{self, Envoy};
use super::http::StreamContext;
use crate::worker::{TICK_MS, Worker};

/// The plugin in one VM.
pub(super) struct Root {
    context: u32,
    worker: SharedWorker,
}

impl Root {
    pub(super) fn new(context: u32) -> Self {
        Self {
            context,
            worker: Rc::default(),
        }
    }

    fn with_worker(&self, act: impl FnOnce(&mut Worker<Envoy>)) {
        if let Ok(mut worker) = self.worker.try_borrow_mut()
            && let Some(worker) = worker.as_mut()
        {
            act(worker);
        }
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body_size: usize, _: usize) {
        self.with_worker(|worker| worker.answered(token, headers, body_size));
    }

    fn on_done(&mut self) -> bool {
        self.with_worker(Worker::close);
        true
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let Some(worker) = Worker::configured(Envoy, self.context, size) else {
            return false;
        };
        if let Ok(mut shared) = self.worker.try_borrow_mut() {
            *shared = Some(worker);
        }
        host::set_tick_period_ms(TICK_MS);
        true
    }

    fn on_tick(&mut self) {
        self.with_worker(Worker::tick);
    }

    fn create_http_context(&self, context: u32) -> Option<Box<dyn HttpContext>> {
        let stream = StreamContext::new(context, self.worker.clone());
        Some(Box::new(stream))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
