//! Panics on demand, in test builds alone (feature `chaos`): what a panic costs in Envoy can only be
//! measured with one.

use super::host::Envoy;
use crate::worker::{Headers, Host};

/// Request header that asks for a panic, and says when.
const PANIC_HEADER: &str = "x-warmroute-test-panic";

/// Panics if the request asks for it at this `point`: `headers`, or `body` while the request is held.
#[allow(clippy::panic, reason = "the purpose of this file")]
pub(super) fn panic_if_asked(point: &str) {
    let asked = Envoy.header(Headers::Request, PANIC_HEADER);
    if asked.is_some_and(|asked| asked == point.as_bytes()) {
        panic!("asked for by a request, at its {point}");
    }
}
