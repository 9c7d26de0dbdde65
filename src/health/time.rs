//! Moments and rests, such that a clock that is set back holds nobody.

/// By how much clocks of one machine may differ, in milliseconds: VMs ask at different moments.
const SKEW_MS: u64 = 1_000;

/// Whether something said at `at_ms` still counts; 0 is never. What is from the future was said before the
/// clock was set back.
pub(super) fn is_fresh(at_ms: u64, now_ms: u64, window_ms: u64) -> bool {
    at_ms != 0
        && at_ms <= now_ms.saturating_add(SKEW_MS)
        && now_ms.saturating_sub(at_ms) < window_ms
}

/// A time to be spared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// When it began, in milliseconds; 0 is never.
    pub(super) since_ms: u64,
    /// How long it is, in milliseconds.
    pub(super) length_ms: u32,
}

impl Rest {
    pub(super) fn new(now_ms: u64, length_ms: u64) -> Self {
        Self {
            since_ms: now_ms.max(1),
            length_ms: u32::try_from(length_ms).unwrap_or(u32::MAX),
        }
    }

    /// Whether there ever was one.
    pub(super) fn is_set(&self) -> bool {
        self.since_ms != 0
    }

    /// Whether it goes on; one that is longer than `most_ms` is cut there.
    pub(super) fn covers(&self, now_ms: u64, most_ms: u64) -> bool {
        is_fresh(self.since_ms, now_ms, self.length(most_ms))
    }

    /// How much of it is left, in milliseconds.
    pub(super) fn left_ms(&self, now_ms: u64, most_ms: u64) -> u64 {
        match self.covers(now_ms, most_ms) {
            true => self
                .since_ms
                .saturating_add(self.length(most_ms))
                .saturating_sub(now_ms),
            false => 0,
        }
    }

    /// Whether it has been over for so long.
    pub(super) fn is_over_for(&self, now_ms: u64, most_ms: u64, over_ms: u64) -> bool {
        let length_ms = self.length(most_ms).saturating_add(over_ms);
        !is_fresh(self.since_ms, now_ms, length_ms)
    }

    fn length(&self, most_ms: u64) -> u64 {
        u64::from(self.length_ms).min(most_ms)
    }
}
