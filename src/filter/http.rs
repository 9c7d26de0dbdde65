//! One stream: proxy-wasm's callbacks that are about it.

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use super::SharedWorker;
use super::host::Envoy;
use crate::session::{Flow, Rest};
use crate::worker::{Stream, Worker};

/// One stream, and the worker that it belongs to.
pub(super) struct StreamContext {
    stream: Stream,
    worker: SharedWorker,
}

impl StreamContext {
    pub(super) fn new(context: u32, worker: SharedWorker) -> Self {
        Self {
            stream: Stream::new(context),
            worker,
        }
    }

    fn run(&mut self, act: impl FnOnce(&mut Stream, &mut Worker<Envoy>) -> Flow) -> Action {
        let Ok(mut worker) = self.worker.try_borrow_mut() else {
            return Action::Continue;
        };
        let Some(worker) = worker.as_mut() else {
            return Action::Continue;
        };
        match act(&mut self.stream, worker) {
            Flow::Continue => Action::Continue,
            Flow::Hold => Action::Pause,
        }
    }

    fn close(&mut self) {
        self.run(|stream, worker| {
            stream.closed(worker);
            Flow::Continue
        });
    }
}

fn rest(end_of_stream: bool) -> Rest {
    if end_of_stream { Rest::End } else { Rest::Open }
}

impl Context for StreamContext {
    fn on_done(&mut self) -> bool {
        self.close();
        true
    }
}

impl HttpContext for StreamContext {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "chaos")]
        super::chaos::panic_if_asked("headers");
        self.run(|stream, worker| stream.request_headers(worker, rest(end_of_stream)))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "chaos")]
        if self.stream.is_holding() {
            super::chaos::panic_if_asked("body");
        }
        self.run(|stream, worker| stream.request_body(worker, size, rest(end_of_stream)))
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.run(Stream::request_trailers)
    }

    fn on_http_response_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        self.run(|stream, worker| stream.response_headers(worker, rest(end_of_stream)))
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.run(|stream, worker| stream.response_body(worker, size, rest(end_of_stream)))
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.run(Stream::response_trailers)
    }

    fn on_log(&mut self) {
        self.close();
    }
}
