//! How a Decision is told to Envoy, and what a client could abuse to tell it instead.

use crate::balancer::Overload;
use crate::config::SteeringMode;

/// Header that an `ORIGINAL_DST` cluster with `use_http_header` obeys.
pub const ORIGINAL_DST_HEADER: &str = "x-envoy-original-dst-host";
/// Header that the shipped `override_host` clusters obey.
pub const OVERRIDE_HOST_HEADER: &str = "x-gateway-destination-endpoint";
/// Header that the second cluster of the shipped composite cluster obeys.
pub const NEXT_DST_HEADER: &str = "x-warmroute-next-dst";
/// Request header by which Envoy's router retries no oftener; it does not reach the endpoint.
pub const MAX_RETRIES_HEADER: &str = "x-envoy-max-retries";
/// Request header by which Envoy's router retries in more cases; it does not reach the endpoint.
pub const RETRY_ON_HEADER: &str = "x-envoy-retry-on";
/// Filter state that an `ORIGINAL_DST` cluster obeys before anything else.
pub const ORIGINAL_DST_FILTER_STATE: &str = "envoy.network.transport_socket.original_dst_address";

/// What is to be done so that the request goes where it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steer {
    /// Replace every copy of this request header.
    Header {
        /// Its name.
        name: &'static str,
        /// Its only value.
        value: String,
    },
    /// Replace every copy of [`ORIGINAL_DST_HEADER`] and of [`NEXT_DST_HEADER`].
    Headers {
        /// The only value of the first.
        first: String,
        /// The only value of the second; without one, no copy of it may stay.
        next: Option<String>,
    },
    /// Set [`ORIGINAL_DST_FILTER_STATE`].
    FilterState {
        /// `IP:port`
        value: String,
    },
}

/// The instruction for a ranked list of endpoint names (`IP:port`).
pub fn instruction(mode: SteeringMode, ranked: &[&str]) -> Option<Steer> {
    let first = (*ranked.first()?).to_owned();
    Some(match mode {
        SteeringMode::OriginalDst => Steer::Header {
            name: ORIGINAL_DST_HEADER,
            value: first,
        },
        SteeringMode::FilterState => Steer::FilterState { value: first },
        SteeringMode::OverrideHost => Steer::Header {
            name: OVERRIDE_HOST_HEADER,
            value: ranked.join(","),
        },
        SteeringMode::Composite => Steer::Headers {
            first,
            next: ranked.get(1).map(|next| (*next).to_owned()),
        },
    })
}

/// How often Envoy may retry, if less often than usual: no endpoint is tried that was not ranked, and where
/// one alone is left, as when all others are overloaded, none is tried again.
pub fn max_retries(mode: SteeringMode, ranked: usize) -> Option<usize> {
    let others = ranked.saturating_sub(1);
    (others < mode.retries()).then_some(others)
}

/// What Envoy may retry besides what its route says: the statuses that the shipped routes list (429 and 503),
/// unless only endpoints are left that are to be spared. Overload is not retried into more overload; a
/// connection that fails is tried again all the same.
pub fn retry_on(mode: SteeringMode, overload: Overload) -> Option<&'static str> {
    (mode.retries() > 0 && overload == Overload::Elsewhere).then_some("retriable-status-codes")
}

/// Request headers whose client-supplied copies must not survive where nothing replaces them. With
/// filter state no header steers, unless the cluster is set up to obey one all the same.
pub fn forbidden_headers(mode: SteeringMode) -> &'static [&'static str] {
    match mode {
        SteeringMode::OriginalDst | SteeringMode::FilterState => &[ORIGINAL_DST_HEADER],
        SteeringMode::OverrideHost => &[OVERRIDE_HOST_HEADER],
        SteeringMode::Composite => &[ORIGINAL_DST_HEADER, NEXT_DST_HEADER],
    }
}

