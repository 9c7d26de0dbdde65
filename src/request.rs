//! What one inference request says, as far as routing needs it.
//!
//! The scanner in this module reads the body once, as the bytes arrive, and never builds a tree.

/// The API that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages` (Anthropic)
    Messages,
}

/// How far the scan of a body came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The whole top-level object was read.
    Complete,
    /// The body was not read at all: nothing needed it, or it could not be held.
    Unread,
    /// The decision was taken before the end of the object.
    Partial,
    /// Not a JSON object, or broken: fields read before the fault do not count.
    Malformed,
    /// `content-encoding` says that the bytes are compressed.
    Encoded,
}
