//! The stream as its session may look at it: in which header or property of Envoy's each thing is.

use super::host::{Headers, Host};
use crate::session::StreamView;

/// The stream whose callback is running.
pub(super) struct View<'a, H>(pub(super) &'a H);

impl<H: Host> StreamView for View<'_, H> {
    fn now_us(&self) -> u64 {
        self.0.now_ns() / 1_000
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        self.0.header(Headers::Request, name)
    }

    fn response_status(&self) -> Option<u16> {
        // The property is not there yet while a response without a body passes, the header is not
        // there any more once it has passed.
        if let Some(header) = self.0.header(Headers::Response, ":status") {
            return status(&header);
        }
        u16::try_from(number(self.0.property("response\0code")?)?).ok()
    }

    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        self.0.header(Headers::Response, name)
    }

    fn upstream_address(&self) -> Option<Vec<u8>> {
        self.0.property("upstream\0address")
    }

    fn attempts(&self) -> Option<u64> {
        number(self.0.property("upstream\0request_attempt_count")?)
    }

    fn response_details(&self) -> Option<Vec<u8>> {
        self.0.property("response\0code_details")
    }
}

/// A status as the header `:status` has it.
pub(super) fn status(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A whole number as properties have it.
fn number(bytes: Vec<u8>) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::Fake;

    #[test]
    fn the_status_is_in_the_header_and_else_in_the_property() {
        let fake = Fake::default();
        let view = View(&fake);
        assert_eq!(view.response_status(), None);
        fake.property_is("response\0code", &404_u64.to_le_bytes());
        assert_eq!(view.response_status(), Some(404));
        fake.header_is(Headers::Response, ":status", "200");
        assert_eq!(view.response_status(), Some(200));
        for odd in ["OK", "2000000", "-1", "\u{b2}00"] {
            fake.header_is(Headers::Response, ":status", odd);
            assert_eq!(view.response_status(), None, "{odd}");
        }
    }

    #[test]
    fn a_number_has_eight_bytes_and_a_status_fits() {
        let fake = Fake::default();
        let view = View(&fake);
        fake.property_is("response\0code", &65_736_u64.to_le_bytes());
        assert_eq!(view.response_status(), None);
        fake.property_is("upstream\0request_attempt_count", &[3, 0, 0, 0]);
        assert_eq!(view.attempts(), None);
        fake.property_is("upstream\0request_attempt_count", &3_u64.to_le_bytes());
        assert_eq!(view.attempts(), Some(3));
    }

    #[test]
    fn everything_else_is_handed_on_as_it_is() {
        let fake = Fake::default();
        fake.now_ns.set(1_999);
        fake.header_is(Headers::Request, "accept", "a");
        fake.header_is(Headers::Response, "accept", "b");
        fake.property_is("upstream\0address", b"10.0.0.1:80");
        fake.property_is("response\0code_details", b"via_upstream");
        let view = View(&fake);
        assert_eq!(view.now_us(), 1);
        assert_eq!(view.request_header("accept"), Some(b"a".to_vec()));
        assert_eq!(view.response_header("accept"), Some(b"b".to_vec()));
        assert_eq!(view.upstream_address(), Some(b"10.0.0.1:80".to_vec()));
        assert_eq!(view.response_details(), Some(b"via_upstream".to_vec()));
    }
}
