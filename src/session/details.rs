//! What Envoy's own words on a response (`RESPONSE_CODE_DETAILS`) say of who is to blame.

use super::StreamView;

/// The words on an answer that is the endpoint's, and not Envoy's own.
pub(super) const VIA_UPSTREAM: &[u8] = b"via_upstream";

/// Whether the answer is the endpoint's, and not Envoy's own.
pub(super) fn is_from_endpoint(view: &dyn StreamView) -> bool {
    view.response_details()
        .is_some_and(|details| details == VIA_UPSTREAM)
}

/// Whether Envoy's words say that the endpoint broke off, or let a timeout of the route pass. A
/// request that Envoy's own limits kept back (`overflow`) never came to the endpoint.
pub(super) fn blames_endpoint(details: &[u8]) -> bool {
    let timed_out = details == b"response_timeout" || details.starts_with(b"upstream_per_try");
    let reset = details.starts_with(b"upstream_reset") && !details.ends_with(b"{overflow}");
    timed_out || reset
}

/// Whether Envoy's words say that nobody listens at the endpoint: no timeout, and no limit of Envoy's.
pub(super) fn is_refusal(details: &[u8]) -> bool {
    const REFUSED: &[u8] = b"_error:_Connection_refused";
    details.starts_with(b"upstream_reset_before_response_started{")
        && details.windows(REFUSED.len()).any(|part| part == REFUSED)
}
