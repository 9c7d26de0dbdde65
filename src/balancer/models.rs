//! What engines say they serve, and the one list that the gateway makes of it.

use super::{Balancer, Refusal};
use crate::endpoint::{Endpoint, EndpointId};
use crate::reply::{Reply, ReplyKind};
use crate::state::Store;
use crate::state::models::Adapters;

/// Where the gateway's own list of models is.
const LIST_PATH: &[u8] = b"/v1/models";

impl Balancer {
    /// Takes an engine's answer to the question for its models, for all workers: 0 if none came.
    #[inline(never)]
    pub fn models_answered<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        status: u16,
        answer: &[u8],
    ) {
        self.catalogue
            .answered(store, now_ms, endpoint, status, answer);
    }

    /// Takes the adapters that have requests at an engine, for all workers.
    pub fn adapters_reported<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        adapters: &Adapters,
    ) {
        self.catalogue.scraped(store, now_ms, endpoint, adapters);
    }

    /// The gateway's own answer to a `GET` of `path`, the list of all models or the card of one; `None` if
    /// it has none.
    #[inline(never)]
    pub fn models_reply<S: Store + ?Sized>(&mut self, store: &S, path: &[u8]) -> Option<Reply> {
        self.config.models.as_ref()?;
        let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
        let path = path.get(..end.unwrap_or(path.len()))?;
        let rest = path.strip_prefix(LIST_PATH)?;
        let pools = self.pools.iter();
        let members = pools.flat_map(|pool| pool.config.pool.endpoints());
        let members: Vec<&Endpoint> = members.collect();
        let body = if rest.is_empty() {
            self.catalogue.merged(store, &members)?.to_owned()
        } else {
            let name = percent_decoded(rest.strip_prefix(b"/")?)?;
            match self.catalogue.card(store, &members, &name) {
                Some(card) => card.json,
                None if self.is_complete() && self.catalogue.is_unknown(&members, &name) => {
                    return Some(Reply::refusal(Refusal::UnknownModel, None, Some(&name)));
                }
                None => return None,
            }
        };
        Some(Reply {
            kind: ReplyKind::Models,
            status: 200,
            retry_after_s: None,
            body,
        })
    }
}

/// A part of a path as text; `None` if it is none, or empty.
#[inline(never)]
fn percent_decoded(part: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.iter();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(*rest.next()?).to_digit(16);
        let byte = match byte {
            b'%' => u8::try_from(digit()? * 16 + digit()?).ok()?,
            byte => *byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}
