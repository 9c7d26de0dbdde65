//! Endpoints that become black holes: they drop every SYN, or take whatever comes and say nothing.

use crate::load::turns_true;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A connection on the same machine is there by then, or never.
const CONNECT: Duration = Duration::from_millis(300);
/// Connections that wait to be taken.
const QUEUE: u32 = 4;
/// More than the queue holds.
const MOST: usize = 16;

/// Stands before a replica, until it becomes a black hole.
pub struct Hole {
    /// Where it listens.
    pub address: SocketAddr,
    silence: watch::Sender<bool>,
    accept: Option<JoinHandle<()>>,
    /// Open for as long as it lives, and taken from no more once it is full.
    _listener: Arc<TcpListener>,
    queued: Vec<TcpStream>,
}

impl Hole {
    /// Forwards to `replica`.
    pub fn before(replica: SocketAddr) -> Result<Self, String> {
        let socket = TcpSocket::new_v4().map_err(wrong)?;
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(anywhere).map_err(wrong)?;
        let listener = Arc::new(socket.listen(QUEUE).map_err(wrong)?);
        let address = listener.local_addr().map_err(wrong)?;
        let (silence, silent) = watch::channel(false);
        let takes = Arc::clone(&listener);
        let accept = tokio::spawn(async move {
            // Dropped with this task, and all connections with it.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = takes.accept().await {
                connections.spawn(forward(client, replica, silent.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            silence,
            accept: Some(accept),
            _listener: listener,
            queued: Vec::new(),
        })
    }

    /// From now on it keeps all connections, takes new ones, and forwards nothing.
    pub fn fall_silent(&self) {
        self.silence.send_replace(true);
    }

    /// From now on its queue is full, so that the system drops every further SYN; connections that it
    /// had are closed. Returns when that is so.
    ///
    /// # Errors
    /// The system takes more connections than it was told to.
    pub async fn drop_syns(&mut self) -> Result<(), String> {
        if let Some(accept) = self.accept.take() {
            accept.abort();
            // Cancelled, as it was meant to be.
            let _ = accept.await;
        }
        while self.queued.len() < MOST {
            match tokio::time::timeout(CONNECT, TcpStream::connect(self.address)).await {
                Ok(connection) => self.queued.push(connection.map_err(wrong)?),
                Err(_) => return Ok(()),
            }
        }
        Err("black hole: the system does not keep its queue short".to_owned())
    }
}

impl Drop for Hole {
    fn drop(&mut self) {
        if let Some(accept) = &self.accept {
            accept.abort();
        }
    }
}

fn wrong(error: std::io::Error) -> String {
    format!("black hole: {error}")
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers each byte by itself.
    async fn echo() -> SocketAddr {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = echo.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut socket, _) = echo.accept().await.unwrap();
            let (mut from, mut to) = socket.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        });
        address
    }

    async fn through(hole: &Hole) -> TcpStream {
        let mut client = TcpStream::connect(hole.address).await.unwrap();
        let mut byte = [0];
        client.write_all(b"x").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"x");
        client
    }

    #[tokio::test]
    async fn it_forwards_until_nobody_gets_through_any_more() {
        let mut hole = Hole::before(echo().await).unwrap();
        let mut client = through(&hole).await;
        hole.drop_syns().await.unwrap();
        let try_it = tokio::time::timeout(CONNECT, TcpStream::connect(hole.address));
        assert!(try_it.await.is_err());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn it_forwards_until_it_falls_silent() {
        let hole = Hole::before(echo().await).unwrap();
        let mut client = through(&hole).await;
        hole.fall_silent();
        // Whatever passed before it took effect.
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.write_all(b"y").await.unwrap();
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_millis(200), client.read(&mut byte));
        assert!(read.await.is_err());
    }
}
