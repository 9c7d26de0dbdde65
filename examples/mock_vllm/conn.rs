//! One accepted TCP connection that can be reset on demand.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Resets the connection it belongs to.
#[derive(Debug, Clone, Default)]
pub struct Resetter(Arc<ResetState>);

#[derive(Debug, Default)]
struct ResetState {
    wanted: AtomicBool,
    notify: Notify,
}

impl Resetter {
    /// Ends the connection with a TCP RST.
    pub fn reset(&self) {
        self.0.wanted.store(true, Ordering::Release);
        self.0.notify.notify_one();
    }

    /// Waits for [`Self::reset`].
    pub async fn wanted(&self) {
        self.0.notify.notified().await;
    }
}

/// A stream that closes with RST, not FIN, if its [`Resetter`] says so.
pub struct Connection {
    stream: TcpStream,
    resetter: Resetter,
}

impl Connection {
    pub fn new(stream: TcpStream, resetter: Resetter) -> Self {
        Self { stream, resetter }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.resetter.0.wanted.load(Ordering::Acquire) {
            // If it fails the peer sees a FIN instead; nothing better is left to do.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
