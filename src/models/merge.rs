//! The list of all models that some endpoint serves, in the form of an engine's own.

use std::collections::BTreeMap;
use std::rc::Rc;

use xxhash_rust::xxh64::Xxh64;

use super::Catalogue;
use crate::endpoint::Endpoint;
use crate::scrape::models::Card;
use crate::state::Store;
use crate::state::models::{self, Listing, name_hash};

/// Most cards of the merged list; further ones are left out.
const MAX_MERGED: usize = 4_096;

impl Catalogue {
    /// The merged list of `members`: each model once, base models first, each group by name. `None` if no
    /// list is known. An endpoint's list stays in it while the endpoint does not answer.
    pub fn merged<S: Store + ?Sized>(
        &mut self,
        store: &S,
        members: &[&Endpoint],
    ) -> Option<Rc<str>> {
        let group = self.config.as_ref()?.group;
        let listed = self.listed(members);
        if listed.is_empty() {
            return None;
        }
        let mut source = Xxh64::new(0);
        for (endpoint, stamp) in &listed {
            source.update(&endpoint.id().0.to_le_bytes());
            source.update(&stamp.to_le_bytes());
            for model in &endpoint.models {
                source.update(model.as_bytes());
                source.update(&[0]);
            }
        }
        let source = source.digest();
        if let Some((made_from, merged)) = &self.merged
            && *made_from == source
        {
            return Some(merged.clone());
        }
        let mut cards: BTreeMap<(bool, String), String> = BTreeMap::new();
        for (endpoint, _) in listed {
            for card in models::cards(store, group, endpoint.id()).1 {
                if endpoint.serves(Some(&card.id)) && cards.len() < MAX_MERGED {
                    let place = (card.parent.is_some(), card.id);
                    cards.entry(place).or_insert(card.json);
                }
            }
        }
        let mut text = String::from(r#"{"object":"list","data":["#);
        for (at, card) in cards.values().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(card);
        }
        text.push_str("]}");
        let merged: Rc<str> = text.into();
        self.merged = Some((source, merged.clone()));
        Some(merged)
    }

    /// The card of one model, from the first of `members` that lists it.
    pub fn card<S: Store + ?Sized>(
        &self,
        store: &S,
        members: &[&Endpoint],
        model: &str,
    ) -> Option<Card> {
        let group = self.config.as_ref()?.group;
        let hash = name_hash(model);
        let mut listing = members.iter().filter(|endpoint| {
            let known = self.known.get(&endpoint.id());
            known.is_some_and(|known| known.names.binary_search(&hash).is_ok())
                && endpoint.serves(Some(model))
        });
        listing.find_map(|endpoint| {
            let cards = models::cards(store, group, endpoint.id()).1;
            cards.into_iter().find(|card| card.id == model)
        })
    }

    fn listed<'a>(&self, members: &[&'a Endpoint]) -> Vec<(&'a Endpoint, u64)> {
        let stamp = |endpoint: &&'a Endpoint| match self.known.get(&endpoint.id())?.listing {
            Listing::Listed(stamp) => Some((*endpoint, stamp)),
            Listing::Unheard | Listing::Unlisted => None,
        };
        members.iter().filter_map(stamp).collect()
    }
}
