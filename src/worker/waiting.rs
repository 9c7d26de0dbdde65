//! Requests that wait because it is not known yet which endpoints there are: at an Envoy's start, until its list
//! of clusters is read for the first time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::session::Session;

/// So many ticks after its start a worker lets nobody wait any more: two seconds, of which the first list
/// usually takes one tenth or two.
pub(super) const PATIENCE_TICKS: u64 = 20;
/// Most requests that wait in one worker. Each may keep a body in the host's memory.
const MOST: usize = 1_024;

/// Those that wait, by context.
#[derive(Default)]
pub(super) struct Waiting {
    sessions: BTreeMap<u32, Rc<RefCell<Session>>>,
}

impl Waiting {
    /// A request is to wait from now on. Says whether there is room.
    pub(super) fn came(&mut self, context: u32, session: &Rc<RefCell<Session>>) -> bool {
        let room = self.sessions.len() < MOST;
        if room {
            self.sessions.insert(context, session.clone());
        }
        room
    }

    /// A request waits no more.
    pub(super) fn left(&mut self, context: u32) {
        self.sessions.remove(&context);
    }

    /// All that wait, who are to go.
    pub(super) fn take(&mut self) -> BTreeMap<u32, Rc<RefCell<Session>>> {
        std::mem::take(&mut self.sessions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(waiting.take().len(), MOST);
        assert!(waiting.take().is_empty());
    }
}
