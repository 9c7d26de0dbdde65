//! One stream: proxy-wasm's HTTP callbacks to [`Session`] inputs, effects to host calls.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use super::host::{self, Buffer, Headers, SharedData};
use super::{SharedVm, Vm};
use crate::reply::{REASON_HEADER, Reply};
use crate::session::{Effects, Flow, Input, Moment, Rest, Session, StreamView};
use crate::steer::{
    MAX_RETRIES_HEADER, NEXT_DST_HEADER, ORIGINAL_DST_FILTER_STATE, ORIGINAL_DST_HEADER,
    OVERRIDE_HOST_HEADER, RETRY_ON_HEADER, Steer,
};

/// Response header that explains the Decision.
const DECISION_HEADER: &str = "x-warmroute-decision";
/// Property under which the access log finds the explanation, as filter state `wasm.warmroute`.
const DECISION_PROPERTY: &str = "warmroute";

/// The stream as the session may look at it.
pub(super) struct HostView;

impl StreamView for HostView {
    fn now_us(&self) -> u64 {
        host::now_ns() / 1_000
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        host::header(Headers::Request, name)
    }

    fn response_status(&self) -> Option<u16> {
        // The property is not there yet while a response without a body passes, the header is not
        // there any more once it has passed.
        if let Some(header) = host::header(Headers::Response, ":status") {
            return std::str::from_utf8(&header).ok()?.parse().ok();
        }
        let code = host::property("response\0code")?;
        u16::try_from(u64::from_le_bytes(code.try_into().ok()?)).ok()
    }

    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        host::header(Headers::Response, name)
    }

    fn upstream_address(&self) -> Option<Vec<u8>> {
        host::property("upstream\0address")
    }

    fn attempts(&self) -> Option<u64> {
        let bytes = host::property("upstream\0request_attempt_count")?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn response_details(&self) -> Option<Vec<u8>> {
        host::property("response\0code_details")
    }
}

/// Handles one input and does what comes of it, for the stream that the host's calls now concern.
pub(super) fn run(vm: &mut Vm, session: &mut Session, input: Input<'_>) -> Flow {
    let moment = Moment::new(&SharedData, vm.random.bits(), &HostView);
    let effects = session.handle(&mut vm.balancer, &moment, input);
    for event in &effects.events {
        vm.metrics.event(*event);
    }
    apply(vm, &effects);
    effects.flow
}

fn apply(vm: &mut Vm, effects: &Effects) {
    for name in effects.remove_request_headers {
        host::remove_header(Headers::Request, name);
    }
    let set = |name, value: &str| host::set_header(Headers::Request, name, value.as_bytes());
    let steered = match &effects.steer {
        Some(Steer::Header { name, value }) => set(name, value),
        Some(Steer::Headers { first, next }) => {
            let next_set = match next {
                Some(next) => set(NEXT_DST_HEADER, next),
                None => {
                    host::remove_header(Headers::Request, NEXT_DST_HEADER);
                    true
                }
            };
            set(ORIGINAL_DST_HEADER, first) && next_set
        }
        Some(Steer::FilterState { value }) => {
            host::set_filter_state(ORIGINAL_DST_FILTER_STATE, value)
        }
        None => true,
    };
    if !steered {
        // Without a destination of ours the client's must not stand either.
        vm.unsteered = vm.unsteered.saturating_add(1);
        for name in [ORIGINAL_DST_HEADER, NEXT_DST_HEADER, OVERRIDE_HOST_HEADER] {
            host::remove_header(Headers::Request, name);
        }
    }
    if let Some(cases) = effects.retry_on {
        set(RETRY_ON_HEADER, cases);
    }
    if let Some(retries) = effects.max_retries {
        set(MAX_RETRIES_HEADER, &retries.to_string());
    }
    if let Some(line) = &effects.log_field {
        host::set_property(DECISION_PROPERTY, line.as_bytes());
    }
    match (&effects.reply, &effects.response_header) {
        (Some(reply), explanation) => send(reply, explanation.as_deref()),
        (None, Some(line)) => {
            host::set_header(Headers::Response, DECISION_HEADER, line.as_bytes());
        }
        (None, None) => {}
    }
}

