//! Tests of the replica model.
use super::*;

fn profile() -> Profile {
    Profile {
        prefill_tokens_per_s: 1_000,
        step_base_us: 10_000,
        decode_us_per_seq: 100,
        context_us_per_1k_tokens: 1_000,
        token_budget: 128,
        max_running: 4,
        blocks: 64,
        block_tokens: 16,
    }
}

fn job(id: u64, root: u64, prompt_tokens: u32, output_tokens: u32) -> Job {
    let chain = (0..u64::from(prompt_tokens / 16))
        .map(|depth| root * 1_000 + depth)
        .collect();
    Job {
        id,
        chain,
        prompt_tokens,
        output_tokens,
        detail: Detail::Tokens,
    }
}

fn run(replica: &mut Replica) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(at_us) = replica.next_event_us() {
        replica.advance(at_us, &mut events);
    }
    events
}

fn first(events: &[Event], wanted: u64) -> (u64, u32) {
    events
        .iter()
        .find_map(|event| match event {
            Event::FirstToken {
                id,
                at_us,
                cached_tokens,
                ..
            } if *id == wanted => Some((*at_us, *cached_tokens)),
            _ => None,
        })
        .unwrap()
}

fn finished(events: &[Event], wanted: u64) -> u64 {
    events
        .iter()
        .find_map(|event| match event {
            Event::Finished { id, at_us } if *id == wanted => Some(*at_us),
            _ => None,
        })
        .unwrap()
}

#[test]
fn one_request_alone_takes_what_the_formula_says() {
    let mut replica = Replica::new(profile());
    replica.submit(5_000, job(1, 1, 200, 3)).unwrap();
    let events = run(&mut replica);
    // 128 and 72 tokens of prefill, then two decodes over 201 and 202 tokens of context.
    let prefill_us = 10_000 + 128_000 + 10_000 + 72_000;
    assert_eq!(first(&events, 1), (5_000 + prefill_us, 0));
    assert_eq!(
        finished(&events, 1),
        5_000 + prefill_us + (10_000 + 100 + 201) + (10_000 + 100 + 202)
    );
    assert_eq!(events.len(), 4);
    assert_eq!(replica.gauges().steps, 4);
}

#[test]
fn a_prefix_hit_shortens_the_prefill() {
    let mut replica = Replica::new(profile());
    replica.submit(0, job(1, 1, 100, 1)).unwrap();
    run(&mut replica);
    replica.submit(1_000_000, job(2, 1, 100, 1)).unwrap();
    let events = run(&mut replica);
    // Six full blocks of the hundred tokens are cached.
    assert_eq!(first(&events, 2), (1_000_000 + 10_000 + 4_000, 96));
    let gauges = replica.gauges();
    assert_eq!(
        (gauges.prefix_queries_tokens, gauges.prefix_hits_tokens),
        (200, 96)
    );
    assert_eq!((gauges.prompt_tokens, gauges.cached_tokens), (200, 96));
}

#[test]
fn a_fully_cached_prompt_still_computes_its_last_block() {
    let mut replica = Replica::new(profile());
    replica.submit(0, job(1, 1, 64, 1)).unwrap();
    run(&mut replica);
    replica.submit(1_000_000, job(2, 1, 64, 1)).unwrap();
    assert_eq!(
        first(&run(&mut replica), 2),
        (1_000_000 + 10_000 + 16_000, 48)
    );
}

#[test]
fn another_chain_shares_nothing() {
    let mut replica = Replica::new(profile());
    replica.submit(0, job(1, 1, 100, 1)).unwrap();
    replica.submit(0, job(2, 2, 100, 1)).unwrap();
    assert_eq!(first(&run(&mut replica), 2).1, 0);
}

