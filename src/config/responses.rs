//! `responses`: what happens to answers on their way to the client.

use super::values::{Toggle, toggle};

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    #[serde(default)]
    hold_headers: bool,
}

/// What happens to answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responses {
    /// The headers of a streamed answer wait for its first event, so that an engine's refusal inside a
    /// 200 becomes a status.
    pub hold_headers: Toggle,
}

pub(super) fn responses_of(raw: Raw) -> Responses {
    Responses {
        hold_headers: toggle(raw.hold_headers),
    }
}
