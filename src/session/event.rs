//! What goes into a [`Session`](super::Session) and what comes out of it.

use crate::endpoint::EndpointId;
use crate::policy::Reason;
use crate::reply::{Reply, ReplyKind};
use crate::request::{InferenceRequest, Scan};
use crate::steer::Steer;
use crate::tokens::Usage;

/// What a session may ask about its stream while it handles an input. Each call may cost a call to
/// the host, so sessions ask only for what they need.
pub trait StreamView {
    /// Wall clock, in microseconds.
    fn now_us(&self) -> u64;
    /// First value of a request header; only until the request has been let go.
    fn request_header(&self, name: &str) -> Option<Vec<u8>>;
    /// Status of the response, from its headers on.
    fn response_status(&self) -> Option<u16>;
    /// First value of a response header, while the headers pass.
    fn response_header(&self, name: &str) -> Option<Vec<u8>>;
    /// `IP:port` of the endpoint that Envoy used last, after retries.
    fn upstream_address(&self) -> Option<Vec<u8>>;
    /// How often Envoy tried.
    fn attempts(&self) -> Option<u64>;
    /// Envoy's own words on how the response came about.
    fn response_details(&self) -> Option<Vec<u8>>;
}

/// What a request does where it is not known yet which endpoints there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It waits for them.
    Waits,
    /// It is answered in their place.
    Over,
}

/// Whether more of a message follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// More may come.
    Open,
    /// That was the end.
    End,
}

/// One thing that happened on a stream.
pub enum Input<'a> {
    /// Request headers.
    RequestHeaders(Rest),
    /// In place of headers and body: a request that somebody has read already, as the simulator
    /// has it.
    Request(&'a InferenceRequest),
    /// Bytes of the request body that were not given before.
    RequestBody(&'a [u8], Rest),
    /// Request trailers: the body is over.
    RequestTrailers,
    /// The request was held and no body callback came.
    Watchdog,
    /// There may be news for a request that waits for endpoints.
    Endpoints(Patience),
    /// Response headers, of the engine or of Envoy itself.
    ResponseHeaders(Rest),
    /// Bytes of the response body.
    ResponseBody(&'a [u8], Rest),
    /// Response trailers: the body is over.
    ResponseTrailers,
    /// The stream is gone, for whatever reason.
    Closed,
}

/// What Envoy shall do with the message part that was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Let it pass.
    #[default]
    Continue,
    /// Keep it back.
    Hold,
}

/// What is to be done, in this order (a reply last); then Envoy is answered with `flow`.
#[derive(Debug, Default)]
pub struct Effects {
    /// Pass or hold.
    pub flow: Flow,
    /// Request headers to remove.
    pub remove_request_headers: &'static [&'static str],
    /// Where the request goes.
    pub steer: Option<Steer>,
    /// How often Envoy may retry at most; as its route says, if absent.
    pub max_retries: Option<usize>,
    /// Response header to set: the explanation.
    pub response_header: Option<String>,
    /// Access-log field to set: the decision's account, from which it can be taken again.
    pub log_field: Option<String>,
    /// What Envoy shall retry besides what its route says.
    pub retry_on: Option<&'static str>,
    /// The answer, given in the endpoints' place. Then nothing else happens to the request.
    pub reply: Option<Reply>,
    /// What is to be counted.
    pub events: Vec<Event>,
}

impl Effects {
    /// Nothing but letting the part pass.
    pub fn pass() -> Self {
        Self::default()
    }

    /// Nothing but keeping the part back.
    pub fn hold() -> Self {
        Self {
            flow: Flow::Hold,
            ..Self::default()
        }
    }
}

/// Something to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// How the scan of an inference body came out.
    Parsed(Scan),
    /// A pick.
    Picked {
        /// Name of the policy.
        policy: &'static str,
        /// Where.
        endpoint: EndpointId,
        /// Why.
        reason: Reason,
    },
    /// Envoy tried more than once, along a ranked list.
    Retried {
        /// The endpoint that served in the end.
        endpoint: EndpointId,
        /// Tries after the first.
        retries: u64,
    },
    /// A request was answered in the endpoints' place.
    Replied(ReplyKind),
    /// A request was released by the watchdog.
    WatchdogFired,
    /// The endpoint failed a request.
    Failed {
        /// Which.
        endpoint: EndpointId,
        /// How.
        failure: Failure,
    },
    /// A request was answered.
    Answered(Answer),
}

/// How an endpoint failed a request. Client errors (4xx) never count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or it broke before the response, or no response within the route's timeout.
    Unreachable,
    /// A 5xx other than an overload answer.
    ServerError,
    /// 429 or 503, also inside a 200: too busy.
    Overloaded,
    /// The response broke off.
    BrokenStream,
    /// The engine reported an error inside a 200.
    StreamError,
    /// Envoy gave it up and went to another endpoint; it does not tell why.
    Replaced,
}

/// Figures of one answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who served it.
    pub endpoint: EndpointId,
    /// From letting the request go to the first body chunk, of a good streamed answer.
    pub ttft_us: Option<u64>,
    /// From letting the request go to the end, of a good answer.
    pub e2e_us: Option<u64>,
    /// Time per output token after the first, of a good streamed answer.
    pub tpot_us: Option<u64>,
    /// What the engine reported.
    pub usage: Option<Usage>,
}
