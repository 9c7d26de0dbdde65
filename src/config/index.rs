//! `index`: how much the prefix index holds.

use super::values::whole;
use super::{ConfigError, MAX_ENDPOINTS, PoolConfig, raw};

/// Least blocks that `index.max_blocks` may name.
pub const MIN_INDEX_BLOCKS: u32 = 1_024;
/// Most blocks that `index.max_blocks` may name: 64 MiB a worker.
pub const MAX_INDEX_BLOCKS: u32 = 1 << 22;

/// Blocks that the index of a worker holds.
pub(super) fn index_blocks_of(raw: raw::Index, pools: &[PoolConfig]) -> Result<u32, ConfigError> {
    whole(
        "index.max_blocks",
        raw.max_blocks,
        default_blocks(pools),
        MIN_INDEX_BLOCKS,
        MAX_INDEX_BLOCKS,
    )
}

/// 32,768 blocks an endpoint of the pools that ask the index, which are two million tokens, within
/// 4 and 16 MiB a worker. How many endpoints are found nobody knows: then the most.
fn default_blocks(pools: &[PoolConfig]) -> u32 {
    let asking = pools.iter().filter(|pool| pool.policy.reads_index());
    let endpoints: usize = asking
        .map(|pool| match pool.clusters.is_empty() {
            true => pool.pool.len(),
            false => MAX_ENDPOINTS,
        })
        .sum();
    let blocks = u32::try_from(endpoints).unwrap_or(u32::MAX);
    blocks.saturating_mul(1 << 15).clamp(1 << 18, 1 << 20)
}