fn send(reply: &Reply, explanation: Option<&str>) {
    let reason = reply.kind.name();
    let retry_after = reply.retry_after_s.map(|seconds| seconds.to_string());
    let mut headers = vec![
        ("content-type", "application/json"),
        (REASON_HEADER, reason),
    ];
    headers.extend(
        retry_after
            .as_deref()
            .map(|seconds| ("retry-after", seconds)),
    );
    headers.extend(explanation.map(|line| (DECISION_HEADER, line)));
    let details = format!("warmroute_{reason}");
    host::reply(reply.status, &details, &headers, &reply.body);
}

/// One stream.
pub(super) struct Stream {
    context: u32,
    vm: SharedVm,
    session: Rc<RefCell<Session>>,
    /// Request body bytes that the session has been given.
    request_bytes: usize,
    /// Response body bytes that the session has been given and that are still held.
    held_response_bytes: usize,
}

impl Stream {
    pub(super) fn new(context: u32, vm: SharedVm) -> Self {
        Self {
            context,
            vm,
            session: Rc::default(),
            request_bytes: 0,
            held_response_bytes: 0,
        }
    }

    fn run(&self, input: Input<'_>) -> Action {
        let (Ok(mut vm), Ok(mut session)) =
            (self.vm.try_borrow_mut(), self.session.try_borrow_mut())
        else {
            return Action::Continue;
        };
        let Some(vm) = vm.as_mut() else {
            return Action::Continue;
        };
        let was_holding = session.is_holding();
        let flow = run(vm, &mut session, input);
        match (was_holding, session.is_holding()) {
            (false, true) if !vm.body_callbacks_seen => {
                vm.held
                    .insert(self.context, (vm.ticks, self.session.clone()));
            }
            (true, false) => {
                vm.held.remove(&self.context);
            }
            _ => {}
        }
        match flow {
            Flow::Continue => Action::Continue,
            Flow::Hold => Action::Pause,
        }
    }

    fn is_holding(&self) -> bool {
        self.session
            .try_borrow()
            .is_ok_and(|session| session.is_holding())
    }

    fn is_in_flight(&self) -> bool {
        self.session
            .try_borrow()
            .is_ok_and(|session| session.is_in_flight())
    }

    /// Whether a body callback ever came while headers were held.
    fn has_seen_bodies(&self) -> bool {
        let vm = self.vm.try_borrow();
        vm.is_ok_and(|vm| vm.as_ref().is_some_and(|vm| vm.body_callbacks_seen))
    }

    fn close(&self) {
        if self.is_holding() || self.is_in_flight() {
            self.run(Input::Closed);
        }
    }
}

fn rest(end_of_stream: bool) -> Rest {
    if end_of_stream { Rest::End } else { Rest::Open }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        self.close();
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "chaos")]
        super::chaos::panic_if_asked("headers");
        self.run(Input::RequestHeaders(rest(end_of_stream)))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if !self.is_holding() {
            return Action::Continue;
        }
        #[cfg(feature = "chaos")]
        super::chaos::panic_if_asked("body");
        if let Ok(mut vm) = self.vm.try_borrow_mut()
            && let Some(vm) = vm.as_mut()
        {
            vm.body_callbacks_seen = true;
        }
        // While the body is held, `size` counts from its beginning.
        let fresh = size.saturating_sub(self.request_bytes);
        let chunk = match fresh {
            0 => Vec::new(),
            fresh => {
                host::buffer(Buffer::RequestBody, self.request_bytes, fresh).unwrap_or_default()
            }
        };
        self.request_bytes = size;
        self.run(Input::RequestBody(&chunk, rest(end_of_stream)))
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.run(Input::RequestTrailers)
    }

    fn on_http_response_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        match self.run(Input::ResponseHeaders(rest(end_of_stream))) {
            // Without the flag, the body that these headers wait for would never come.
            Action::Pause if !self.has_seen_bodies() => self.run(Input::Watchdog),
            action => action,
        }
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if !self.is_in_flight() {
            return Action::Continue;
        }
        // While the answer is held, `size` counts from its beginning.
        let known = self.held_response_bytes;
        let chunk = match size.saturating_sub(known) {
            0 => Vec::new(),
            fresh => host::buffer(Buffer::ResponseBody, known, fresh).unwrap_or_default(),
        };
        let action = self.run(Input::ResponseBody(&chunk, rest(end_of_stream)));
        self.held_response_bytes = if action == Action::Pause { size } else { 0 };
        action
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.run(Input::ResponseTrailers)
    }

    fn on_log(&mut self) {
        self.close();
    }
}
