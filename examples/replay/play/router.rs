//! A router in front of engines, whichever it is.

use super::cost;
use super::envoy;
use super::names::{Family, Name};
use super::peer::{self, Peer};
use crate::support::envoy::EnvoyProcess;
use std::net::SocketAddr;
use warmroute::sim::record::RouterCost;

/// How routers are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Envoy's worker threads.
    pub workers: u32,
    /// Where the router listens; 0 takes any free port.
    pub port: u16,
    /// Whether Envoy names the endpoint in its answers, since the engines do not.
    pub envoy_tells_endpoint: bool,
}

/// A router that serves.
#[derive(Debug)]
pub enum Router {
    Envoy(EnvoyProcess),
    Peer(Peer),
}

impl Router {
    /// Starts it, and returns when it serves.
    ///
    /// # Errors
    /// Why it does not, in one line.
    pub async fn start(name: Name, engines: &[SocketAddr], how: Start) -> Result<Self, String> {
        if how.port != 0 {
            peer::is_free(how.port)?;
        }
        let started = match name.family {
            Family::Envoy | Family::Warmroute => {
                let config = envoy::config(name, engines, how.port, how.envoy_tells_endpoint)?;
                EnvoyProcess::start(&config, how.workers)
                    .await
                    .map(Self::Envoy)
            }
            Family::VllmRouter | Family::SglangRouter => {
                Peer::start(name, engines, how.port).await.map(Self::Peer)
            }
        };
        started.map_err(|why| one_line(&why))
    }

    /// Where clients connect.
    pub fn listener(&self) -> SocketAddr {
        match self {
            Self::Envoy(envoy) => envoy.listener,
            Self::Peer(peer) => peer.listener,
        }
    }

    /// What its processes have used so far.
    pub fn cost(&self) -> Option<RouterCost> {
        cost::of_tree(match self {
            Self::Envoy(envoy) => envoy.pid(),
            Self::Peer(peer) => peer.pid(),
        })
    }

    /// `None` while it runs, else the last line of its log.
    pub fn last_words(&mut self) -> Option<String> {
        match self {
            Self::Envoy(envoy) => (!envoy.is_running()).then(|| peer::last_line(&envoy.log())),
            Self::Peer(peer) => (!peer.is_running()).then(|| peer.last_line()),
        }
    }
}

/// The first line, and the last where a log follows.
fn one_line(why: &str) -> String {
    match why.split_once('\n') {
        Some((first, log)) => format!("{first} {}", peer::last_line(log)),
        None => why.to_owned(),
    }
}