/// The argument of the foreign function that sets filter state for this request: Envoy's protobuf
/// `SetEnvoyFilterStateArguments { path = 1, value = 2, span = 3 }`. `None` for strings of 128 bytes
/// and more, whose length would not fit into one byte.
pub fn filter_state_argument(path: &str, value: &str) -> Option<Vec<u8>> {
    const DOWNSTREAM_REQUEST: u8 = 1;
    let length = |text: &str| u8::try_from(text.len()).ok().filter(|length| *length < 128);
    let mut argument = vec![0x0a, length(path)?];
    argument.extend_from_slice(path.as_bytes());
    argument.extend_from_slice(&[0x12, length(value)?]);
    argument.extend_from_slice(value.as_bytes());
    argument.extend_from_slice(&[0x18, DOWNSTREAM_REQUEST]);
    Some(argument)
}

/// Headers as the proxy-wasm ABI has them: how many, the lengths of all names and values, and then these, each
/// with a zero byte behind.
pub fn header_map(headers: &[(&str, &str)]) -> Vec<u8> {
    let length = |text: &str| u32::try_from(text.len()).unwrap_or(0).to_le_bytes();
    let mut map = Vec::with_capacity(256);
    map.extend_from_slice(&u32::try_from(headers.len()).unwrap_or(0).to_le_bytes());
    for (name, value) in headers {
        map.extend_from_slice(&length(name));
        map.extend_from_slice(&length(value));
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        map.extend_from_slice(text.as_bytes());
        map.push(0);
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_counted_measured_and_ended_by_zeros() {
        let map = header_map(&[("a", "bc"), ("d", "")]);
        let lengths = b"\x02\0\0\0\x01\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0";
        assert_eq!(map, [lengths.as_slice(), b"a\0bc\0d\0\0"].concat());
        assert_eq!(header_map(&[]), [0, 0, 0, 0]);
    }

    #[test]
    fn the_argument_is_protobuf() {
        let argument = filter_state_argument("a.b", "1.2.3.4:5").unwrap();
        assert_eq!(argument, b"\x0a\x03a.b\x12\x091.2.3.4:5\x18\x01");
        assert_eq!(filter_state_argument("a", &"x".repeat(128)), None);
    }

    #[test]
    fn each_mode_names_members_in_its_own_way() {
        let ranked = ["10.0.0.1:80", "[::1]:80"];
        let header = |name, value: &str| {
            Some(Steer::Header {
                name,
                value: value.into(),
            })
        };
        assert_eq!(
            instruction(SteeringMode::OriginalDst, &ranked),
            header(ORIGINAL_DST_HEADER, "10.0.0.1:80")
        );
        assert_eq!(
            instruction(SteeringMode::OverrideHost, &ranked),
            header(OVERRIDE_HOST_HEADER, "10.0.0.1:80,[::1]:80")
        );
        assert_eq!(
            instruction(SteeringMode::FilterState, &ranked),
            Some(Steer::FilterState {
                value: "10.0.0.1:80".into()
            })
        );
        let both = |next: Option<&str>| {
            Some(Steer::Headers {
                first: "10.0.0.1:80".into(),
                next: next.map(str::to_owned),
            })
        };
        assert_eq!(
            instruction(SteeringMode::Composite, &ranked),
            both(Some("[::1]:80"))
        );
        assert_eq!(
            instruction(SteeringMode::Composite, &ranked[..1]),
            both(None)
        );
        assert_eq!(instruction(SteeringMode::OriginalDst, &[]), None);
    }

    #[test]
    fn no_more_retries_than_ranked_endpoints() {
        for (ranked, expected) in [(1, Some(0)), (2, Some(1)), (3, None)] {
            assert_eq!(max_retries(SteeringMode::OverrideHost, ranked), expected);
        }
        assert_eq!(max_retries(SteeringMode::Composite, 1), Some(0));
        assert_eq!(max_retries(SteeringMode::Composite, 3), None);
        assert_eq!(max_retries(SteeringMode::OriginalDst, 1), None);
    }
}
