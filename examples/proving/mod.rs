//! What the programs share that prove a routing policy: `simulate` and `replay`.

pub mod report;
pub mod workload;
