//! Ctrl-C and SIGTERM: the first ends the sending, and the report is of what was seen; the second ends
//! the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether the user has had enough.
#[derive(Debug)]
pub struct Interrupt {
    stop: watch::Receiver<bool>,
    code: Arc<AtomicU8>,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> Result<Self, String> {
        let handler = |kind| signal(kind).map_err(|e| format!("signals: {e}"));
        let mut interrupted = handler(SignalKind::interrupt())?;
        let mut terminated = handler(SignalKind::terminate())?;
        let (tell, stop) = watch::channel(false);
        let code = Arc::new(AtomicU8::new(0));
        let set = Arc::clone(&code);
        tokio::spawn(async move {
            loop {
                let number = tokio::select! {
                    _ = interrupted.recv() => 130,
                    _ = terminated.recv() => 143,
                };
                if set.swap(number, Ordering::Relaxed) != 0 {
                    // Routers end by themselves when this process does.
                    std::process::exit(i32::from(number));
                }
                eprintln!("interrupted: no more is sent; once more ends this without a report");
                // Whoever listens, listens; the code is kept.
                let _ = tell.send(true);
            }
        });
        Ok(Self { stop, code })
    }

    /// Turns true with the first signal.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// The exit code that the signal asks for.
    pub fn code(&self) -> Option<u8> {
        match self.code.load(Ordering::Relaxed) {
            0 => None,
            code => Some(code),
        }
    }
}
