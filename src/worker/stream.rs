//! One HTTP stream: the host's callbacks to inputs of its session.

use std::rc::Rc;

use super::host::{Buffer, Host};
use super::watchdog::Bodies;
use super::{SharedSession, Worker};
use crate::session::{Flow, Input, Patience, Rest};

/// One stream of a worker. Every callback says what the host shall do with the part that it is about.
pub struct Stream {
    context: u32,
    session: SharedSession,
    /// Request body bytes that the session has been given.
    request_bytes: usize,
    /// Response body bytes that the session has been given and that are still held.
    held_response_bytes: usize,
}

impl Stream {
    /// The stream that the host calls `context`.
    pub fn new(context: u32) -> Self {
        Self {
            context,
            session: Rc::default(),
            request_bytes: 0,
            held_response_bytes: 0,
        }
    }

    /// Whether the request is being held back.
    pub fn is_holding(&self) -> bool {
        let session = self.session.try_borrow();
        session.is_ok_and(|session| session.is_holding())
    }

    fn is_waiting(&self) -> bool {
        let session = self.session.try_borrow();
        session.is_ok_and(|session| session.is_waiting())
    }

    fn is_in_flight(&self) -> bool {
        let session = self.session.try_borrow();
        session.is_ok_and(|session| session.is_in_flight())
    }

    fn run<H: Host>(&self, worker: &mut Worker<H>, input: Input<'_>) -> Flow {
        worker.run(self.context, &self.session, input)
    }

    /// Request headers.
    pub fn request_headers<H: Host>(&mut self, worker: &mut Worker<H>, rest: Rest) -> Flow {
        self.run(worker, Input::RequestHeaders(rest))
    }

    /// The host has `size` bytes of the request's body. While it is held, these count from its beginning.
    pub fn request_body<H: Host>(
        &mut self,
        worker: &mut Worker<H>,
        size: usize,
        rest: Rest,
    ) -> Flow {
        if !self.is_waiting() && !self.is_holding() {
            return Flow::Continue;
        }
        worker.watchdog.body_came();
        if self.is_waiting() {
            return self.body_of_who_waits(worker, size, rest);
        }
        let known = self.request_bytes;
        let fresh = size.saturating_sub(known);
        let chunk = worker.vm.host.read(Buffer::RequestBody, known, fresh);
        self.request_bytes = size;
        match self.run(worker, Input::RequestBody(&chunk, rest)) {
            Flow::Hold if self.is_waiting() => self.body_of_who_waits(worker, size, rest),
            flow => flow,
        }
    }

    fn body_of_who_waits<H: Host>(
        &mut self,
        worker: &mut Worker<H>,
        size: usize,
        rest: Rest,
    ) -> Flow {
        worker.waiting.body_came(self.context, rest);
        let most = worker.vm.balancer.config().hold_max_bytes;
        let patience = match size as u64 > most {
            // The host may not buffer more, and would call the body too large.
            true => Patience::Over,
            false => Patience::Waits,
        };
        self.run(worker, Input::Endpoints(patience))
    }

    /// Request trailers.
    pub fn request_trailers<H: Host>(&mut self, worker: &mut Worker<H>) -> Flow {
        if self.is_waiting() {
            worker.waiting.body_came(self.context, Rest::End);
            return self.run(worker, Input::Endpoints(Patience::Waits));
        }
        self.run(worker, Input::RequestTrailers)
    }

    /// Response headers.
    pub fn response_headers<H: Host>(&mut self, worker: &mut Worker<H>, rest: Rest) -> Flow {
        match self.run(worker, Input::ResponseHeaders(rest)) {
            // Without the flag, the body that these headers wait for would never come.
            Flow::Hold if worker.watchdog.bodies() == Bodies::Unseen => {
                self.run(worker, Input::Watchdog)
            }
            flow => flow,
        }
    }

    /// The host has `size` bytes of the response's body. While it is held, these count from its beginning.
    pub fn response_body<H: Host>(
        &mut self,
        worker: &mut Worker<H>,
        size: usize,
        rest: Rest,
    ) -> Flow {
        if !self.is_in_flight() {
            return Flow::Continue;
        }
        let known = self.held_response_bytes;
        let fresh = size.saturating_sub(known);
        let chunk = worker.vm.host.read(Buffer::ResponseBody, known, fresh);
        let flow = self.run(worker, Input::ResponseBody(&chunk, rest));
        self.held_response_bytes = match flow {
            Flow::Hold => size,
            Flow::Continue => 0,
        };
        flow
    }

    /// Response trailers.
    pub fn response_trailers<H: Host>(&mut self, worker: &mut Worker<H>) -> Flow {
        self.run(worker, Input::ResponseTrailers)
    }

    /// The stream is gone, or about to be: nothing of it may stay behind. The host may say so more than once.
    pub fn closed<H: Host>(&mut self, worker: &mut Worker<H>) {
        if self.is_holding() || self.is_waiting() || self.is_in_flight() {
            self.run(worker, Input::Closed);
        }
    }
}
