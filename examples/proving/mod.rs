//! What the programs that prove something share.

pub mod workload;
