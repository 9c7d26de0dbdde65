//! `round_robin`: each eligible endpoint in turn.

use super::{Policy, RANKED, Ranking, Reason, View};

/// Takes the candidates in the order of the pool, by the pool's count of picks.
///
/// The weights are not looked at; that is `weighted_round_robin`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let turns = u64::try_from(view.candidates.len()).ok()?;
        let start = usize::try_from(view.sequence.checked_rem(turns)?).ok()?;
        let (before, from) = view.candidates.split_at_checked(start)?;
        let in_turn = from.iter().chain(before).take(RANKED);
        Ranking::plain(in_turn.map(|one| one.endpoint).collect(), Reason::Turn)
    }
}
