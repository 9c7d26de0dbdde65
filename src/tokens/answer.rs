//! What one JSON document of a response says about usage, errors and output.

use crate::request::json::{Kind, Sink, Take};
use crate::request::number::whole;

/// Longest error type that is told apart.
const WORD_BYTES: usize = 48;

/// Types of the event that ends a stream which has no `[DONE]`.
const LAST_EVENTS: [&[u8]; 4] = [
    b"message_stop",
    b"response.completed",
    b"response.incomplete",
    b"response.failed",
];

/// Tokens as the engine counted them. vLLM's figures for the prompt include the cached tokens under
/// all four APIs; Anthropic's own definition of `input_tokens` leaves them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, as reported: `prompt_tokens` or `input_tokens`.
    pub prompt_tokens: u64,
    /// Tokens of the output, as reported: `completion_tokens` or `output_tokens`.
    pub completion_tokens: u64,
    /// Tokens of the prompt that came from the prefix cache; `None` if the engine does not say.
    pub cached_tokens: Option<u64>,
}

/// The container that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    Top,
    /// `message` or `response`: an envelope around an answer.
    Envelope,
    Usage,
    Details,
    Error,
    Choices,
    Choice,
    /// `delta` of a choice, or at the top.
    Delta,
    /// A list or an object inside a delta, such as `tool_calls`.
    Calls,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    #[default]
    Nothing,
    Prompt,
    Completion,
    Cached,
    Usage,
    Details,
    Envelope,
    Error,
    ErrorCode,
    ErrorType,
    /// `type` or `object` at the top, which may say `error`.
    TopType,
    TopCode,
    Choices,
    Delta,
    Output,
}

/// Collects over all documents of a response.
#[derive(Debug, Default)]
pub(super) struct Answer {
    places: Vec<Place>,
    slot: Slot,
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
    error: Option<u32>,
    is_last: bool,
    word: Vec<u8>,
    /// In this document:
    has_output: bool,
    is_error: bool,
    top_is_error: bool,
    code: Option<u32>,
    implied_code: Option<u32>,
}

impl Answer {
    pub(super) fn usage(&self) -> Option<Usage> {
        if self.prompt.is_none() && self.completion.is_none() {
            return None;
        }
        Some(Usage {
            prompt_tokens: self.prompt.unwrap_or(0),
            completion_tokens: self.completion.unwrap_or(0),
            cached_tokens: self.cached,
        })
    }

    pub(super) fn error_code(&self) -> Option<u32> {
        self.error
    }

    /// Whether a document said that it is the last.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Ends a document, whole or not, and says whether it carried output.
    pub(super) fn end_document(&mut self) -> bool {
        if self.is_error || self.top_is_error {
            self.error = Some(self.code.or(self.implied_code).unwrap_or(500));
        }
        self.is_error = false;
        self.top_is_error = false;
        self.code = None;
        self.implied_code = None;
        self.places.clear();
        self.slot = Slot::Nothing;
        std::mem::take(&mut self.has_output)
    }

    fn place(&self) -> Place {
        self.places.last().copied().unwrap_or_default()
    }

    fn enter(&mut self, place: Place) -> Take {
        self.places.push(place);
        self.slot = Slot::Nothing;
        Take::Read
    }

    fn end_word(&mut self) {
        match self.slot {
            Slot::TopType => {
                self.top_is_error |= self.word == b"error";
                self.is_last |= LAST_EVENTS.contains(&self.word.as_slice());
            }
            Slot::ErrorType => self.implied_code = Some(code_of(&self.word)),
            Slot::ErrorCode | Slot::TopCode => self.set_code(),
            _ => {}
        }
    }

    fn set_code(&mut self) {
        let code = whole(&self.word).and_then(|code| u32::try_from(code).ok());
        if code.is_some() {
            self.code = code;
        }
    }
}

