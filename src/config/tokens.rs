//! `tokens`: how tokens are estimated.

use super::values::{thousandths, whole};
use super::{ConfigError, raw};
use crate::tokens::TokenEstimator;

// Called once; as a function of its own it makes the module larger.
#[inline(always)]
pub(super) fn tokens_of(raw: raw::Tokens) -> Result<TokenEstimator, ConfigError> {
    Ok(TokenEstimator {
        bytes_per_token_milli: thousandths(
            "tokens.bytes_per_token",
            raw.bytes_per_token,
            4_000,
            100,
            100_000,
        )?,
        output_tokens: whole("tokens.output_tokens", raw.output_tokens, 256, 1, 1 << 24)?,
        image_tokens: whole("tokens.image_tokens", raw.image_tokens, 1_024, 0, 1 << 24)?,
    })
}
