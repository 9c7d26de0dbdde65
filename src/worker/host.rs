//! What a worker asks of the proxy that it runs in.

use crate::metrics::Meter;
use crate::state::Store;

/// Which headers to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Headers {
    /// Of the request.
    Request,
    /// Of the response.
    Response,
    /// Of the answer to a callout.
    Callout,
}

/// Which bytes to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// The request's body, as far as it is held.
    RequestBody,
    /// The response's body, as far as it is held.
    ResponseBody,
    /// The body of the answer to a callout.
    CalloutBody,
    /// What the operator has configured.
    PluginConfiguration,
}

/// The proxy: its shared data, its metrics, and the calls below. Each of them costs more than most of what a
/// worker does by itself.
///
/// What is about a stream or a callout is about the one whose callback is running, or the stream that
/// [`Host::set_effective_context`] has named since.
pub trait Host: Store + Meter + Clone {
    /// Wall clock, in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Writes a line into the proxy's log, as an error.
    fn error(&self, line: &str);
    /// Writes a line into the proxy's log.
    fn info(&self, line: &str);
    /// Part of a buffer; `None` if there is none now.
    fn buffer(&self, kind: Buffer, start: usize, length: usize) -> Option<Vec<u8>>;
    /// First value of a header. An absent and an empty one look alike.
    fn header(&self, map: Headers, name: &str) -> Option<Vec<u8>>;
    /// Makes `value` the only value of a header. Says whether the proxy did.
    fn set_header(&self, map: Headers, name: &str, value: &str) -> bool;
    /// Removes every value of a header.
    fn remove_header(&self, map: Headers, name: &str);
    /// A property of the stream; NUL bytes stand between the parts of `path`.
    fn property(&self, path: &str) -> Option<Vec<u8>>;
    /// Sets a property, which Envoy keeps as filter state `wasm.PATH`.
    fn set_property(&self, path: &str, value: &str);
    /// Sets a filter state object by the name of its factory, for this request. Says whether the proxy did.
    fn set_filter_state(&self, path: &str, value: &str) -> bool;
    /// Answers the request. `details` is what access logs show as `%RESPONSE_CODE_DETAILS%`.
    fn reply(&self, status: u16, details: &str, headers: &[(&str, &str)], body: &str);
    /// Lets a held request go.
    fn resume_request(&self);
    /// Makes further calls concern another stream. Says whether the proxy knows it.
    fn set_effective_context(&self, context: u32) -> bool;
    /// Sends a request through a cluster of the proxy's. The answer will come with this token.
    ///
    /// # Errors
    /// Why it was not sent.
    fn ask(
        &self,
        cluster: &str,
        headers: Vec<(&str, &str)>,
        timeout_ms: u64,
    ) -> Result<u32, String>;

    /// Part of a buffer, or nothing. The proxy is not asked for nothing.
    fn read(&self, kind: Buffer, start: usize, length: usize) -> Vec<u8> {
        match length {
            0 => Vec::new(),
            length => self.buffer(kind, start, length).unwrap_or_default(),
        }
    }
}
