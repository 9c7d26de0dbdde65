//! Endpoints that are black holes: they take whatever comes, and say nothing.

use crate::load::turns_true;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A connection on the same machine is there by then, or never.
const CONNECT: Duration = Duration::from_millis(500);
/// More than a queue of one holds.
const MOST: usize = 8;

/// Stands before a replica, until it falls silent: then it keeps all connections, takes new ones, and
/// forwards nothing.
pub struct Silent {
    /// Where it listens.
    pub address: SocketAddr,
    silence: watch::Sender<bool>,
    accept: JoinHandle<()>,
}

impl Silent {
    /// Forwards to `replica`.
    pub async fn before(replica: SocketAddr) -> Result<Self, String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(|e| format!("proxy: {e}"))?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let (silence, silent) = watch::channel(false);
        let accept = tokio::spawn(async move {
            // Dropped with this task, and all connections with it.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, replica, silent.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            silence,
            accept,
        })
    }

    /// From now on, nothing.
    pub fn fall_silent(&self) {
        self.silence.send_replace(true);
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

async fn forward(mut client: TcpStream, replica: SocketAddr, mut silent: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(replica).await else {
        return;
    };
    // Only latency is lost without it.
    let _ = client.set_nodelay(true).and(server.set_nodelay(true));
    tokio::select! {
        // A connection that ends badly has ended all the same.
        _ = copy_bidirectional(&mut client, &mut server) => {}
        () = turns_true(&mut silent) => std::future::pending().await,
    }
}

/// An address whose connections are never made: its queue is full, so that the system drops every
/// further SYN.
pub struct Unreachable {
    /// Where it would listen.
    pub address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Unreachable {
    /// Fills the queue.
    ///
    /// # Errors
    /// The system takes more connections than it was told to.
    pub async fn new() -> Result<Self, String> {
        let wrong = |e: std::io::Error| format!("black hole: {e}");
        let socket = TcpSocket::new_v4().map_err(wrong)?;
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(anywhere).map_err(wrong)?;
        let listener = socket.listen(1).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let mut queued = Vec::new();
        while queued.len() < MOST {
            match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(connection) => queued.push(connection.map_err(wrong)?),
                Err(_) => {
                    return Ok(Self {
                        address,
                        _listener: listener,
                        _queued: queued,
                    });
                }
            }
        }
        Err("black hole: the system does not keep its queue short".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn nobody_gets_through_to_an_address_that_is_unreachable() {
        let hole = Unreachable::new().await.unwrap();
        let try_it = tokio::time::timeout(CONNECT, TcpStream::connect(hole.address));
        assert!(try_it.await.is_err());
    }

    #[tokio::test]
    async fn a_proxy_forwards_until_it_falls_silent() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let behind = echo.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut socket, _) = echo.accept().await.unwrap();
            let (mut from, mut to) = socket.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        });
        let proxy = Silent::before(behind).await.unwrap();
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let mut byte = [0];
        client.write_all(b"x").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"x");
        proxy.fall_silent();
        // Whatever passed before it took effect.
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.write_all(b"y").await.unwrap();
        let read = tokio::time::timeout(Duration::from_millis(200), client.read(&mut byte));
        assert!(read.await.is_err());
    }
}