#[test]
fn work_is_conserved_and_the_queue_is_first_come_first_served() {
    let mut replica = Replica::new(profile());
    for id in 0..20 {
        replica
            .submit(id * 1_000, job(id, id, 50 + id as u32, 10))
            .unwrap();
    }
    let events = run(&mut replica);
    let count = |wanted: fn(&Event) -> bool| events.iter().filter(|event| wanted(event)).count();
    assert_eq!(count(|event| matches!(event, Event::FirstToken { .. })), 20);
    assert_eq!(count(|event| matches!(event, Event::Token { .. })), 20 * 9);
    assert_eq!(count(|event| matches!(event, Event::Finished { .. })), 20);
    let firsts: Vec<u64> = (0..20).map(|id| first(&events, id).0).collect();
    assert!(firsts.is_sorted());
    let gauges = replica.gauges();
    assert_eq!(gauges.generation_tokens, 200);
    assert_eq!(gauges.prompt_tokens, (0..20).map(|id| 50 + id).sum::<u64>());
    assert_eq!(
        (gauges.running, gauges.waiting, gauges.finished),
        (0, 0, 20)
    );
    assert_eq!(gauges.kv_usage, 0.0);
}

#[test]
fn no_more_than_max_running_run() {
    let mut replica = Replica::new(profile());
    for id in 0..6 {
        replica.submit(0, job(id, id, 16, 50)).unwrap();
    }
    replica.advance(0, &mut Vec::new());
    assert_eq!((replica.gauges().running, replica.gauges().waiting), (4, 2));
}

#[test]
fn abort_frees_the_blocks_at_once_and_leaves_the_rest_alone() {
    let mut replica = Replica::new(profile());
    replica.submit(0, job(1, 1, 100, 50)).unwrap();
    replica.submit(0, job(2, 2, 20, 5)).unwrap();
    let mut events = Vec::new();
    replica.advance(500_000, &mut events);
    assert!(replica.gauges().kv_usage > 0.0);
    assert!(replica.abort(1));
    assert!(!replica.abort(1));
    events.extend(run(&mut replica));
    assert_eq!(replica.gauges().kv_usage, 0.0);
    assert!(finished(&events, 2) > 0);
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::Finished { id: 1, .. }))
    );
    assert_eq!(
        (replica.gauges().aborted, replica.gauges().finished),
        (1, 1)
    );
    // What was computed stays cached.
    assert_eq!(replica.matched_tokens(&job(3, 1, 100, 1).chain), 96);
}

#[test]
fn abort_of_a_waiting_job() {
    let mut replica = Replica::new(profile());
    replica.submit(0, job(1, 1, 100, 50)).unwrap();
    assert!(replica.abort(1));
    assert_eq!(replica.next_event_us(), None);
}

#[test]
fn out_of_blocks_the_youngest_is_preempted_and_still_finishes() {
    let small = Profile {
        blocks: 8,
        ..profile()
    };
    let mut replica = Replica::new(small);
    // Each needs up to six blocks; both prompts fit together, both outputs do not.
    replica.submit(0, job(1, 1, 48, 40)).unwrap();
    replica.submit(0, job(2, 2, 48, 40)).unwrap();
    let events = run(&mut replica);
    assert!(replica.gauges().preemptions > 0);
    assert!(finished(&events, 1) < finished(&events, 2));
    assert_eq!(replica.gauges().generation_tokens, 80);
    assert_eq!(replica.gauges().prompt_tokens, 96);
    assert_eq!(replica.gauges().kv_usage, 0.0);
}

#[test]
fn too_large_is_refused() {
    let mut replica = Replica::new(profile());
    assert_eq!(
        replica.submit(0, job(1, 1, 1_000, 26)),
        Err(SubmitError::TooLarge)
    );
    assert_eq!(replica.submit(0, job(1, 1, 1_000, 25)), Ok(()));
    assert_eq!(run(&mut replica).len(), 26);
}

#[test]
fn a_request_that_arrives_in_a_step_waits_for_the_next() {
    let mut replica = Replica::new(profile());
    replica.submit(0, job(1, 1, 16, 10)).unwrap();
    replica.advance(0, &mut Vec::new());
    replica.submit(1, job(2, 2, 16, 1)).unwrap();
    let events = run(&mut replica);
    assert_eq!(first(&events, 1).0, 26_000);
    assert_eq!(first(&events, 2).0, 26_000 + 10_000 + 16_000 + 100 + 17);
}

