//! Whether bodies reach the replica as they were sent, whatever is in them.

use crate::Figure;
use crate::decision::{HEADER, explained};
use crate::samples::{self, Sample};
use crate::support::check::sha256;
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::config::Mode;
use crate::support::fleet::Fleet;

/// Sends all samples in every steering mode, over both protocols, and compares digests.
pub async fn measure() -> Result<Vec<Figure>, String> {
    let samples = samples::all();
    let (mut sent, mut mismatches) = (0, 0);
    for (mode, workers) in Mode::STEERING.into_iter().zip([1, 4, 4, 4]) {
        let fleet = Fleet::try_start(explained(mode, workers, 2)).await?;
        for protocol in Protocol::ALL {
            let client = fleet.client(protocol);
            for sample in &samples {
                sent += 1;
                mismatches += u32::from(arrived(&client, sample).await? != sha256(&sample.bytes));
            }
        }
    }
    Ok(vec![
        ("body_sha_mismatches", f64::from(mismatches)),
        ("body_sha_compared", f64::from(sent)),
    ])
}

/// The digest of what the replica got.
async fn arrived(client: &HttpClient, sample: &Sample) -> Result<String, String> {
    let call = Call::post(sample.path, sample.bytes.clone()).header("x-mock-echo", "1");
    let call = match sample.encoding {
        Some(encoding) => call.header("content-encoding", encoding),
        None => call,
    };
    let answer = client.send(call).await?;
    let digest = answer.header("x-mock-body-sha256");
    if digest.is_empty() || answer.header(HEADER).is_empty() {
        let beginning: String = String::from_utf8_lossy(&sample.bytes)
            .chars()
            .take(100)
            .collect();
        return Err(format!(
            "no replica answered, or no pick was made: status {}, {beginning}",
            answer.status
        ));
    }
    Ok(digest)
}
