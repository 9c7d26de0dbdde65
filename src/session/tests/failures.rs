//! Which failures are an endpoint's.

use super::*;

#[test]
fn f8_f9_an_error_inside_a_200_is_a_failure_and_teaches_no_times() {
    for (code, failure) in [("503", Failure::Overloaded), ("500", Failure::StreamError)] {
        let mut bench = Bench::two("");
        let view = chat();
        let (mut session, _) = departed(&mut bench, &view);
        view.status.set(Some(200));
        bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
        let body = format!(
            "data: {{\"error\":{{\"message\":\"m\",\"code\":{code}}}}}\n\ndata: [DONE]\n\n"
        );
        let effects = bench.handle(
            &mut session,
            &view,
            Input::ResponseBody(body.as_bytes(), Rest::End),
        );
        let [Event::Failed { failure: seen, .. }, Event::Answered(answer)] = effects.events[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!(seen, failure);
        assert_eq!(
            (answer.ttft_us, answer.e2e_us, answer.tpot_us),
            (None, None, None)
        );
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn statuses_are_blamed_on_whom_they_belong_to() {
    for (status, details, expected) in [
        (200, "via_upstream", None),
        (400, "via_upstream", None),
        (404, "via_upstream", None),
        (413, "request_payload_too_large", None),
        (429, "via_upstream", Some(Failure::Overloaded)),
        (500, "via_upstream", Some(Failure::ServerError)),
        (503, "via_upstream", Some(Failure::Overloaded)),
        (
            503,
            "upstream_reset_before_response_started{connection_failure}",
            Some(Failure::Unreachable),
        ),
        (503, "no_healthy_upstream", None),
        (504, "response_timeout", Some(Failure::Unreachable)),
        (504, "upstream_per_try_timeout", Some(Failure::Unreachable)),
        (
            503,
            "upstream_reset_before_response_started{overflow}",
            None,
        ),
    ] {
        let mut bench = Bench::two("");
        let view = chat();
        let (mut session, _) = departed(&mut bench, &view);
        view.status.set(Some(status));
        *view.details.borrow_mut() = Some(details.into());
        let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::End));
        let seen = effects.events.iter().find_map(|event| match event {
            Event::Failed { failure, .. } => Some(*failure),
            _ => None,
        });
        assert_eq!(seen, expected, "{status} {details}");
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn f6_a_stream_that_breaks_off_is_the_endpoints_failure_and_one_that_is_left_is_not() {
    for (details, broken) in [
        ("upstream_reset_after_response_started{remote_reset}", true),
        ("downstream_remote_disconnect", false),
    ] {
        let mut bench = Bench::two("");
        let view = chat();
        let (mut session, _) = departed(&mut bench, &view);
        view.status.set(Some(200));
        bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
        bench.handle(
            &mut session,
            &view,
            Input::ResponseBody(b"data: {}\n\n", Rest::Open),
        );
        *view.details.borrow_mut() = Some(details.into());
        let effects = bench.handle(&mut session, &view, Input::Closed);
        let failed = effects.events.iter().any(|event| {
            matches!(
                event,
                Event::Failed {
                    failure: Failure::BrokenStream,
                    ..
                }
            )
        });
        assert_eq!(failed, broken, "{details}");
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn a_429_of_envoys_own_is_nobodys_failure() {
    let mut bench = Bench::two("");
    let view = chat();
    let (mut session, _) = departed(&mut bench, &view);
    view.status.set(Some(429));
    *view.details.borrow_mut() = Some("request_rate_limited".into());
    let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::End));
    let failed = effects
        .events
        .iter()
        .any(|event| matches!(event, Event::Failed { .. }));
    assert!(!failed, "{effects:?}");
}
