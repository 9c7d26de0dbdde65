//! What a session wants done, as calls to the host.

use super::host::{Headers, Host};
use crate::reply::{REASON_HEADER, Reply};
use crate::session::Effects;
use crate::steer::{
    MAX_RETRIES_HEADER, NEXT_DST_HEADER, ORIGINAL_DST_FILTER_STATE, ORIGINAL_DST_HEADER,
    OVERRIDE_HOST_HEADER, RETRY_ON_HEADER, Steer,
};

/// Response header that explains the Decision.
const DECISION_HEADER: &str = "x-warmroute-decision";
/// Property under which the access log finds the explanation, as filter state `wasm.warmroute`.
const DECISION_PROPERTY: &str = "warmroute";

/// What became of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The host took it, or there was none.
    Taken,
    /// The host refused it: the request goes without one.
    Refused,
}

/// Does everything that a session wants done but for the flow, in its order.
pub(super) fn apply<H: Host>(host: &H, effects: &Effects) -> Destination {
    for name in effects.remove_request_headers {
        host.remove_header(Headers::Request, name);
    }
    let destination = steer(host, effects.steer.as_ref());
    if let Some(cases) = effects.retry_on {
        host.set_header(Headers::Request, RETRY_ON_HEADER, cases);
    }
    if let Some(retries) = effects.max_retries {
        let retries = retries.to_string();
        host.set_header(Headers::Request, MAX_RETRIES_HEADER, &retries);
    }
    if let Some(line) = &effects.log_field {
        host.set_property(DECISION_PROPERTY, line);
    }
    match (&effects.reply, &effects.response_header) {
        (Some(reply), explanation) => send(host, reply, explanation.as_deref()),
        (None, Some(line)) => {
            host.set_header(Headers::Response, DECISION_HEADER, line);
        }
        (None, None) => {}
    }
    destination
}

fn steer<H: Host>(host: &H, steer: Option<&Steer>) -> Destination {
    let set = |name, value: &str| host.set_header(Headers::Request, name, value);
    let steered = match steer {
        Some(Steer::Header { name, value }) => set(name, value),
        Some(Steer::Headers { first, next }) => {
            let next_set = match next {
                Some(next) => set(NEXT_DST_HEADER, next),
                None => {
                    host.remove_header(Headers::Request, NEXT_DST_HEADER);
                    true
                }
            };
            set(ORIGINAL_DST_HEADER, first) && next_set
        }
        Some(Steer::FilterState { value }) => {
            host.set_filter_state(ORIGINAL_DST_FILTER_STATE, value)
        }
        None => true,
    };
    if steered {
        return Destination::Taken;
    }
    // Without a destination of ours the client's must not stand either.
    for name in [ORIGINAL_DST_HEADER, NEXT_DST_HEADER, OVERRIDE_HOST_HEADER] {
        host.remove_header(Headers::Request, name);
    }
    Destination::Refused
}

fn send<H: Host>(host: &H, reply: &Reply, explanation: Option<&str>) {
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
    host.reply(reply.status, &details, &headers, &reply.body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::ReplyKind;
    use crate::worker::tests::Fake;

    fn steered(steer: Steer) -> Effects {
        Effects {
            steer: Some(steer),
            ..Effects::pass()
        }
    }

    fn done(effects: &Effects) -> Vec<String> {
        let fake = Fake::default();
        assert_eq!(apply(&fake, effects), Destination::Taken);
        fake.done.take()
    }

    fn header() -> Effects {
        steered(Steer::Header {
            name: OVERRIDE_HOST_HEADER,
            value: "1.2.3.4:5,1.2.3.6:5".into(),
        })
    }

    fn headers(next: Option<&str>) -> Effects {
        steered(Steer::Headers {
            first: "1.2.3.4:5".into(),
            next: next.map(str::to_owned),
        })
    }

    fn filter_state() -> Effects {
        steered(Steer::FilterState {
            value: "1.2.3.4:5".into(),
        })
    }

    #[test]
    fn each_destination_is_told_in_its_own_way() {
        assert_eq!(done(&Effects::pass()), [""; 0]);
        assert_eq!(
            done(&header()),
            ["set Request x-gateway-destination-endpoint: 1.2.3.4:5,1.2.3.6:5"]
        );
        assert_eq!(
            done(&headers(Some("[::1]:80"))),
            [
                "set Request x-warmroute-next-dst: [::1]:80",
                "set Request x-envoy-original-dst-host: 1.2.3.4:5"
            ]
        );
        assert_eq!(
            done(&headers(None)),
            [
                "remove Request x-warmroute-next-dst",
                "set Request x-envoy-original-dst-host: 1.2.3.4:5"
            ],
            "no copy of the client's stays"
        );
        assert_eq!(
            done(&filter_state()),
            ["filter state envoy.network.transport_socket.original_dst_address: 1.2.3.4:5"]
        );
    }

    #[test]
    fn without_a_destination_of_ours_no_copy_of_the_clients_stands() {
        let removed = [
            "remove Request x-envoy-original-dst-host",
            "remove Request x-warmroute-next-dst",
            "remove Request x-gateway-destination-endpoint",
        ];
        for effects in [header(), headers(Some("[::1]:80")), filter_state()] {
            let fake = Fake::default();
            fake.refuses.set(true);
            assert_eq!(apply(&fake, &effects), Destination::Refused);
            let done = fake.done.take();
            assert!(done.ends_with(&removed.map(str::to_owned)), "{done:?}");
        }
    }

    #[test]
    fn what_a_client_must_not_say_goes_before_anything_is_said() {
        let effects = Effects {
            remove_request_headers: &[ORIGINAL_DST_HEADER],
            retry_on: Some("retriable-status-codes"),
            max_retries: Some(1),
            log_field: Some("{}".into()),
            response_header: Some("policy=random".into()),
            ..header()
        };
        assert_eq!(
            done(&effects),
            [
                "remove Request x-envoy-original-dst-host",
                "set Request x-gateway-destination-endpoint: 1.2.3.4:5,1.2.3.6:5",
                "set Request x-envoy-retry-on: retriable-status-codes",
                "set Request x-envoy-max-retries: 1",
                "property warmroute: {}",
                "set Response x-warmroute-decision: policy=random",
            ]
        );
    }

    #[test]
    fn a_reply_says_why_and_when_to_come_again() {
        let mut effects = Effects {
            reply: Some(Reply {
                kind: ReplyKind::Saturated,
                status: 429,
                retry_after_s: Some(2),
                body: "{}".into(),
            }),
            response_header: Some("policy=random".into()),
            ..Effects::hold()
        };
        let json = "content-type: application/json, x-warmroute-reason: saturated";
        assert_eq!(
            done(&effects),
            [format!(
                "reply 429 warmroute_saturated [{json}, retry-after: 2, \
                 x-warmroute-decision: policy=random] {{}}"
            )]
        );
        effects.response_header = None;
        effects.reply.as_mut().unwrap().retry_after_s = None;
        assert_eq!(
            done(&effects),
            [format!("reply 429 warmroute_saturated [{json}] {{}}")]
        );
    }
}
