//! A port that stays its owner's while nobody listens at it.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpSocket;

/// Keeps a port for as long as it or a clone of it lives.
///
/// Connections to it are refused. Who asks the system for any port gets another one, and no connection
/// goes out from it. Who binds it by its number may listen at it, if the socket has `SO_REUSEADDR`. All of this on
/// Linux alone: elsewhere nobody could listen at it, so that it is only known to have been free.
#[derive(Clone, Debug)]
pub struct Port {
    address: SocketAddr,
    /// Bound with `SO_REUSEADDR`, and never listened at.
    _socket: Option<Arc<TcpSocket>>,
}

impl Port {
    /// Keeps the port of this address; port 0 takes any free one.
    ///
    /// # Errors
    /// Somebody listens at it, or it cannot be bound.
    pub fn keep(address: SocketAddr) -> std::io::Result<Self> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self {
            address: socket.local_addr()?,
            _socket: cfg!(target_os = "linux").then(|| Arc::new(socket)),
        })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
