//! The list of all models that some endpoint serves, in the form of an engine's own.

use super::Catalogue;
use crate::endpoint::Endpoint;
use crate::scrape::models::Card;
use crate::state::Store;
use crate::state::models::{self, Listing, hash};

/// Most cards of the merged list; further ones are left out.
const MAX_MERGED: usize = 4_096;

impl Catalogue {
    /// The merged list of `members`: each model once, base models first, each group by name. `None` if no
    /// list is known. An endpoint's list stays in it while the endpoint does not answer.
    pub fn merged<S: Store + ?Sized>(&mut self, store: &S, members: &[&Endpoint]) -> Option<&str> {
        let group = self.config.as_ref()?.group;
        let listed = self.listed(members);
        if listed.is_empty() {
            return None;
        }
        let mut source = Vec::with_capacity(listed.len().saturating_mul(16));
        for (endpoint, stamp) in &listed {
            source.extend_from_slice(&endpoint.id().0.to_le_bytes());
            source.extend_from_slice(&stamp.to_le_bytes());
        }
        let source = hash(&source);
        if self.merged.0 != source {
            self.merged = (source, merge(store, group, &listed));
        }
        Some(&self.merged.1)
    }

    /// The card of one model, from the first of `members` that lists it.
    pub fn card<S: Store + ?Sized>(
        &self,
        store: &S,
        members: &[&Endpoint],
        model: &str,
    ) -> Option<Card> {
        let group = self.config.as_ref()?.group;
        let name = hash(model.as_bytes());
        let mut listing = members.iter().filter(|endpoint| {
            let known = self.known(endpoint.id());
            known.is_some_and(|known| known.names.binary_search(&name).is_ok())
                && endpoint.serves(Some(model))
        });
        listing.find_map(|endpoint| {
            let cards = models::cards(store, group, endpoint.id()).1;
            cards.into_iter().find(|card| card.id == model)
        })
    }

    fn listed<'a>(&self, members: &[&'a Endpoint]) -> Vec<(&'a Endpoint, u64)> {
        let stamp = |endpoint: &&'a Endpoint| match self.known(endpoint.id())?.listing {
            Listing::Listed(stamp) => Some((*endpoint, stamp)),
            Listing::Unheard | Listing::Unlisted => None,
        };
        members.iter().filter_map(stamp).collect()
    }
}

#[inline(never)]
fn merge<S: Store + ?Sized>(store: &S, group: u64, listed: &[(&Endpoint, u64)]) -> String {
    let mut cards: Vec<Card> = Vec::new();
    for (endpoint, _) in listed {
        for card in models::cards(store, group, endpoint.id()).1 {
            let find = |adapter: bool| {
                cards.binary_search_by(|other| {
                    let group = other.parent.is_some().cmp(&adapter);
                    group.then_with(|| other.id.cmp(&card.id))
                })
            };
            let adapter = card.parent.is_some();
            if let (Err(at), Err(_)) = (find(adapter), find(!adapter))
                && cards.len() < MAX_MERGED
                && endpoint.serves(Some(&card.id))
            {
                cards.insert(at, card);
            }
        }
    }
    let mut text = String::from(r#"{"object":"list","data":["#);
    for (at, card) in cards.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&card.json);
    }
    text.push_str("]}");
    text
}