proptest::proptest! {
    /// Whatever comes: the same twice, all of it ends, nothing is left behind, and one big
    /// advance gives the same as many small ones.
    #[test]
    fn deterministic_and_complete(
        jobs in proptest::collection::vec((0u64..4, 1u32..300, 1u32..40, 0u64..50_000, proptest::bool::weighted(0.2)), 1..40)
    ) {
        let drive = |stepwise: bool| {
            let mut replica = Replica::new(Profile { blocks: 30, ..profile() });
            let mut events = Vec::new();
            let mut now_us = 0;
            let mut aborted = 0;
            for (index, (root, prompt, output, gap_us, abort)) in jobs.iter().enumerate() {
                now_us += gap_us;
                while let Some(at_us) = replica.next_event_us().filter(|at| stepwise && *at < now_us) {
                    replica.advance(at_us, &mut events);
                    let gauges = replica.gauges();
                    let there = u64::from(gauges.running) + u64::from(gauges.waiting);
                    assert_eq!(there + gauges.finished + gauges.aborted, index as u64);
                    assert!(gauges.kv_usage <= 1.0 && gauges.running <= 4);
                }
                replica.advance(now_us.saturating_sub(1), &mut events);
                replica.submit(now_us, job(index as u64, *root, *prompt, *output)).unwrap();
                if *abort && index > 0 {
                    aborted += usize::from(replica.abort(index as u64 - 1));
                }
            }
            replica.advance(u64::MAX - 1, &mut events);
            (events, aborted, replica.gauges())
        };
        let (events, aborted, gauges) = drive(false);
        let (again, _, _) = drive(true);
        proptest::prop_assert_eq!(&events, &again);
        let ends = events.iter().filter(|event| matches!(event, Event::Finished { .. })).count();
        proptest::prop_assert_eq!(ends + aborted, jobs.len());
        proptest::prop_assert_eq!((gauges.running, gauges.waiting), (0, 0));
        proptest::prop_assert_eq!(gauges.kv_usage, 0.0);
        let tokens = events.iter().filter(|event| !matches!(event, Event::Finished { .. })).count();
        proptest::prop_assert_eq!(gauges.generation_tokens as usize, tokens);
    }
}

/// vLLM 0.32: `AsyncScheduler._update_request_with_output` caches the blocks of generated tokens, and
/// `BlockPool.free_blocks` puts what is cached at the end of the queue for eviction.
#[test]
fn generated_tokens_push_prompts_out_of_the_cache() {
    let cached_after = |output_tokens| {
        let mut replica = Replica::new(Profile {
            blocks: 12,
            ..profile()
        });
        // Four blocks of prompt to be kept, four of another prompt, and what that one generates.
        for (id, root, output_tokens) in [(1, 1, 1), (2, 2, output_tokens), (3, 3, 1)] {
            let at_us = id * 100_000_000;
            replica
                .submit(at_us, job(id, root, 64, output_tokens))
                .unwrap();
            run(&mut replica);
        }
        replica.submit(900_000_000, job(4, 1, 65, 1)).unwrap();
        first(&run(&mut replica), 4).1
    };
    // The last token of an answer is never computed, so that one more is needed to fill a block.
    assert_eq!(cached_after(16), 64);
    assert_eq!(cached_after(17), 48);
    assert_eq!(cached_after(48), 32);
}

/// vLLM computes the last block of a prompt again even if it is cached, and caches the copy too.
#[test]
fn the_copy_of_a_cached_block_takes_a_place_of_its_own() {
    let mut replica = Replica::new(Profile {
        blocks: 9,
        ..profile()
    });
    for (id, root) in [(1, 1), (2, 2), (3, 2)] {
        let at_us = id * 100_000_000;
        replica.submit(at_us, job(id, root, 64, 1)).unwrap();
        run(&mut replica);
    }
    // Four blocks of each, and the copy: all nine places are taken, and none was taken away.
    assert_eq!(replica.matched_tokens(&job(0, 1, 64, 1).chain), 64);
    replica.submit(900_000_000, job(4, 3, 16, 1)).unwrap();
    run(&mut replica);
    assert_eq!(replica.matched_tokens(&job(0, 1, 64, 1).chain), 48);
}
