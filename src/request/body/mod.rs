//! Where in a request body we are, and what the value there means: the scanner's half that knows
//! the four APIs.

mod chat;
mod top;

use xxhash_rust::xxh64::xxh64;

use super::fields::Fields;
use super::json::{Kind, Sink, Take};
use super::keep::Kept;
use super::number::whole;
use super::{Api, InferenceRequest, Scan, ScanOptions};
use crate::prefix::{Limits, Preamble, PromptHasher};
use chat::{Extras, is_media};

/// Longest role that is told apart.
const ROLE_BYTES: usize = 64;

/// The container that is being read. Each has one possible parent, so there is no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Outside,
    Top,
    /// An object on the way to a key field.
    Fields,
    /// `messages`, or `input` as an array.
    Messages,
    Message,
    /// `content` as an array.
    Parts,
    Part,
    /// `prompt` as an array.
    Prompts,
    /// Token ids of one prompt of a batch.
    Ids,
    /// `system` as an array.
    System,
    SystemPart,
}

/// What the value under way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Nothing,
    Model,
    Stream,
    Limit,
    OlderLimit,
    Count,
    BestOf,
    Preamble(Preamble),
    Chat,
    Prompt,
    Role,
    Content,
    /// Text of the prompt.
    Text,
    /// Text of `system` in parts.
    SystemText,
    MessageExtra,
    PartExtra,
    PartMedia,
    TokenId,
}

/// Receives the tokens of one request body.
pub(super) struct BodyReader {
    api: Api,
    place: Place,
    slot: Slot,
    kind: Kind,
    fields: Fields,
    model: Option<Kept>,
    stream: bool,
    limit: Option<u32>,
    older_limit: Option<u32>,
    count: Option<u32>,
    best_of: Option<u32>,
    prompt: PromptHasher,
    /// The beginning of the role.
    role: Vec<u8>,
    role_seen: bool,
    content_seen: bool,
    message: Extras,
    text_seen: bool,
    part: Extras,
    /// Images that had begun when the reading stopped.
    cut_images: u32,
    /// Inside a prompt that is a flat array of token ids.
    flat_ids: bool,
}

impl BodyReader {
    pub(super) fn new(api: Api, options: &ScanOptions) -> Self {
        Self {
            api,
            place: Place::Outside,
            slot: Slot::Nothing,
            kind: Kind::Scalar,
            fields: Fields::new(&options.key_fields),
            model: None,
            stream: false,
            limit: None,
            older_limit: None,
            count: None,
            best_of: None,
            prompt: PromptHasher::new(Limits {
                prefix_bytes: options.prefix_bytes,
                block_bytes: options.block_bytes,
                max_blocks: options.max_blocks,
            }),
            role: Vec::new(),
            role_seen: false,
            content_seen: false,
            message: Extras::default(),
            text_seen: false,
            part: Extras::default(),
            cut_images: 0,
            flat_ids: false,
        }
    }

    pub(super) fn unknown(self, scan: Scan) -> InferenceRequest {
        let fields = self.fields.into_values().iter().map(|_| None).collect();
        InferenceRequest {
            fields,
            ..InferenceRequest::unknown(self.api, scan)
        }
    }

    pub(super) fn finish(self, scan: Scan) -> InferenceRequest {
        let mut prompt = self.prompt.finish();
        prompt.images = prompt.images.saturating_add(self.cut_images);
        InferenceRequest {
            api: self.api,
            scan,
            model: self.model.map(Kept::into_string),
            stream: self.stream,
            max_output_tokens: self.limit.or(self.older_limit),
            n: self.count.max(self.best_of).unwrap_or(1).max(1),
            prompt,
            fields: self.fields.into_values(),
        }
    }

    /// Ends what is open, as if the body had ended properly here. A message whose role has not come
    /// yet counts as the user's.
    pub(super) fn cut_short(&mut self) {
        self.fields.cut_short();
        if self.place == Place::Top && self.slot == Slot::Model {
            self.model = None;
        }
        match self.place {
            Place::Part => {
                // It costs what it will cost, but half of its data is no part of a key.
                self.cut_images = u32::from(self.slot == Slot::PartMedia);
                self.end_part();
                self.cut_message();
            }
            Place::Message | Place::Parts => self.cut_message(),
            Place::Prompts if self.flat_ids || self.slot == Slot::Text => self.prompt.end_item(),
            Place::Ids => self.prompt.end_item(),
            Place::Top if self.slot == Slot::Text => self.end_whole_prompt(),
            _ => {}
        }
    }

    /// The digest of the value that just ended.
    fn digested(&self) -> Option<(u64, u64)> {
        match self.kind {
            Kind::Object | Kind::Array => self.prompt.end_aside_container(),
            Kind::String | Kind::Scalar => self.prompt.end_aside(),
        }
    }

    fn end_digest(&mut self) {
        let value = self.digested();
        match self.slot {
            Slot::Preamble(which) => self.prompt.set_preamble(which, value),
            Slot::MessageExtra => self.message.add(value),
            Slot::PartExtra => self.part.add(value),
            Slot::PartMedia => self.part.add_image(value),
            _ => {}
        }
    }
}