impl Sink for Answer {
    fn key(&mut self, key: &[u8]) {
        self.slot = match (self.place(), key) {
            (Place::Top | Place::Envelope, b"usage") => Slot::Usage,
            (Place::Top | Place::Envelope, b"error") => Slot::Error,
            (Place::Top, b"message" | b"response") => Slot::Envelope,
            (Place::Top, b"type" | b"object") => Slot::TopType,
            (Place::Top, b"code") => Slot::TopCode,
            (Place::Top, b"choices") => Slot::Choices,
            (Place::Top | Place::Choice, b"delta") => Slot::Delta,
            (Place::Choice, b"text") => Slot::Output,
            (
                Place::Delta,
                b"role" | b"type" | b"signature" | b"stop_reason" | b"stop_sequence",
            ) => Slot::Nothing,
            (Place::Delta, _) => Slot::Output,
            (Place::Usage, b"prompt_tokens" | b"input_tokens") => Slot::Prompt,
            (Place::Usage, b"completion_tokens" | b"output_tokens") => Slot::Completion,
            (Place::Usage, b"cache_read_input_tokens") => Slot::Cached,
            (Place::Usage, b"prompt_tokens_details" | b"input_tokens_details") => Slot::Details,
            (Place::Details, b"cached_tokens") => Slot::Cached,
            (Place::Error, b"code") => Slot::ErrorCode,
            (Place::Error, b"type") => Slot::ErrorType,
            _ => Slot::Nothing,
        };
    }

    fn begin(&mut self, kind: Kind) -> Take {
        match (self.place(), self.slot, kind) {
            (Place::Outside, _, _) => self.enter(Place::Top),
            (Place::Choices, _, Kind::Object) => self.enter(Place::Choice),
            (Place::Calls, _, Kind::Object | Kind::Array | Kind::String) => {
                self.has_output = true;
                self.slot = Slot::Nothing;
                Take::Skip
            }
            (_, Slot::Usage, Kind::Object) => self.enter(Place::Usage),
            (_, Slot::Details, Kind::Object) => self.enter(Place::Details),
            (_, Slot::Envelope, Kind::Object) => self.enter(Place::Envelope),
            (_, Slot::Error, Kind::Object) => {
                self.is_error = true;
                self.enter(Place::Error)
            }
            (Place::Top, Slot::Error, Kind::String) => {
                self.is_error = true;
                self.slot = Slot::Nothing;
                Take::Skip
            }
            (_, Slot::Choices, Kind::Array) => self.enter(Place::Choices),
            (_, Slot::Delta, Kind::Object) => self.enter(Place::Delta),
            // A list of calls is output as soon as it holds one.
            (Place::Delta, Slot::Output, Kind::Array | Kind::Object) => self.enter(Place::Calls),
            (_, Slot::Delta | Slot::Output, Kind::String) => {
                self.slot = Slot::Output;
                Take::Read
            }
            (
                _,
                Slot::TopType | Slot::TopCode | Slot::ErrorCode | Slot::ErrorType,
                Kind::String,
            ) => {
                self.word.clear();
                Take::Read
            }
            (_, _, Kind::Scalar) => Take::Read,
            _ => {
                self.slot = Slot::Nothing;
                Take::Skip
            }
        }
    }

    fn bytes(&mut self, piece: &[u8]) {
        if self.slot == Slot::Output {
            self.has_output |= !piece.is_empty();
            return;
        }
        let room = WORD_BYTES.saturating_sub(self.word.len()).min(piece.len());
        self.word
            .extend_from_slice(piece.get(..room).unwrap_or_default());
    }

    fn end(&mut self) {
        self.end_word();
        self.slot = Slot::Nothing;
    }

    fn scalar(&mut self, text: &[u8]) {
        let target = match self.slot {
            Slot::Prompt => Some(&mut self.prompt),
            Slot::Completion => Some(&mut self.completion),
            Slot::Cached => Some(&mut self.cached),
            _ => None,
        };
        if let Some(target) = target {
            // `null` says nothing, so that an earlier figure stays.
            *target = whole(text).or(*target);
        }
        if matches!(self.slot, Slot::ErrorCode | Slot::TopCode) {
            self.word.clear();
            self.word.extend_from_slice(text);
            self.set_code();
        }
        self.slot = Slot::Nothing;
    }

    fn close(&mut self) {
        self.places.pop();
        self.slot = Slot::Nothing;
    }
}

/// The status that an error type without a code stands for: the names that OpenAI and Anthropic
/// document. Anything else is the engine's own fault.
fn code_of(kind: &[u8]) -> u32 {
    match kind {
        b"invalid_request_error" | b"BadRequestError" => 400,
        b"authentication_error" => 401,
        b"permission_error" => 403,
        b"not_found_error" | b"NotFoundError" => 404,
        b"request_too_large" => 413,
        b"rate_limit_error" | b"rate_limit_exceeded" => 429,
        b"overloaded_error" | b"ServiceUnavailableError" => 503,
        _ => 500,
    }
}
