//! The members of the top-level object, and prompts that are not chats.

use super::{BodyReader, Place, Slot};
use crate::prefix::{Author, Preamble};
use crate::request::Api;
use crate::request::json::{Kind, Take};
use crate::request::keep::Kept;

impl BodyReader {
    /// What the value of a top-level key is. A key that repeats replaces what it said before.
    pub(super) fn top_slot(&mut self, key: &[u8]) -> Slot {
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

    pub(super) fn preamble_slot(&mut self, key: &[u8]) -> Slot {
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

    pub(super) fn begin_at_top(&mut self, kind: Kind) -> Take {
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

    pub(super) fn begin_preamble(&mut self, which: Preamble, kind: Kind) -> Take {
        self.prompt.begin_aside(0);
        if which == Preamble::System && kind == Kind::Array {
            self.place = Place::System;
            return Take::Read;
        }
        Take::Digest
    }

    pub(super) fn begin_chat(&mut self, kind: Kind) -> Take {
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

    pub(super) fn begin_prompt(&mut self, kind: Kind) -> Take {
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

    pub(super) fn end_whole_prompt(&mut self) {
        if self.api == Api::Completions {
            self.prompt.end_item();
        } else {
            self.prompt.end_message(Author::User, b"user", 0, 0);
        }
    }

    pub(super) fn begin_in_prompts(&mut self, kind: Kind) -> Take {
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
}
