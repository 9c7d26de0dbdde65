//! Where in a request body we are, and what the value there means: the scanner's half that knows
//! the four APIs.

use xxhash_rust::xxh64::xxh64;

use super::fields::Fields;
use super::json::{Kind, Sink, Take};
use super::keep::Kept;
use super::number::whole;
use super::{Api, InferenceRequest, Scan, ScanOptions};
use crate::prefix::{Author, Limits, Preamble, PromptHasher};

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

/// Members other than text: their digests added up, so that their order does not matter.
#[derive(Debug, Default)]
struct Extras {
    sum: u64,
    bytes: u64,
    images: u32,
    seen: bool,
}

impl Extras {
    fn add(&mut self, value: Option<(u64, u64)>) {
        if let Some((hash, bytes)) = value {
            self.sum = self.sum.wrapping_add(hash);
            self.bytes = self.bytes.saturating_add(bytes);
            self.seen = true;
        }
    }

    fn add_image(&mut self, value: Option<(u64, u64)>) {
        if let Some((hash, _)) = value {
            self.add(Some((hash, 0)));
            self.images = self.images.saturating_add(1);
        }
    }
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
    role: Option<Kept>,
    content_seen: bool,
    message: Extras,
    text_seen: bool,
    part: Extras,
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
            role: None,
            content_seen: false,
            message: Extras::default(),
            text_seen: false,
            part: Extras::default(),
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
        InferenceRequest {
            api: self.api,
            scan,
            model: self.model.map(Kept::into_string),
            stream: self.stream,
            max_output_tokens: self.limit.or(self.older_limit),
            n: self.count.max(self.best_of).unwrap_or(1).max(1),
            prompt: self.prompt.finish(),
            fields: self.fields.into_values(),
        }
    }

    /// Ends what is open, as if the body had ended properly here. A message whose role has not come
    /// yet counts as the user's.
    pub(super) fn cut_short(&mut self) {
        match self.place {
            Place::Part => {
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

    fn cut_message(&mut self) {
        if self.role.is_none() {
            let mut user = Kept::new();
            user.push(b"user");
            self.role = Some(user);
        }
        self.end_message();
    }

    /// What the value of a top-level key is. A key that repeats replaces what it said before.
    fn top_slot(&mut self, key: &[u8]) -> Slot {
        use Api::{ChatCompletions, Completions, Messages, Responses};
        match (self.api, key) {
            (_, b"model") => {
                self.model = None;
                Slot::Model
            }
            (_, b"stream") => {
                self.stream = false;
                Slot::Stream
            }
            (ChatCompletions | Completions | Messages, b"max_tokens") => {
                self.older_limit = None;
                Slot::OlderLimit
            }
            (ChatCompletions, b"max_completion_tokens") | (Responses, b"max_output_tokens") => {
                self.limit = None;
                Slot::Limit
            }
            (ChatCompletions | Completions, b"n") => {
                self.count = None;
                Slot::Count
            }
            (ChatCompletions | Completions, b"best_of") => {
                self.best_of = None;
                Slot::BestOf
            }
            (ChatCompletions | Messages, b"messages") | (Responses, b"input") => Slot::Chat,
            (Completions, b"prompt") => Slot::Prompt,
            _ => self.preamble_slot(key),
        }
    }

    fn preamble_slot(&mut self, key: &[u8]) -> Slot {
        use Api::{ChatCompletions, Messages, Responses};
        let which = match (self.api, key) {
            (_, b"cache_salt") => Preamble::Salt,
            (ChatCompletions | Messages | Responses, b"tools") => Preamble::Tools,
            (Messages, b"system") | (Responses, b"instructions") => Preamble::System,
            (ChatCompletions, b"documents") => Preamble::Documents,
            (ChatCompletions, b"chat_template") => Preamble::Template,
            _ => return Slot::Nothing,
        };
        self.prompt.set_preamble(which, None);
        Slot::Preamble(which)
    }

    fn begin_at_top(&mut self, kind: Kind) -> Take {
        let for_field = kind == Kind::String && self.fields.begin_string();
        let take = match (self.slot, kind) {
            (Slot::Model, Kind::String) => {
                self.model = Some(Kept::new());
                Take::Read
            }
            (Slot::Preamble(which), _) => self.begin_preamble(which, kind),
            (Slot::Chat, _) => self.begin_chat(kind),
            (Slot::Prompt, _) => self.begin_prompt(kind),
            (Slot::Nothing, Kind::Object) if self.fields.leads_on() => {
                self.fields.open();
                self.place = Place::Fields;
                Take::Read
            }
            _ => Take::Skip,
        };
        if for_field { Take::Read } else { take }
    }

    fn begin_preamble(&mut self, which: Preamble, kind: Kind) -> Take {
        self.prompt.begin_aside(0);
        if which == Preamble::System && kind == Kind::Array {
            self.place = Place::System;
            return Take::Read;
        }
        Take::Digest
    }

    fn begin_chat(&mut self, kind: Kind) -> Take {
        self.prompt.restart();
        match kind {
            Kind::Array => {
                self.prompt.begin_chat();
                self.place = Place::Messages;
                Take::Read
            }
            Kind::String if self.api == Api::Responses => {
                self.prompt.begin_chat();
                self.prompt.begin_message();
                self.slot = Slot::Text;
                Take::Read
            }
            _ => Take::Skip,
        }
    }

    fn begin_prompt(&mut self, kind: Kind) -> Take {
        self.prompt.restart();
        match kind {
            Kind::Array => {
                self.flat_ids = false;
                self.place = Place::Prompts;
                Take::Read
            }
            Kind::String => {
                self.prompt.begin_text_item();
                self.slot = Slot::Text;
                Take::Read
            }
            _ => Take::Skip,
        }
    }

    fn end_whole_prompt(&mut self) {
        if self.api == Api::Completions {
            self.prompt.end_item();
        } else {
            self.prompt.end_message(Author::User, b"user", 0, 0);
        }
    }

    fn begin_in_prompts(&mut self, kind: Kind) -> Take {
        self.slot = Slot::Nothing;
        if self.flat_ids && kind != Kind::Scalar {
            self.prompt.end_item();
            self.flat_ids = false;
        }
        match kind {
            Kind::String => {
                self.prompt.begin_text_item();
                self.slot = Slot::Text;
                Take::Read
            }
            Kind::Array => {
                self.prompt.begin_ids_item();
                self.place = Place::Ids;
                Take::Read
            }
            Kind::Scalar => {
                if !self.flat_ids {
                    self.prompt.begin_ids_item();
                    self.flat_ids = true;
                }
                self.slot = Slot::TokenId;
                Take::Read
            }
            Kind::Object => Take::Skip,
        }
    }

    fn begin_in_message(&mut self, kind: Kind) -> Take {
        match (self.slot, kind) {
            (Slot::Role, Kind::String) => {
                self.role = Some(Kept::new());
                Take::Read
            }
            (Slot::Content, _) => {
                if self.content_seen {
                    self.prompt.restart_message();
                }
                self.content_seen = true;
                match kind {
                    Kind::String => self.slot = Slot::Text,
                    Kind::Array => self.place = Place::Parts,
                    Kind::Object | Kind::Scalar => return Take::Skip,
                }
                Take::Read
            }
            (Slot::MessageExtra, _) => Take::Digest,
            _ => Take::Skip,
        }
    }

    fn begin_in_part(&mut self, kind: Kind) -> Take {
        match (self.slot, kind) {
            (Slot::Text, _) => {
                if self.text_seen {
                    self.prompt.restart_part();
                }
                self.text_seen = true;
                if kind == Kind::String {
                    Take::Read
                } else {
                    Take::Skip
                }
            }
            (Slot::PartExtra | Slot::PartMedia, _) => Take::Digest,
            _ => Take::Skip,
        }
    }

    fn begin_in_parts(&mut self, kind: Kind) -> Take {
        self.slot = Slot::Nothing;
        match kind {
            Kind::Object => {
                self.prompt.begin_part();
                self.part = Extras::default();
                self.text_seen = false;
                self.place = Place::Part;
                Take::Read
            }
            Kind::String => {
                self.slot = Slot::Text;
                Take::Read
            }
            _ => Take::Skip,
        }
    }

    fn begin_message(&mut self) {
        self.prompt.begin_message();
        self.role = None;
        self.content_seen = false;
        self.message = Extras::default();
        self.place = Place::Message;
    }

    fn end_message(&mut self) {
        let role = self.role.as_ref().map_or(&b""[..], Kept::bytes);
        let author = if role == b"user" {
            Author::User
        } else {
            Author::Other
        };
        self.prompt
            .end_message(author, role, self.message.sum, self.message.bytes);
    }

    fn end_part(&mut self) {
        if self.part.seen {
            self.prompt
                .mark_part(self.part.sum, self.part.images, self.part.bytes);
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
                    self.role = None;
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
            Slot::Model => push(&mut self.model, piece),
            Slot::Role => push(&mut self.role, piece),
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
                    self.prompt.token_id(id as u32);
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

fn push(kept: &mut Option<Kept>, piece: &[u8]) {
    if let Some(kept) = kept {
        kept.push(piece);
    }
}

/// Members of a part that hold an image, a sound, a film or a file, or point to one.
fn is_media(key: &[u8]) -> bool {
    matches!(
        key,
        b"image_url"
            | b"image"
            | b"image_embeds"
            | b"input_audio"
            | b"audio"
            | b"audio_url"
            | b"video"
            | b"video_url"
            | b"source"
            | b"file"
            | b"file_data"
            | b"file_id"
            | b"file_url"
    )
}
