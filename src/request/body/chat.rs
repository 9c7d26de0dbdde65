//! Messages and the parts of their contents.

use super::{BodyReader, Place, Slot};
use crate::prefix::Author;
use crate::request::json::{Kind, Take};

/// Members other than text: their digests added up, so that their order does not matter.
#[derive(Debug, Default)]
pub(super) struct Extras {
    sum: u64,
    bytes: u64,
    images: u32,
    seen: bool,
}

impl Extras {
    pub(super) fn add(&mut self, value: Option<(u64, u64)>) {
        if let Some((hash, bytes)) = value {
            self.sum = self.sum.wrapping_add(hash);
            self.bytes = self.bytes.saturating_add(bytes);
            self.seen = true;
        }
    }

    pub(super) fn add_image(&mut self, value: Option<(u64, u64)>) {
        if let Some((hash, _)) = value {
            self.add(Some((hash, 0)));
            self.images = self.images.saturating_add(1);
        }
    }
}

impl BodyReader {
    pub(super) fn begin_in_message(&mut self, kind: Kind) -> Take {
        match (self.slot, kind) {
            (Slot::Role, Kind::String) => {
                self.role_seen = true;
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

    pub(super) fn begin_in_part(&mut self, kind: Kind) -> Take {
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

    pub(super) fn begin_in_parts(&mut self, kind: Kind) -> Take {
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

    pub(super) fn begin_message(&mut self) {
        self.prompt.begin_message();
        self.role.clear();
        self.role_seen = false;
        self.content_seen = false;
        self.message = Extras::default();
        self.place = Place::Message;
    }

    pub(super) fn end_message(&mut self) {
        let role = self.role.as_slice();
        let author = if role == b"user" {
            Author::User
        } else {
            Author::Other
        };
        self.prompt
            .end_message(author, role, self.message.sum, self.message.bytes);
    }

    pub(super) fn end_part(&mut self) {
        if self.part.seen {
            self.prompt
                .mark_part(self.part.sum, self.part.images, self.part.bytes);
        }
    }

    pub(super) fn cut_message(&mut self) {
        if !self.role_seen {
            self.role.extend_from_slice(b"user");
        }
        self.end_message();
    }
}

/// Members of a part that hold an image, a sound, a film or a file, or point to one.
pub(super) fn is_media(key: &[u8]) -> bool {
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