impl Sink for BodyReader {
    fn key(&mut self, key: &[u8]) {
        self.slot = match self.place {
            Place::Top => {
                self.fields.key(key);
                self.top_slot(key)
            }
            Place::Fields => {
                self.fields.key(key);
                Slot::Nothing
            }
            Place::Message => match key {
                b"role" => {
                    self.role.clear();
                    Slot::Role
                }
                b"content" => Slot::Content,
                // They say nothing that the other members do not show, or change with each turn.
                b"type" | b"id" | b"status" => Slot::Nothing,
                _ => Slot::MessageExtra,
            },
            Place::Part => match key {
                b"text" => Slot::Text,
                b"type" | b"cache_control" => Slot::Nothing,
                _ if is_media(key) => Slot::PartMedia,
                _ => Slot::PartExtra,
            },
            Place::SystemPart if key == b"text" => Slot::SystemText,
            _ => Slot::Nothing,
        };
        if matches!(
            self.slot,
            Slot::MessageExtra | Slot::PartExtra | Slot::PartMedia
        ) {
            self.prompt.begin_aside(xxh64(key, 0));
        }
    }

    fn begin(&mut self, kind: Kind) -> Take {
        self.kind = kind;
        match (self.place, kind) {
            (Place::Outside, _) => {
                self.place = Place::Top;
                Take::Read
            }
            (Place::Top, _) => self.begin_at_top(kind),
            (Place::Fields, Kind::Object) if self.fields.leads_on() => {
                self.fields.open();
                Take::Read
            }
            (Place::Fields, Kind::String) if self.fields.begin_string() => Take::Read,
            (Place::Messages, Kind::Object) => {
                self.begin_message();
                Take::Read
            }
            (Place::Message, _) => self.begin_in_message(kind),
            (Place::Parts, _) => self.begin_in_parts(kind),
            (Place::Part, _) => self.begin_in_part(kind),
            (Place::Prompts, _) => self.begin_in_prompts(kind),
            (Place::Ids, Kind::Scalar) => {
                self.slot = Slot::TokenId;
                Take::Read
            }
            (Place::System, Kind::Object) => {
                self.place = Place::SystemPart;
                Take::Read
            }
            (Place::SystemPart, Kind::String) if self.slot == Slot::SystemText => Take::Read,
            _ => {
                self.slot = Slot::Nothing;
                Take::Skip
            }
        }
    }

    fn bytes(&mut self, piece: &[u8]) {
        self.fields.push(piece);
        match self.slot {
            Slot::Text => self.prompt.text(piece),
            Slot::Model => {
                if let Some(model) = &mut self.model {
                    model.push(piece);
                }
            }
            Slot::Role => {
                let room = ROLE_BYTES.saturating_sub(self.role.len()).min(piece.len());
                self.role
                    .extend_from_slice(piece.get(..room).unwrap_or_default());
            }
            Slot::SystemText
            | Slot::Preamble(_)
            | Slot::MessageExtra
            | Slot::PartExtra
            | Slot::PartMedia => self.prompt.aside(piece),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.fields.end_string();
        match (self.place, self.slot) {
            (Place::Top, Slot::Text) => self.end_whole_prompt(),
            (Place::Prompts, Slot::Text) => self.prompt.end_item(),
            _ => self.end_digest(),
        }
        self.slot = Slot::Nothing;
    }

    fn scalar(&mut self, text: &[u8]) {
        if matches!(self.place, Place::Top | Place::Fields) {
            self.fields.scalar(text);
        }
        let number = whole(text);
        let small = number.and_then(|number| u32::try_from(number).ok());
        match self.slot {
            Slot::Stream => self.stream = matches!(text, b"true" | b"1"),
            Slot::Limit => self.limit = small,
            Slot::OlderLimit => self.older_limit = small,
            Slot::Count => self.count = small,
            Slot::BestOf => self.best_of = small,
            Slot::TokenId => {
                if let Some(id) = number {
                    self.prompt.token_ids(&[id]);
                }
            }
            Slot::MessageExtra | Slot::PartExtra if text != b"null" => {
                self.prompt.aside(text);
                self.end_digest();
            }
            _ => {}
        }
        self.slot = Slot::Nothing;
    }

    fn takes_integers(&self) -> bool {
        match self.place {
            Place::Ids => true,
            Place::Prompts => self.flat_ids,
            _ => false,
        }
    }

    fn integers(&mut self, numbers: &[u64]) {
        self.prompt.token_ids(numbers);
    }

    fn close(&mut self) {
        self.place = match self.place {
            Place::Message => {
                self.end_message();
                Place::Messages
            }
            Place::Part => {
                self.end_part();
                Place::Parts
            }
            Place::Parts => Place::Message,
            Place::Ids => {
                self.prompt.end_item();
                Place::Prompts
            }
            Place::Prompts => {
                if std::mem::take(&mut self.flat_ids) {
                    self.prompt.end_item();
                }
                Place::Top
            }
            Place::System => {
                let system = self.prompt.end_aside();
                self.prompt.set_preamble(Preamble::System, system);
                Place::Top
            }
            Place::SystemPart => Place::System,
            Place::Fields if !self.fields.close() => Place::Fields,
            Place::Messages | Place::Top | Place::Outside | Place::Fields => Place::Top,
        };
        self.slot = Slot::Nothing;
    }
}
