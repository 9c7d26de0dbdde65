//! A pick: from all endpoints of a pool to a decision, and the reservation that goes with it.

use super::candidates::{self, Known};
use super::decision::{Ask, Decision, NOBODY, Overload, Refusal};
use super::pools::PoolState;
use super::standing::Gate;
use super::{Balancer, placement, saturation, serving, standing};
use crate::config::Saturation;
use crate::health::Board;
use crate::policy::{Candidate, Ranking, View};
use crate::state::Store;
use crate::state::ledger::{Carried, Reservation};

impl Balancer {
    /// Picks an endpoint and reserves the cost there, in one atomic step.
    ///
    /// # Errors
    /// Why no endpoint can be picked.
    pub fn pick<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        random: u64,
        ask: Ask<'_>,
    ) -> Result<(Decision, Reservation), Refusal> {
        let endpoints = self.pools.get(ask.pool).map_or(0, |pool| pool.ids.len());
        // Each time but the last, somebody else was faster to probe one of them.
        for _ in 0..=endpoints {
            let (mut decision, reservation) = self.reserve(store, now_ms, random, &ask)?;
            match self.pass(store, now_ms, reservation.endpoint(), &mut decision) {
                Gate::Open => return Ok((decision, reservation)),
                Gate::Lost => self.ledger.release(store, now_ms, reservation),
            }
        }
        Err(NOBODY)
    }

    /// Picks by the state of health that this worker knows.
    fn reserve<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        random: u64,
        ask: &Ask<'_>,
    ) -> Result<(Decision, Reservation), Refusal> {
        let known = self.known(store, now_ms, ask).ok_or(NOBODY)?;
        let state = self.pools.get(ask.pool).ok_or(NOBODY)?;
        let pick = Pick {
            ask,
            state,
            known: &known,
            board: &self.board,
            limits: self.config.saturation.as_ref(),
            now_ms,
            random,
        };
        let mut decided = Err(NOBODY);
        let counter = state.counter(&known);
        let reservation =
            self.ledger
                .reserve(store, now_ms, counter, &state.ids, |carried, sequence| {
                    decided = pick.decide(carried, sequence);
                    let decision = decided.as_ref().ok()?;
                    let first = usize::try_from(*decision.endpoints.first()?).ok()?;
                    Some((first, decision.cost))
                });
        let decision = decided?;
        Ok((decision, reservation.ok_or(NOBODY)?))
    }
}

/// Everything that a decision depends on but what the endpoints carry, which is read when the cost is reserved.
struct Pick<'a> {
    ask: &'a Ask<'a>,
    state: &'a PoolState,
    known: &'a [Known],
    board: &'a Board,
    limits: Option<&'a Saturation>,
    now_ms: u64,
    random: u64,
}

/// Who is left by the stages before the policy, and who may be tried after them.
struct Eligible {
    candidates: Vec<Candidate>,
    /// As [`Decision::behind`].
    behind: Vec<u32>,
    /// Those behind [`Decision::reserve`].
    reserve: Vec<Candidate>,
}

impl Pick<'_> {
    /// From what each endpoint carries, through the stages, to what the policy makes of who is left.
    fn decide(&self, carried: &[Carried], sequence: u64) -> Result<Decision, Refusal> {
        let all = candidates::all(self.state, carried, self.known, self.now_ms);
        let eligible = self.eligible(all)?;
        let ranking = self.rank(&eligible.candidates, sequence)?;
        let mut decision = Decision {
            pool: self.ask.pool,
            policy: self.state.policy.name(),
            endpoints: ranking.endpoints,
            reason: ranking.reason,
            key: self.ask.key,
            cost: self.ask.cost,
            bound: ranking.bound,
            costs_us: ranking.costs_us,
            sequence,
            candidates: eligible.candidates,
            behind: eligible.behind,
            reserve: eligible.reserve.iter().map(|one| one.endpoint).collect(),
            attempts: Vec::new(),
            overload: Overload::default(),
            probe: false,
        };
        // What is cached need not be computed.
        let cached_tokens = decision.chosen().map_or(0, |first| first.matched_tokens);
        let prefill_tokens = &mut decision.cost.prefill_tokens;
        *prefill_tokens = prefill_tokens.saturating_sub(cached_tokens).max(1);
        Ok(decision)
    }

    /// Leaves out who may not be picked, stage by stage.
    fn eligible(&self, mut candidates: Vec<Candidate>) -> Result<Eligible, Refusal> {
        serving::keep(&mut candidates, self.known)?;
        let mut reserve =
            standing::keep(&mut candidates, &self.state.ids, self.board, self.now_ms)?;
        if let Some(limits) = self.limits {
            saturation::keep(&mut candidates, limits, self.ask.share_permille)?;
            saturation::retain(&mut reserve, limits, self.ask.share_permille);
        }
        serving::prefer_known(&mut candidates, self.known);
        let behind = placement::keep(&mut candidates, self.known);
        Ok(Eligible {
            candidates,
            behind,
            reserve,
        })
    }

    /// Lets the policy rank who is left.
    fn rank(&self, candidates: &[Candidate], sequence: u64) -> Result<Ranking, Refusal> {
        let view = View {
            pool: &self.state.config.pool,
            candidates,
            key: self.ask.key,
            blocks: self.ask.blocks,
            cost: self.ask.cost,
            sequence,
            random: self.random,
        };
        self.state.policy.rank(&view).ok_or(NOBODY)
    }
}
