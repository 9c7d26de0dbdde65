//! Warmroute picks the model server for every LLM request, inside the Envoy that already carries it.
//!
//! This crate is a pure core (this documentation) and, behind the feature `filter`, the thin
//! proxy-wasm shell that Envoy loads. The core takes time and randomness as arguments and never
//! names the host, so that the filter, the simulator and the tests drive the same code.
//!
//! How to use it in an Envoy is in the README; how it works inside, in `docs/architecture.md`.
//!
//! # A pick
//!
//! ```
//! use std::rc::Rc;
//! use warmroute::balancer::{Ask, Balancer};
//! use warmroute::config::Config;
//! use warmroute::prefix::{block_keys, routing_key};
//! use warmroute::request::{Api, RequestScanner};
//! use warmroute::state::memory::MemoryStore;
//!
//! // What an operator writes, and what all workers of one Envoy share.
//! let json = br#"{"endpoints": [{"address": "10.0.0.1:8000"}, {"address": "10.0.0.2:8000"}]}"#;
//! let config = Config::parse(json)?;
//! let store = MemoryStore::new();
//! let mut balancer = Balancer::new(Rc::new(config), 1);
//!
//! // What a client sends, in whatever pieces it comes.
//! let mut scanner = RequestScanner::new(Api::ChatCompletions, &balancer.config().scan);
//! scanner.push(br#"{"model": "llama", "messages": [{"role": "user", "co"#);
//! scanner.push(br#"ntent": "Why is the sky blue?"}]}"#);
//! let request = scanner.finish();
//!
//! // Where it goes: an endpoint, and a reservation of what the request will cost there.
//! let model = request.model.as_deref();
//! let blocks = block_keys(model, &request.prompt.blocks);
//! let ask = Ask {
//!     pool: balancer.pool_for(model),
//!     model,
//!     key: routing_key(model, &request.prompt),
//!     blocks: &blocks,
//!     cost: balancer.config().tokens.estimate(&request, None),
//!     share_permille: 1_000,
//! };
//! let (now_ms, random) = (1_000, 42);
//! let (decision, mut reservation) = balancer.pick(&store, now_ms, random, ask)?;
//! let home = reservation.endpoint();
//! assert_eq!(decision.policy, "expected_latency");
//! assert_eq!(balancer.totals(&store)[&home].requests, 1);
//! balancer.sent(&store, home, &blocks);
//!
//! // The first byte of the answer ends the prefill, the end of the answer everything.
//! balancer.prefill_done(&store, now_ms + 50, &mut reservation);
//! assert_eq!(balancer.totals(&store)[&home].prefill_tokens, 0);
//! balancer.complete(&store, now_ms + 900, reservation);
//! assert!(balancer.totals(&store)[&home].is_zero());
//!
//! // The next turn of the chat begins alike, and goes to where its beginning is warm.
//! let (again, reservation) = balancer.pick(&store, now_ms + 2_000, 7, ask)?;
//! assert_eq!(reservation.endpoint(), home);
//! assert_eq!(again.key, decision.key);
//! balancer.complete(&store, now_ms + 2_500, reservation);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod account;
pub mod balancer;
pub mod config;
pub mod discovery;
pub mod endpoint;
pub mod health;
pub mod index;
pub mod metrics;
pub mod models;
pub mod policy;
pub mod poller;
pub mod prefix;
mod quote;
pub mod random;
pub mod rates;
pub mod reply;
pub mod request;
pub mod scrape;
pub mod session;
#[cfg(not(target_arch = "wasm32"))]
pub mod sim;
pub mod state;
pub mod steer;
pub mod tokens;
pub mod worker;

#[cfg(feature = "filter")]
mod filter;
