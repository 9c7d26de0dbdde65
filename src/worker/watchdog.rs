//! Which requests are held although no body callback may ever come, and for how long.
//!
//! Only until the first body callback of all: it shows that the host is configured as it must be.

use std::collections::BTreeMap;

use super::{SharedSession, TICK_MS};

/// Whether body callbacks come while headers are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Bodies {
    /// None has come yet.
    #[default]
    Unseen,
    /// One has come.
    Seen,
}

/// The requests that are held back. Ticks are the clock: it costs nothing, and nobody sets it back.
#[derive(Default)]
pub(super) struct Watchdog {
    bodies: Bodies,
    /// By context, with the number of ticks before.
    held: BTreeMap<u32, (u64, SharedSession)>,
}

impl Watchdog {
    /// A body callback came for a held request: nobody needs to be watched any more.
    pub(super) fn body_came(&mut self) {
        if self.bodies == Bodies::Unseen {
            self.bodies = Bodies::Seen;
            self.held.clear();
        }
    }

    /// Whether a body callback ever came while headers were held.
    pub(super) fn bodies(&self) -> Bodies {
        self.bodies
    }

    /// A request is held from now on.
    pub(super) fn held(&mut self, context: u32, session: &SharedSession, ticks: u64) {
        if self.bodies == Bodies::Unseen {
            self.held.insert(context, (ticks, session.clone()));
        }
    }

    /// A request is not held any more.
    pub(super) fn released(&mut self, context: u32) {
        self.held.remove(&context);
    }

    /// Those that have been held for `limit_ms` and are to go.
    pub(super) fn take_overdue(&mut self, ticks: u64, limit_ms: u64) -> Vec<(u32, SharedSession)> {
        // A request was held up to one tick after the one that it is dated by.
        let patience = limit_ms.div_ceil(u64::from(TICK_MS)).saturating_add(1);
        let overdue: Vec<u32> = self
            .held
            .iter()
            .filter(|(_, (since, _))| ticks.saturating_sub(*since) >= patience)
            .map(|(context, _)| *context)
            .collect();
        let taken = overdue.into_iter().filter_map(|context| {
            let (_, session) = self.held.remove(&context)?;
            Some((context, session))
        });
        taken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn overdue(watchdog: &mut Watchdog, ticks: u64) -> Vec<u32> {
        let overdue = watchdog.take_overdue(ticks, 1_000);
        overdue.into_iter().map(|(context, _)| context).collect()
    }

    #[test]
    fn who_is_held_for_the_whole_time_goes_once() {
        let mut watchdog = Watchdog::default();
        let session = Rc::default();
        watchdog.held(1, &session, 5);
        watchdog.held(2, &session, 6);
        watchdog.held(3, &session, 5);
        watchdog.released(3);
        assert_eq!(overdue(&mut watchdog, 15), [0; 0], "maybe 901 ms");
        assert_eq!(overdue(&mut watchdog, 16), [1]);
        assert_eq!(overdue(&mut watchdog, 17), [2]);
        assert_eq!(overdue(&mut watchdog, 1_000), [0; 0]);
    }

    #[test]
    fn a_limit_between_two_ticks_is_rounded_up() {
        let mut watchdog = Watchdog::default();
        watchdog.held(1, &Rc::default(), 0);
        assert!(watchdog.take_overdue(2, 101).is_empty());
        assert_eq!(watchdog.take_overdue(3, 101).len(), 1);
    }

    #[test]
    fn nobody_is_watched_once_a_body_came() {
        let mut watchdog = Watchdog::default();
        let session = Rc::default();
        watchdog.held(1, &session, 0);
        assert_eq!(watchdog.bodies(), Bodies::Unseen);
        watchdog.body_came();
        watchdog.held(2, &session, 0);
        assert_eq!(watchdog.bodies(), Bodies::Seen);
        assert_eq!(overdue(&mut watchdog, 1_000), [0; 0]);
        assert_eq!(Rc::strong_count(&session), 1, "nothing is kept");
    }
}
