//! A client that costs next to nothing: sends bytes, and reads no more of the answer than its end.

use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that sends ready-made requests, one after the other.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects.
    pub async fn connect(to: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let buffer = Vec::with_capacity(8 << 10);
        Ok(Self { stream, buffer })
    }

    /// Sends `requests` in turn until `deadline`, beginning at a place that depends on `from`.
    /// How many answers there were; anything but a 200 is an error.
    pub async fn load(
        &mut self,
        requests: &[Vec<u8>],
        from: usize,
        deadline: Instant,
    ) -> Result<u64, String> {
        let mut answered = 0;
        for request in requests.iter().cycle().skip(from * 5) {
            if Instant::now() >= deadline {
                break;
            }
            let sent = self.stream.write_all(request).await;
            sent.map_err(|e| format!("request: {e}"))?;
            self.answer().await?;
            answered += 1;
        }
        Ok(answered)
    }

    async fn answer(&mut self) -> Result<(), String> {
        self.buffer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await;
            if read.map_err(|e| format!("answer: {e}"))? == 0 {
                return Err("Envoy closed the connection".to_owned());
            }
            if let Some(whole_bytes) = answer_bytes(&self.buffer)?
                && self.buffer.len() >= whole_bytes
            {
                return Ok(());
            }
        }
    }
}

/// Length of the answer with its headers, once those are there.
fn answer_bytes(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(head_bytes) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(bytes.get(..head_bytes).unwrap_or_default());
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("not a 200: {head}"));
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let length = length.ok_or_else(|| format!("no content-length: {head}"))?;
    Ok(Some(head_bytes + 4 + length))
}
