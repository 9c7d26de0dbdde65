//! Requests that wait because it is not known yet which endpoints there are: at an Envoy's start, until its list
//! of clusters names one.

use std::collections::BTreeMap;

use super::SharedSession;
use crate::session::Rest;

/// With so many ticks a worker lets nobody wait any more: two seconds, of which the first list usually takes one
/// tenth or two.
pub(super) const PATIENCE_TICKS: u64 = 20;
/// Most requests that wait in one worker. Each may keep a body in the host's memory.
const MOST: usize = 1_024;

/// How much of a request's body the host holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    /// No callback has come for it.
    Unseen,
    /// More is to come. Nothing may be let go from outside of its callbacks now (before version 1.37.6 Envoy loses
    /// the piece that follows, issue 46841), and the next one comes soon enough.
    Partly,
    Whole,
}

/// Those that wait, by context.
#[derive(Default)]
pub(super) struct Waiting {
    streams: BTreeMap<u32, (Body, SharedSession)>,
    /// There are news that not all have been told.
    news: bool,
}

impl Waiting {
    /// A request is to wait from now on. Says whether there is room.
    pub(super) fn came(&mut self, context: u32, session: &SharedSession) -> bool {
        let room = self.streams.len() < MOST;
        if room {
            self.streams
                .insert(context, (Body::Unseen, session.clone()));
        }
        room
    }

    /// A piece of the body of a request that waits has come.
    pub(super) fn body_came(&mut self, context: u32, rest: Rest) {
        if let Some((body, _)) = self.streams.get_mut(&context) {
            *body = match rest {
                Rest::Open => Body::Partly,
                Rest::End => Body::Whole,
            };
        }
    }

    /// A request waits no more.
    pub(super) fn left(&mut self, context: u32) {
        self.streams.remove(&context);
    }

    /// Endpoints came, or it has been long enough.
    pub(super) fn news_came(&mut self) {
        self.news = true;
    }

    /// Whom to tell the news, now; the others once more is heard of them.
    pub(super) fn take_news(&mut self) -> Vec<(u32, SharedSession)> {
        if !std::mem::take(&mut self.news) {
            return Vec::new();
        }
        let streams = self.streams.iter();
        let tellable = streams.filter(|(_, (body, _))| *body != Body::Partly);
        tellable
            .map(|(context, (_, session))| (*context, session.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn told(waiting: &mut Waiting) -> Vec<u32> {
        let told = waiting.take_news().into_iter();
        told.map(|(context, _)| context).collect()
    }

    #[test]
    fn there_is_room_for_so_many_and_again_when_some_have_left() {
        let mut waiting = Waiting::default();
        let session = Rc::default();
        for context in 0..1_024 {
            assert!(waiting.came(context, &session));
        }
        assert!(!waiting.came(5_000, &session));
        waiting.left(7);
        assert!(waiting.came(5_000, &session));
    }

    #[test]
    fn news_are_told_once_and_not_amid_a_body() {
        let mut waiting = Waiting::default();
        let session = Rc::default();
        for context in 1..=4 {
            waiting.came(context, &session);
        }
        waiting.body_came(2, Rest::Open);
        waiting.body_came(3, Rest::Open);
        waiting.body_came(3, Rest::End);
        waiting.body_came(9, Rest::End);
        assert_eq!(told(&mut waiting), [0; 0]);
        waiting.news_came();
        assert_eq!(told(&mut waiting), [1, 3, 4]);
        assert_eq!(told(&mut waiting), [0; 0]);
        waiting.left(4);
        waiting.body_came(2, Rest::End);
        waiting.news_came();
        assert_eq!(told(&mut waiting), [1, 2, 3]);
    }
}
