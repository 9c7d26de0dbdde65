//! Who serves the model that a request names.

use super::Refusal;
use crate::endpoint::Pool;
use crate::policy::Candidate;

/// Leaves those that serve `model`.
///
/// # Errors
/// None so far: where nobody lists the model, the engine's own 404 is the best answer there is.
pub(super) fn keep(
    candidates: &mut Vec<Candidate>,
    pool: &Pool,
    model: Option<&str>,
) -> Result<(), Refusal> {
    let serves = |candidate: &Candidate| {
        let endpoint = pool.get(candidate.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.serves(model))
    };
    if candidates.iter().any(serves) {
        candidates.retain(serves);
    }
    Ok(())
}
