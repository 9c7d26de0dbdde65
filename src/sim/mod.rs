//! Models of the inference engine, for simulation and for the mock replica (native only).
//!
//! Pure: time and input are arguments, so that a virtual-time fleet and a real-time server can
//! drive the same code.

pub mod cache;
pub mod fleet;
pub mod peers;
pub mod profiles;
pub mod record;
pub mod replica;
pub mod workload;
